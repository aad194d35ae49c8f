"""ZeRO 1, 2, 3 and FSDP2 on two real processes shard, save, resume, and train like one process."""

import json
import shutil

import pytest
import torch

from hmm_datasets.operations.checkpoints.convert import convert

pytestmark = pytest.mark.thorough

SETTINGS = (
    *("--length", 16, "--model", "1m", "--num_test_sequences", 8),
    *("--global_batch_size", 8, "--per_device_train_batch_size", 2, "--save_steps", 5, "--logging_steps", 1),
    *("--lr_scheduler_type", "constant", "--lr_scheduler_kwargs", "{}", "--warmup_steps", 0),
)


def train(program, succeeded, config, hmm_folder, output, max_steps, *more):
    result = program.launch(
        config,
        "recipes/pretrain.py",
        *("--hmm", hmm_folder, "--output_dir", output, "--max_steps", max_steps),
        *SETTINGS,
        *more,
    )
    succeeded(result)
    assert "steps mismatch" not in result.stderr, "a warning of accelerate, of what is right"
    return json.loads((output / "summary.json").read_text())


def losses(output):
    rows = [json.loads(line) for line in (output / "history.jsonl").read_text().splitlines()]
    return {row["step"]: row["loss"] for row in rows if "loss" in row}


def logits(folder):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.inference_mode():
        return model(torch.arange(10).unsqueeze(0)).logits


def held_out_loss(folder, hmm_folder):
    from transformers import AutoModelForCausalLM

    from hmm_datasets import HMM, HMMSequences
    from hmm_datasets.data.sequences import TEST_FIRST

    view = HMMSequences(HMM.from_pretrained(hmm_folder), 16, first=TEST_FIRST, num_sequences=8)
    rows = torch.stack([row["input_ids"] for row in view.__getitems__(range(8))])
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.inference_mode():
        return model(rows, labels=rows).loss.item()


@pytest.fixture(scope="module")
def one_process(program, succeeded, hmm_folder, tmp_path_factory):
    """Ten uninterrupted steps in one process, with the same global batch."""
    output = tmp_path_factory.mktemp("one") / "run"
    train(program, succeeded, "cpu1", hmm_folder, output, 10)
    return output


# test_kills.py has ZeRO 1 and 2 too.
@pytest.mark.parametrize(
    "config", [*(pytest.param(name, marks=pytest.mark.slow) for name in ("zero1", "zero2")), "zero3", "fsdp2"]
)
def test_two_processes_shard_save_and_resume_to_the_model_of_one(
    config, program, succeeded, hmm_folder, one_process, tmp_path
):
    output = tmp_path / "run"
    first = train(program, succeeded, config, hmm_folder, output, 5)
    halfway = logits(output)
    second = train(program, succeeded, config, hmm_folder, output, 10)

    assert (first["resumed_from"], second["resumed_from"]) == (None, "checkpoint-5")
    assert second["world_size"] == 2
    assert [sizes["rank"] for sizes in second["shard_sizes"]] == [0, 1]
    total = second["parameters"]["total"]
    kept = [sizes["parameters"] for sizes in second["shard_sizes"]]
    optimized = [sizes["optimized"] for sizes in second["shard_sizes"]]
    if config in ("zero3", "fsdp2"):
        assert sum(kept) < 1.01 * total
        assert max(kept) < 0.6 * total
    else:
        assert kept == [total, total]
    assert total <= sum(optimized) < 1.01 * total
    assert max(optimized) < 0.6 * total

    # Tokens are counted over ranks, accumulation and the resume.
    assert second["tokens"] == 10 * 8 * 17
    # The same global batches in the same order give the same curve.
    expected = losses(one_process)
    assert losses(output) == pytest.approx(expected, abs=2e-4)
    assert sorted(expected) == list(range(1, 11))
    # The saved model predicts like the model of one process, and has changed since the resume.
    torch.testing.assert_close(logits(output), logits(one_process), atol=5e-3, rtol=0)
    assert (logits(output) - halfway).abs().max() > 0.05
    # The held-out loss of the run is that of the model loaded from its folder.
    assert held_out_loss(output, hmm_folder) == pytest.approx(second["evaluation"]["loss"], abs=1e-5)


def first_loss(program, succeeded, hmm_folder, output, *launch):
    """What a run of one step on 60 rows says, and its first loss, its held-out losses and its record.

    It has 2,220 labels, a number that bfloat16 would round.
    """
    own = [flag for flag in launch if flag.startswith("--bf16") or flag in ("true", "false")]
    flags = [flag for flag in launch[1:] if flag not in own]
    settings = ("--hmm", hmm_folder, "--output_dir", output, "--max_steps", 1, "--length", 37, "--model", "1m")
    batch = ("--global_batch_size", 60, "--per_device_train_batch_size", 15, "--num_test_sequences", 8)
    said = succeeded(program.launch(launch[0], *flags, "recipes/pretrain.py", *settings, *batch, *own)).stdout
    found = json.loads((output / "summary.json").read_text())["evaluation"]
    return said, losses(output)[1], found, json.loads((output / "run.json").read_text())["settings"]


def test_losses_in_bf16_are_those_of_float32_under_every_strategy(program, succeeded, hmm_folder, tmp_path):
    """The precision is said to the launcher or to the recipe; `-s` prints the table."""
    launched, own = ("--mixed_precision", "bf16"), ("--bf16", "true")
    ways = {"ddp": launched, "zero1": own, "zero2": launched, "zero3": own, "fsdp2": launched}
    given = (program, succeeded, hmm_folder)
    said, expected, _, _ = first_loss(*given, tmp_path / "float32", "cpu1")
    assert "trains in float32, the default on a CPU" in said
    found = {}
    for name, how in ways.items():
        two = ("--num_processes", "2", *how)
        said, found[name], evaluation, settings = first_loss(*given, tmp_path / name, name, *two)
        assert f"trains in bfloat16, set by {'mixed_precision of the launcher' if how is launched else 'bf16'}" in said
        assert settings["bf16"] is True
        # The loss that the model returns is that of its logits, which are summed in float64.
        assert evaluation["loss"] == pytest.approx(evaluation["cross_entropy"], abs=1e-5)
    print(f"\nLoss of one step of 60 rows of 38 tokens, two CPU processes\n{'float32':8}{expected:.7f}")
    for name, loss in found.items():
        print(f"{name:8}{loss:.7f}  {loss - expected:+.1e}")
    assert max(found.values()) - min(found.values()) < 1e-4
    assert list(found.values()) == pytest.approx([expected] * len(ways), abs=1e-3)
    assert expected not in found.values()


@pytest.mark.outside(
    "https://github.com/deepspeedai/DeepSpeed/issues/2898",
    "continue a ZeRO checkpoint on another number of processes",
    "the same command continues; losses are those of one process to 1e-5",
)
@pytest.mark.outside(
    "https://github.com/deepspeedai/DeepSpeed/issues/3810",
    "load a checkpoint of 32 ranks on 128",
    "the checkpoint is converted when it is loaded",
)
@pytest.mark.outside(
    "https://github.com/deepspeedai/DeepSpeed/issues/5405",
    "the Trainer's DeepSpeed checkpoint on another number of GPUs, and as a universal checkpoint",
    "`checkpoint convert` and the run itself read it, under ZeRO 1 to 3, FSDP2 and without either",
)
@pytest.mark.parametrize(
    "path",
    [
        [("zero", "zero3"), ("fsdp", "fsdp2"), ("plain", "cpu1")],
        pytest.param([("fsdp", "fsdp2"), ("zero", "zero2"), ("plain", "cpu1")], marks=pytest.mark.slow),
        pytest.param([("zero", "zero2"), ("zero", "zero3"), ("plain", "cpu2")], marks=pytest.mark.slow),
    ],
    ids=lambda path: "-".join(config for _, config in path),
)
def test_a_run_goes_on_under_other_frameworks_with_the_losses_of_one_process(
    path, program, succeeded, hmm_folder, one_process, tmp_path
):
    """Its checkpoint of step 5 is converted, trained for a step or two, converted again, up to step 10."""
    checkpoint, expected = one_process / "checkpoint-5", losses(one_process)
    for (to, config), steps in zip(path, (6, 8, 10), strict=True):
        converted = convert(checkpoint, tmp_path / config, to)
        assert held_out_loss(converted, hmm_folder) == pytest.approx(held_out_loss(checkpoint, hmm_folder), abs=1e-6)
        output = converted.parent
        summary = train(program, succeeded, config, hmm_folder, output, steps, "--save_steps", steps)
        assert summary["resumed_from"] == checkpoint.name
        assert losses(output) == pytest.approx({step: expected[step] for step in range(1, steps + 1)}, abs=1e-5)
        checkpoint = output / f"checkpoint-{steps}"
        if to == "zero":  # without the gathered weights, they come from the shards
            alone = shutil.copytree(checkpoint, tmp_path / f"{config}-alone" / checkpoint.name)
            (alone / "model.safetensors").unlink()
            (alone / "digests.json").unlink()
            model = convert(alone, tmp_path / f"{config}-model", "hf")
            assert held_out_loss(model, hmm_folder) == pytest.approx(held_out_loss(checkpoint, hmm_folder), abs=1e-6)
    assert held_out_loss(checkpoint, hmm_folder) == pytest.approx(held_out_loss(one_process, hmm_folder), abs=1e-4)


def test_processes_that_do_not_see_each_other_are_refused(program, tmp_path):
    """The launcher sets WORLD_SIZE, but the Trainer is alone: there would be two runs on half the data each."""
    code = f"""
from hmm_datasets.runtime.one_line_errors import one_line_errors
from hmm_datasets.training import settings
settings._fit_to_machine = lambda _: None
with one_line_errors():
    settings.PretrainSettings(output_dir={str(tmp_path)!r}, max_steps=1, global_batch_size=16)
"""
    result = program.run("-c", code, WORLD_SIZE="2", timeout=500)
    assert result.returncode == 2
    assert "error: the launcher started 2 processes that do not see each other" in result.stderr
