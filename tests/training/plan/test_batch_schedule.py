"""A growing global batch: step t trains on the rows from S_t to S_{t+1}, and nothing else changes."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_runs import LENGTH, history, losses, random_rows, settings, tiny_model, trainer
from torch.utils.data import Subset
from transformers import TrainerCallback

from hmm_datasets.errors import InputError
from hmm_datasets.operations.checkpoints.convert import convert
from hmm_datasets.runtime.command_line import parse_settings
from hmm_datasets.training.plan.batch_schedule import BatchSchedule
from hmm_datasets.training.plan.flops import flops_per_token
from hmm_datasets.training.run import train_and_save
from hmm_datasets.training.settings import PretrainSettings
from hmm_datasets.training.trainer import Pretrainer

STAGES = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 5)), max_size=3)


@given(STAGES, st.integers(0, 40))
def test_rows_before_a_step_are_the_sum_of_the_batches_before_it(stages, step):
    schedule = BatchSchedule(tuple(stages), 12)
    sizes = [rows for rows, steps in stages for _ in range(steps)] + [12] * 40
    assert [schedule.size(index) for index in range(len(sizes))] == sizes
    assert schedule.rows_before(step) == sum(sizes[:step])


@given(STAGES, st.integers(0, 300))
def test_steps_for_rows_is_the_minimum_number_of_steps(stages, rows):
    schedule = BatchSchedule(tuple(stages), 12)
    steps = schedule.steps_for_rows(rows)
    assert schedule.rows_before(steps) >= rows
    assert steps == 0 or schedule.rows_before(steps - 1) < rows


def test_a_linear_ramp_is_that_of_a_published_run():
    """The log of BLOOM's tr1-13B-base, which began with `--rampup-batch-size 16 16 5_000_000`.

    "iteration 29020/ 311541 | consumed samples: 10698064 | global batch size: 1024", and 33240 at 15019344.
    """
    schedule = BatchSchedule.parse(["16+16:5_000_000"], 1024)
    assert len(schedule.stages) == 63
    assert schedule.stages[:3] == ((16, 4961), (32, 2480), (48, 1654))
    assert [schedule.rows_before(step) for step in (29_020, 33_240)] == [10_698_064, 15_019_344]


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 5), st.integers(1, 400))
def test_a_linear_ramp_grows_whenever_an_equal_share_of_the_rows_is_consumed(start, increment, count, rows):
    full = start + increment * count
    schedule = BatchSchedule.parse([f"{start}+{increment}:{rows}"], full)
    for step in range(60):
        consumed = schedule.rows_before(step)
        assert schedule.size(step) == min(start + consumed * count // rows * increment, full)


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        (["16"], "batch_ramp: '16' is not a stage; expected ROWS:STEPS, such as 16:100 for 100 steps of 16 rows"),
        (
            [970],
            "batch_ramp: 970 is not a stage; .*in YAML within quotation marks",
        ),  # 16:10 is a number in base 60 there
        (["0:3"], "batch_ramp: 0:3 means 0 rows in each of 3 steps; expected 1 to global_batch_size 8 rows"),
        (["16:3"], "batch_ramp: 16:3 means 16 rows in each of 3 steps; expected 1 to global_batch_size 8 rows"),
        (["4+3:80"], "batch_ramp: 4\\+3:80 does not lead to global_batch_size 8"),
        (["4+2:0"], "batch_ramp: 4\\+2:0 does not lead to global_batch_size 8; expected a smaller first batch"),
        (["4+2:80", "6:1"], "batch_ramp: '4\\+2:80' is not a stage; .*or a single START\\+INCREMENT:ROWS"),
        (["4:0"], "batch_ramp: 4:0 means 4 rows in each of 0 steps"),
    ],
)
def test_wrong_stages_are_refused_in_one_line(tmp_path, stages, message):
    with pytest.raises(InputError, match=message) as caught:
        settings(tmp_path, batch_ramp=stages)
    assert "\n" not in str(caught.value)


def test_a_stage_that_does_not_divide_is_refused_before_the_first_step(tmp_path):
    run = trainer(tmp_path, batch_ramp=["4:2", "6:2"])
    expected = r"batch_ramp: 6:2 is not a multiple of world size x per_device_train_batch_size 4; use a multiple of it"
    with pytest.raises(InputError, match=expected):
        train_and_save(run, settings={}, data={})
    assert run.state.global_step == 0


def test_settings_read_stages_from_yaml_and_flags(tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text(f"output_dir: {tmp_path}\nmax_steps: 3\nbatch_ramp: ['16:10', '32:300']\n")
    (found,) = parse_settings(PretrainSettings, arguments=["--config", str(path)])
    assert found.batch_schedule == BatchSchedule(((16, 10), (32, 300)), 64)
    (found,) = parse_settings(PretrainSettings, arguments=["--config", str(path), "--batch_ramp", "8:1", "16:2"])
    assert found.batch_schedule.stages == ((8, 1), (16, 2))
    assert settings(tmp_path).batch_schedule == BatchSchedule((), 8)


# Training

RAMP = {"batch_ramp": ["2:2", "4:1"], "global_batch_size": 8, "max_steps": 6}
SIZES = [2, 2, 4, 8, 8, 8]


class Logged(Pretrainer):
    """Records the rows of each step."""

    def training_step(self, model, inputs, *rest):
        if inputs is not None:
            self.seen = getattr(self, "seen", {})
            self.seen.setdefault(self.state.global_step, []).extend(inputs["input_ids"].tolist())
        return super().training_step(model, inputs, *rest)


def rows_of_steps(rows, sizes):
    tokens = [row["input_ids"].tolist() for row in rows]
    return {step: tokens[sum(sizes[:step]) : sum(sizes[: step + 1])] for step in range(len(sizes))}


def reference(rows, sizes):
    """The losses of a plain loop with torch's AdamW: all rows of a step in one batch, the mean over their labels."""
    model = tiny_model()
    decayed = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    rest = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.95), fused=True)
    found = []
    for step in range(len(sizes)):
        chosen = rows[sum(sizes[:step]) : sum(sizes[: step + 1])]
        loss = model(**{name: torch.stack([row[name] for row in chosen]) for name in chosen[0]}).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("micro_batch", [1, 2])
def test_every_step_trains_on_its_rows_and_its_loss_is_their_mean(tmp_path, micro_batch):
    rows = random_rows(sum(SIZES), ignored=True)  # exactly as many rows as the run needs
    given = {
        "learning_rate": 0.01,
        "lr_scheduler_type": "constant",
        "per_device_train_batch_size": micro_batch,
        **RAMP,
    }
    steps = []

    class Steps(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            steps.append(("begin", state.global_step))

        def on_step_end(self, args, state, control, **kwargs):
            steps.append(("end", state.global_step))

    run = trainer(tmp_path, kind=Logged, rows=rows, **given)
    run.add_callback(Steps())
    assert losses(run) == pytest.approx(reference(rows, SIZES), abs=1e-5)
    assert run.seen == rows_of_steps(rows, SIZES)
    assert steps == [event for step in range(6) for event in (("begin", step), ("end", step + 1))]
    assert run.state.num_input_tokens_seen == sum(SIZES) * LENGTH
    assert run.state.total_flos == flops_per_token(run.model, LENGTH) * sum(SIZES) * LENGTH
    tokens = [row["num_input_tokens_seen"] for row in history(run)]
    assert tokens == [LENGTH * sum(SIZES[: step + 1]) for step in range(6)]


def test_a_loss_that_takes_no_number_of_items_is_averaged_over_the_nonempty_micro_batches(tmp_path):
    given = {"learning_rate": 0.01, "lr_scheduler_type": "constant", "per_device_train_batch_size": 2, **RAMP}
    rows = random_rows(sum(SIZES))  # the same number of labels in every row, so that both ways of averaging agree
    run = trainer(tmp_path, rows=rows, **given)
    run.model_accepts_loss_kwargs = False
    assert losses(run) == pytest.approx(reference(rows, SIZES), abs=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("stop", [1, 3, 4])
def test_resumed_within_or_after_the_ramp_the_run_is_the_undisturbed_one_to_the_bit(tmp_path, stop):
    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = control.should_save = state.global_step == stop

    rows = random_rows(sum(SIZES), ignored=True)
    given = {"rows": rows, "kind": Logged, "per_device_train_batch_size": 2, **RAMP}
    whole = trainer(tmp_path / "whole", **given)
    expected = losses(whole)
    first = trainer(tmp_path / "parts", **given)
    first.add_callback(Stop())
    first.train()
    assert first.state.global_step == stop
    begin = first.schedule.rows_before(stop)
    second = trainer(tmp_path / "parts", model=tiny_model(seed=9), **given | {"rows": Subset(rows, range(begin, 32))})
    second.args.ignore_data_skip = True
    second.train(resume_from_checkpoint=str(tmp_path / "parts" / f"checkpoint-{stop}"))
    assert [row["loss"] for row in history(second)] == expected
    assert first.seen | second.seen == rows_of_steps(rows, SIZES)


def test_rows_that_end_within_a_step_are_refused(tmp_path):
    run = trainer(tmp_path, rows=random_rows(sum(SIZES) - 1), per_device_train_batch_size=1, **RAMP)
    with pytest.raises(InputError, match="step 6: the rows end before its global batch of 8 is full"):
        run.train()


# Several processes

COMMON = {
    **{"max_steps": 6, "global_batch_size": 8, "learning_rate": 0.01, "logging_steps": 1, "z_loss": 0.01},
    **{"report_to": "none", "lr_scheduler_type": "constant_with_warmup", "warmup_steps": 2},
}


def launched(launch, config, folder, **given):
    """Losses and z-losses of a run on two processes, and the rows of each step."""
    flags = {"output_dir": folder, "per_device_train_batch_size": 1, "save_strategy": "no", **COMMON, **given}
    result = launch(
        *("accelerate.commands.accelerate_cli", "launch", "--config_file", f"accelerate_configs/{config}.yaml"),
        Path(__file__).with_name("ramped_run.py"),
        *(
            part
            for name, value in flags.items()
            for part in (f"--{name}", *(value if isinstance(value, list) else [value]))
        ),
    )
    assert result.returncode == 0, result.stderr[-3000:]
    rows = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    logged = [json.loads(line) for path in folder.glob("rows-*.jsonl") for line in path.read_text().splitlines()]
    seen = {}
    for entry in logged:
        seen.setdefault(entry["step"], []).extend(entry["rows"])
    return [(row["loss"], row["z_loss"]) for row in rows if "loss" in row], seen


def alone(folder, **given):
    run = trainer(folder, model=tiny_model(layers=2), rows=random_rows(200, ignored=True), **COMMON | given)
    run.train()
    return [(row["loss"], row["z_loss"]) for row in history(run)]


RAMPED = {"batch_ramp": ["2:2", "4:1"]}
ZERO_MUON = {"optimizer": "muon", "max_grad_norm": 0}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("config", "given", "tolerance"),
    [
        ("cpu2", {**RAMPED}, 2e-5),
        # Ranks sum parts of bf16 products, so the curve equals that of one process only up to bf16's rounding.
        pytest.param("fsdp2", {**RAMPED, "optimizer": "muon"}, 1e-3, marks=pytest.mark.slow),
        pytest.param("zero1", {**RAMPED, **ZERO_MUON}, 1e-3, marks=pytest.mark.slow),
        pytest.param("zero2", {**RAMPED, **ZERO_MUON}, 1e-3, marks=pytest.mark.slow),
        ("zero3", {**RAMPED, **ZERO_MUON}, 1e-3),
        pytest.param("zero3", {**RAMPED}, 2e-5, marks=pytest.mark.slow),
        pytest.param("zero1", {**RAMPED}, 2e-5, marks=pytest.mark.slow),
    ],
)
def test_two_processes_train_on_the_same_rows_to_the_same_curve(launch, tmp_path, config, given, tolerance):
    """Batch ramp, z-loss, padded vocabulary, and each optimizer, under every way of sharding.

    The two processes compute the loss in chunks, the one process from all logits.
    """
    found, seen = launched(launch, config, tmp_path / "two", **given, chunked_loss=True)
    expected = alone(tmp_path / "one", **given, per_device_train_batch_size=2)
    for one, two in zip(expected, found, strict=True):
        assert two == pytest.approx(one, abs=tolerance)
    expected_rows = rows_of_steps(random_rows(200), SIZES)
    assert {step: sorted(rows) for step, rows in seen.items()} == {
        step: sorted(rows) for step, rows in expected_rows.items()
    }
    if "optimizer" in given:
        plain = alone(tmp_path / "adamw", **given | {"optimizer": "adamw"}, per_device_train_batch_size=2)
        assert abs(plain[-1][0] - expected[-1][0]) > 1e-2, "the tolerance tells the optimizers apart"


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("config", ["fsdp2", "zero2", "zero3"])
def test_sharded_muon_resumes_from_its_checkpoint(launch, tmp_path, config):
    given = {**RAMPED, **ZERO_MUON, "save_strategy": "steps", "save_steps": 3}
    whole, _ = launched(launch, config, tmp_path / "whole", **given)
    launched(launch, config, tmp_path / "parts", **given | {"max_steps": 3})
    parts, _ = launched(launch, config, tmp_path / "parts", **given)
    assert parts == whole
    if config != "fsdp2":
        with pytest.raises(InputError, match="has the state of Muon, which DeepSpeed cannot convert; resume on as ma"):
            convert(tmp_path / "parts" / "checkpoint-6", tmp_path / "other", "plain")
        convert(tmp_path / "parts" / "checkpoint-6", tmp_path / "model", "hf")
