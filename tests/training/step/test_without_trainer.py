"""The components of a step work on a run that is no Trainer: they read nothing but what `RunContext` names."""

import contextlib
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import save_file
from transformers import TrainerState

from hmm_datasets.errors import InputError
from hmm_datasets.files import read_json, read_jsonl
from hmm_datasets.training.checkpoints.saving import Checkpoints
from hmm_datasets.training.run_context import RunContext
from hmm_datasets.training.step.finite_loss import FiniteLoss
from hmm_datasets.training.step.logged_rows import ROW_INDEX, LoggedRows
from hmm_datasets.training.step.loss import StepLoss
from hmm_datasets.training.step.scores import LogitScores
from hmm_datasets.training.step.skipped_steps import SkippedSteps
from hmm_datasets.training.step.spikes import LossSpikes
from hmm_datasets.training.step.z_loss import ZLoss


@dataclass
class Run:
    """A run of one linear layer, which has the attributes of `RunContext` and no others."""

    args: Any
    state: TrainerState = field(default_factory=lambda: TrainerState(global_step=6, max_steps=10))
    accelerator: Accelerator = field(default_factory=lambda: Accelerator(cpu=True))
    model: torch.nn.Module = field(default_factory=lambda: torch.nn.Linear(2, 3))
    deepspeed: Any = None
    current_gradient_accumulation_steps: int = 2
    schedule: Any = None
    totals: Any = field(default_factory=lambda: SimpleNamespace(skipped_steps=0, cost=0.0))
    is_interrupted: bool = False
    is_deepspeed_enabled: bool = False
    is_fsdp_enabled: bool = False
    said: list[str] = field(default_factory=list)

    def say(self, line: str) -> None:
        self.said.append(line)

    def is_world_process_zero(self) -> bool:
        return True


@pytest.fixture
def run(tmp_path) -> Run:
    settings = {"device": torch.device("cpu"), "world_size": 1, "process_index": 0, "fp16": False, "on_spike": "skip"}
    settings |= {"average_tokens_across_devices": True, "max_grad_norm": 1.0, "z_loss": 0.5, "should_save": True}
    settings |= {
        "save_total_limit": 1,
        "keep_every": None,
        "saves_per_doubling": 0,
        "copies": None,
        "push_to_hub": False,
        "ddp_timeout": 10,
    }
    settings |= {"output_dir": str(tmp_path), "save_only_model": True, "to_dict": lambda: {"seed": 0}}
    return Run(SimpleNamespace(**settings))


def step_of(run: Run, component: StepLoss, losses: list[float]) -> None:
    component.before_batches()
    for loss in losses:
        component.before_micro_batch({"labels": torch.tensor([[1, 1, -100]])})
        component.after_micro_batch(torch.tensor(loss))
    component.after_gradient(run.model, 2.0)


def test_this_run_is_all_that_the_protocol_names(run):
    assert set(Run.__dataclass_fields__) - {"said"} == RunContext.__annotations__.keys()


def test_the_loss_of_a_step_is_the_sum_of_its_micro_batches(run):
    component = StepLoss(run, lambda count: [[8], [9]][:count])
    step_of(run, component, [1.0, 2.0])
    assert (component.loss, component.norm) == (3.0, 2.0)
    assert [part["rows"] for part in component.of_all_ranks()[0]["micro_batches"]] == [[8], [9]]


def test_a_gradient_that_is_not_finite_is_dropped_and_counted(run):
    component = SkippedSteps(run)
    run.model(torch.ones(1, 2)).sum().backward()
    component.after_gradient(run.model, float("nan"))
    component.after_optimizer()
    assert run.model.weight.grad is None
    assert run.totals.skipped_steps == 1
    assert run.said == ["step 7: the norm of the gradient is nan; skipped (1 so far)"]


def test_a_spike_is_skipped_and_written_to_the_events(run, tmp_path):
    step_loss = StepLoss(run)
    component = LossSpikes(run, step_loss, lambda step: pytest.fail("on_spike is skip"))
    for loss in [2.0 + 0.01 * (number % 3) for number in range(60)] + [9.0]:
        run.model(torch.ones(1, 2)).sum().backward()
        step_of(run, step_loss, [loss])
        component.after_gradient(run.model, 2.0)
        component.after_optimizer()
    assert run.totals.skipped_steps == 1
    assert [event["kind"] for event in read_jsonl(tmp_path / "events.jsonl")] == ["spike", "skipped"]


class Model(torch.nn.Module):
    """Logits that are not finite, from one parameter."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(float("nan")))

    def forward(self, input_ids, **kwargs):
        return SimpleNamespace(logits=self.weight * torch.ones(*input_ids.shape, 4))


def test_a_loss_that_is_not_finite_ends_the_run_with_its_evidence(run, tmp_path):
    run.model, step_loss = Model(), StepLoss(run)
    step_loss.before_batches()
    step_loss.before_micro_batch({"input_ids": torch.zeros(1, 3, dtype=torch.long)})
    step_loss.after_micro_batch(torch.tensor(float("nan")))
    step_loss.after_gradient(run.model, 2.0)
    component = FiniteLoss(run, step_loss, lambda step: pytest.fail("on_spike is skip"), contextlib.nullcontext)
    with pytest.raises(InputError, match="step 7: the loss is nan on rank 0"):
        component.after_gradient(run.model, 2.0)
    assert read_json(tmp_path / "nan-step-7" / "evidence.json")["parameters_not_finite"] == ["weight"]


def test_the_z_loss_is_the_mean_square_of_the_log_normalizers(run):
    component, labels = ZLoss(run), torch.tensor([[0, 1]])
    run.model.train()
    scores = LogitScores(lambda: torch.zeros(1, 2, 4), labels)
    loss = component.after_forward(run.model, labels, scores, torch.tensor(1.0), None)
    assert loss.item() == pytest.approx(1.0 + 0.5 * torch.log(torch.tensor(4.0)).item() ** 2)


def test_rows_are_logged_and_taken_out_of_the_batch(run, tmp_path):
    batch = {"input_ids": torch.zeros(2, 3), ROW_INDEX: torch.tensor([4, 5])}
    LoggedRows(run).before_micro_batch(batch)
    assert batch.keys() == {"input_ids"}
    assert read_jsonl(tmp_path / "indices-0.jsonl") == [{"step": 7, "indices": [4, 5]}]


def test_a_checkpoint_is_moved_to_its_place_and_an_older_one_deleted(run, tmp_path):
    def write(folder):
        (folder / f"checkpoint-{run.state.global_step}").mkdir(parents=True)
        save_file({"weight": torch.zeros(2)}, folder / f"checkpoint-{run.state.global_step}" / "model.safetensors")

    parts = {"identity": lambda: {"data": {"seed": 0}}, "write_model": write, "tensors": list, "push": pytest.fail}
    checkpoints = Checkpoints(run, **parts)
    for run.state.global_step in (6, 8):
        checkpoints.save(write)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name[0] != ".") == ["checkpoint-8"]
