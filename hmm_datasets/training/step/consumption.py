"""What a run consumes, logged at every log step: tokens, FLOPs, time by part of the step, memory.

A step consists of waiting for data, forward, backward, the optimizer, and the rest (logging, callbacks, gathering of
counts, evaluations and checkpoints since the last log step). On a GPU the parts are measured by events on its stream,
which are read only at log steps, so measuring does not stall the GPU; on a CPU they are measured by the clock. Times
are those of rank 0. Tokens and FLOPs are summed over all ranks, without padding, and saved with the checkpoint.

Totals of a run over all its starts: rows, skipped steps, cost.

Says in the heartbeat of this process which part of which step it is in.

Number of tokens of a micro-batch on all ranks, without padding, for rows that have no attention mask.
"""

import functools
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from accelerate import Accelerator
from transformers import TrainerCallback

from ...compat.torch import on_compilations
from ...compat.transformers import ExportableState
from ...data.packing import count_tokens
from ...runtime import heartbeats
from ..plan.compute import peak_flops, sequence_lengths, unit_flops
from .component import Component

if TYPE_CHECKING:
    from ..trainer import StepTrainer


class RunTotals(TrainerCallback, ExportableState):
    """Totals of a run over all its starts, saved in `trainer_state.json` together with the Trainer's own counts.

    Work lost between a checkpoint and a crash is in none of them.

    Args:
        trainer ([`~hmm_datasets.training.trainer.StepTrainer`]): the trainer of the run.

    Attributes:
        skipped_steps (`int`): steps that changed no weight.
        cost (`float`): money at the price per hour.
        rows (`int`): rows trained on, in the order of the data set; so also the number of the next row, without those
            that are skipped.
        seconds (`float`): time of training by a monotonic clock, with evaluations and checkpoints.
        tokens (`int`): tokens trained on in these seconds, fewer than all if an earlier version began the run.
        steps (`int`): steps in these seconds.
        logs (`dict`): what was computed since the latest row of the log, which the next row is a mean of.
    """

    def __init__(self, trainer: "StepTrainer"):
        self._trainer = trainer
        self._began: tuple[float, int, int] | None = None
        self.skipped_steps = 0
        self.cost = 0.0
        self.rows = 0
        self.seconds, self.tokens, self.steps = 0.0, 0, 0
        self.logs: dict[str, Any] = {}

    def state(self) -> dict:
        """The totals in the form that transformers saves."""
        self._measure()
        names = ("skipped_steps", "cost", "rows", "seconds", "tokens", "steps", "logs")
        return {"args": {}, "attributes": {name: getattr(self, name) for name in names}}

    def on_train_begin(self, args, state, control, **kwargs):
        """Continue from the totals of the checkpoint; one written without totals leaves them at 0."""
        saved = state.stateful_callbacks.setdefault(type(self).__name__, self.state())
        vars(self).update(saved["attributes"])
        self._began = (time.monotonic(), state.num_input_tokens_seen, state.global_step)
        if self._trainer.start is not None:
            self._trainer.continue_logs(self.logs)

    def on_train_end(self, args, state, control, **kwargs):
        """Stop measuring."""
        self._measure()
        self._began = None

    def note_logs(self) -> None:
        """Note what the next row of the log is a mean of; a collective, before a checkpoint is written."""
        self.logs = self._trainer.logs_so_far()

    def _measure(self) -> None:
        if self._began is None:
            return
        state, now = self._trainer.state, time.monotonic()
        began, tokens, step = self._began
        self.seconds += now - began
        self.tokens += state.num_input_tokens_seen - tokens
        self.steps += state.global_step - step
        self._began = (now, state.num_input_tokens_seen, state.global_step)


@functools.cache
def _heed_compilations() -> None:
    on_compilations(heartbeats.compiling)


class Phases(Component):
    """Enters the phases of a step. It is the first component, so that its phases include the work of the others."""

    def __init__(self, trainer: "StepTrainer"):
        super().__init__(trainer)
        _heed_compilations()

    def before_batches(self) -> None:
        """The step begins, and waits for its rows."""
        heartbeats.enter("data", self.trainer.state.global_step + 1)

    def before_micro_batch(self, inputs: dict[str, Any]) -> None:
        """Count the tokens of this process."""
        if "input_ids" in inputs:
            heartbeats.count(inputs["input_ids"].numel())

    def before_forward(self, inputs: dict[str, Any]) -> None:
        """The forward pass of a micro-batch begins."""
        if self.trainer.model.training:
            heartbeats.enter("forward")

    def after_forward(self, model, labels, scores, loss, num_items) -> torch.Tensor:
        """The backward pass of a micro-batch begins."""
        if model.training:
            heartbeats.enter("backward")
        return loss

    def before_optimizer(self) -> None:
        """All that is left of the step, up to the rows of the next."""
        heartbeats.enter("optimizer")


class Stopwatch:
    """Seconds spent in named parts.

    Args:
        device (`torch.device`): the device; on a GPU the time of its stream is measured.
    """

    def __init__(self, device: torch.device):
        self._on_stream = device.type == "cuda"
        self._seconds: dict[str, float] = defaultdict(float)
        self._events: list[tuple[str, Any, Any]] = []
        self._begun: dict[str, Any] = {}

    def begin(self, name: str) -> None:
        """Start a part; it ends with [`Stopwatch.end`]."""
        self._begun[name] = self._now()

    def end(self, name: str) -> None:
        """End a part that was started."""
        begun, now = self._begun.pop(name), self._now()
        if self._on_stream:
            self._events.append((name, begun, now))
        else:
            self._seconds[name] += now - begun

    def add(self, name: str, seconds: float) -> None:
        """Add seconds measured by the clock to a part, such as the time that a GPU waited for data."""
        self._seconds[name] += seconds

    def _now(self) -> Any:
        if not self._on_stream:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def collect(self) -> dict[str, float]:
        """Return the seconds per part since the last call; waits for the GPU."""
        if self._events:
            torch.cuda.synchronize()
            for name, begin, end in self._events:
                self._seconds[name] += begin.elapsed_time(end) / 1000
        seconds, self._events, self._seconds = dict(self._seconds), [], defaultdict(float)
        return seconds


class Mark(NamedTuple):
    """Progress of a run at a moment."""

    seconds: float
    step: int
    rows: int
    tokens: int
    flops: float


class Throughput(Component):
    """Measures what a run consumes.

    It adds these columns to every row that has a loss:

    - `step_seconds`, and its parts `data_seconds`, `forward_seconds`, `backward_seconds` and `optimizer_seconds`, all
      per step (DeepSpeed steps its optimizer within the backward pass);
    - `tokens_per_second` and `samples_per_second` over all ranks, and `tokens_per_second_per_device`;
    - `flops` so far, and `mfu` if the device's peak is known;
    - `memory_allocated` and `memory_reserved`: maximum bytes, on a GPU;
    - `fraction` of the plan that is done, and `seconds_left` at the rate since this start, including evaluations and
      checkpoints;
    - `global_batch_size` of the step, and under float16 the `loss_scale`;
    - `skipped_steps` so far, and `cost` so far if `price_per_hour` is set.
    """

    def __init__(self, trainer):
        super().__init__(trainer)
        self._watch = Stopwatch(trainer.args.device)
        self._unit_flops: tuple[int, int] | None = None
        self._waiting_since = 0.0
        self._is_forward = False
        self._began: Mark | None = None
        self._marked: Mark | None = None

    def before_batches(self) -> None:
        """Start to measure the time spent waiting for data."""
        if self._marked is None:
            self._began = self._marked = self._mark()
        self._waiting_since = time.perf_counter()

    def after_batches(self) -> None:
        """Add the time spent waiting for data."""
        self._watch.add("data", time.perf_counter() - self._waiting_since)

    def before_micro_batch(self, inputs: dict[str, Any]) -> None:
        """Start to measure forward and backward."""
        self._watch.begin("forward and backward")

    def after_micro_batch(self, loss: torch.Tensor) -> torch.Tensor:
        """Stop measuring forward and backward."""
        self._watch.end("forward and backward")
        return loss

    def before_forward(self, inputs: dict[str, Any]) -> None:
        """Start to measure the forward pass, in training."""
        self._is_forward = self.trainer.model.training
        if self._is_forward:
            self._watch.begin("forward")

    def after_forward(self, model, labels, scores, loss, num_items) -> torch.Tensor:
        """Stop measuring the forward pass."""
        if self._is_forward:
            self._watch.end("forward")
        return loss

    def before_optimizer(self) -> None:
        """Start to measure the optimizer's step."""
        self._watch.begin("optimizer")

    def after_optimizer(self) -> None:
        """Stop measuring the optimizer's step."""
        self._watch.end("optimizer")

    def flops_of(self, inputs: dict[str, Any]) -> int:
        """FLOPs of a micro-batch on this rank."""
        if self._unit_flops is None:
            self._unit_flops = unit_flops(self.trainer.model)
        return sum(unit * count for unit, count in zip(self._unit_flops, sequence_lengths(inputs), strict=True))

    def before_log(self, row: dict[str, float]) -> None:
        """Add the columns, computed since the last row."""
        if self._marked is not None:
            row |= self._figures()

    def fraction_done(self) -> float:
        """Share of the planned rows that were trained on; a share of steps would be wrong if steps differ in size."""
        schedule, state = self.trainer.schedule, self.trainer.state
        return schedule.rows_before(state.global_step) / schedule.rows_before(state.max_steps)

    def _mark(self) -> Mark:
        trainer, state = self.trainer, self.trainer.state
        rows = trainer.schedule.rows_before(state.global_step)
        return Mark(time.perf_counter(), state.global_step, rows, state.num_input_tokens_seen, state.total_flos)

    def _figures(self) -> dict[str, float]:
        before, now = self._marked, self._mark()
        parts = self._watch.collect()
        steps, seconds = now.step - before.step, now.seconds - before.seconds
        if steps == 0 or seconds == 0:
            return {}
        self._marked = now
        forward = parts.get("forward", 0.0)
        rate, devices = (now.tokens - before.tokens) / seconds, self.trainer.args.world_size
        left = self.trainer.schedule.rows_before(self.trainer.state.max_steps) - now.rows
        found = {
            "step_seconds": seconds / steps,
            "data_seconds": parts.get("data", 0.0) / steps,
            "forward_seconds": forward / steps,
            "backward_seconds": (parts.get("forward and backward", 0.0) - forward) / steps,
            "optimizer_seconds": parts.get("optimizer", 0.0) / steps,
            "tokens_per_second": rate,
            "tokens_per_second_per_device": rate / devices,
            "samples_per_second": (now.rows - before.rows) / seconds,
            "flops": now.flops,
            "fraction": self.fraction_done(),
            "seconds_left": left * (now.seconds - self._began.seconds) / (now.rows - self._began.rows),
            "global_batch_size": self.trainer.schedule.size(now.step - 1),
            "skipped_steps": self.trainer.totals.skipped_steps,
        }
        if (scale := self._loss_scale()) is not None:
            found["loss_scale"] = scale
        if self.trainer.args.device.type == "cuda":
            peak = peak_flops(torch.cuda.get_device_name(self.trainer.args.device), self.trainer.args.mixed_precision)
            if peak is not None:
                found["mfu"] = (now.flops - before.flops) / (seconds * devices * peak)
            found["memory_allocated"] = float(torch.cuda.max_memory_allocated(self.trainer.args.device))
            found["memory_reserved"] = float(torch.cuda.max_memory_reserved(self.trainer.args.device))
        if self.trainer.args.price_per_hour is not None:
            self.trainer.totals.cost += seconds / 3600 * devices * self.trainer.args.price_per_hour
            found["cost"] = self.trainer.totals.cost
        return found

    def _loss_scale(self) -> float | None:
        """What the loss is multiplied by under float16, by torch's scaler or by DeepSpeed; None otherwise."""
        scaler = self.trainer.accelerator.scaler
        if scaler is not None:
            return float(scaler.get_scale())
        if self.trainer.is_deepspeed_enabled and self.trainer.args.fp16:
            return float(self.trainer.deepspeed.optimizer.loss_scale)
        return None


def count_on_all_ranks(inputs: dict[str, Any], accelerator: Accelerator) -> int:
    """The number of tokens that all ranks read in this micro-batch.

    The padding of packed rows is known from labels and positions. Other rows have no padding and the same length on
    every rank, so nothing is communicated.

    Args:
        inputs (`dict`): a micro-batch without `attention_mask`.
        accelerator ([`~accelerate.Accelerator`]): the accelerator of the run.
    """
    count = count_tokens(inputs)
    if isinstance(count, int):
        return count * accelerator.num_processes
    return accelerator.gather(count).sum().item()
