"""The disk that checkpoints need, and the ranks that a ramp allows."""

import random

import pytest
from transformers import LlamaForCausalLM

from hmm_datasets.data.sequences import HMMSequences
from hmm_datasets.errors import InputError
from hmm_datasets.hmm import processes
from hmm_datasets.operations.planning import plan_recipe
from hmm_datasets.training.callbacks.log_spaced import is_due
from hmm_datasets.training.checkpoints.inspection import list_steps
from hmm_datasets.training.model_configs import model_config
from hmm_datasets.training.plan.batch_schedule import BatchSchedule
from hmm_datasets.training.plan.checkpoint_disk import checkpoint_bytes, most_checkpoints
from hmm_datasets.training.run import train_and_save
from hmm_datasets.training.settings import PretrainSettings
from hmm_datasets.training.trainer import Pretrainer


def settings(folder, **given):
    common = {"max_steps": 12, "global_batch_size": 4, "per_device_train_batch_size": 4, "report_to": "none"}
    return PretrainSettings(str(folder), **common | given)


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/mlfoundations/open_lm/issues/154",
    "to know before training whether the disk has room for the checkpoints",
    "`plan` prints how many checkpoints there are at once, and the size of each; `preflight` the free space",
)
@pytest.mark.parametrize(
    ("given", "saved"),
    [
        ({"save_steps": 2, "save_total_limit": 1, "keep_every": 4}, [2, 4, 6, 8, 10, 12]),
        ({"save_steps": 5, "saves_per_doubling": 1, "save_total_limit": 1}, [1, 2, 4, 5, 8, 10, 12]),
        ({"save_steps": 0.25}, [3, 6, 9, 12]),
        ({"save_strategy": "no"}, []),
    ],
)
def test_a_run_has_as_many_checkpoints_as_planned_and_each_has_the_planned_size(given, saved, tmp_path):
    rows = HMMSequences(processes.mess3(0.15, 0.6), 7)
    model = LlamaForCausalLM(model_config("1m", vocab_size=rows.vocab_size, max_length=8))
    args = settings(tmp_path, **given)
    planned = most_checkpoints(args, 12)
    train_and_save(Pretrainer(model=model, args=args, train_dataset=rows), settings={}, data={})
    left, there, most = list_steps(tmp_path), [], 1
    for step in saved:  # with a limit the oldest one is deleted after the newest one is whole
        there = [step, *there]
        most, limit = max(most, len(there)), args.save_total_limit or 99
        kept = {step for step in there if step % (args.keep_every or 99) == 0 or is_due(step, args.saves_per_doubling)}
        there = [step for number, step in enumerate(there) if number < limit or step in kept]
    assert (planned, left) == (most, there)
    parameters = sum(weight.numel() for weight in model.parameters())
    planned_bytes = checkpoint_bytes(parameters, parameters, 2, 4, with_optimizer=True)
    for step in left:
        files = (tmp_path / f"checkpoint-{step}").rglob("*")
        size = sum(path.stat().st_size for path in files if path.is_file())
        assert planned_bytes <= size < 1.02 * planned_bytes + 100_000


def test_possible_ranks_are_those_that_the_schedule_does_not_refuse():
    draw = random.Random(0)
    for _ in range(40):
        unit, micro = draw.choice([1, 2, 6, 8]), draw.choice([1, 2, 3])
        stages = tuple((unit * draw.randint(1, 8), 3) for _ in range(draw.randint(0, 2)))
        schedule, allowed = BatchSchedule(stages, unit * 8), []
        for ranks in range(1, unit * 8 + 1):
            try:
                schedule.check_divides(ranks * micro)
            except InputError:
                continue
            if schedule.global_batch_size % (ranks * micro) == 0:
                allowed.append(ranks)
        assert schedule.possible_ranks(micro) == allowed


@pytest.mark.thorough
def test_a_plan_has_the_ranks_the_disk_and_the_time(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(
        f"hmm: mess3\nlength: 15\nmodel: d2\noutput_dir: {tmp_path / 'run'}\nglobal_batch_size: 32\n"
        "per_device_train_batch_size: 4\nbatch_ramp: ['16:3']\nassumed_rate: 1000\ntrain_tokens: 100_000_000\n"
    )
    plan = plan_recipe("pretrain", ["--config", str(path)])
    assert plan["possible_ranks"] == [1, 2, 4]
    assert plan["checkpoints"]["bytes"] == 12 * plan["parameters"]
    assert plan["time"]["seconds"] == plan["tokens"] / 1000
