"""What a run consumes, logged at every log step: tokens, FLOPs, time by part of the step, memory.

A step consists of waiting for data, forward, backward, the optimizer, and the rest (logging, callbacks, gathering of
counts, evaluations and checkpoints since the last log step). On a GPU the parts are measured by events on its stream,
which are read only at log steps, so measuring does not stall the GPU; on a CPU they are measured by the clock. Times
are those of rank 0. Tokens and FLOPs are summed over all ranks, without padding, and saved with the checkpoint.
"""

import time
from collections import defaultdict
from typing import Any, NamedTuple

import torch

from ...runtime.host_memory import read_host_memory
from ..plan.accelerators import peak_flops
from ..plan.flops import sequence_lengths, unit_flops
from ..run_context import RunContext
from .component import Component


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
    - `host_memory` and `shared_memory`: bytes in use on the host of rank 0, and in its `/dev/shm`;
    - `fraction` of the plan that is done, and `seconds_left` at the rate since this start, including evaluations and
      checkpoints;
    - `global_batch_size` of the step, and under float16 the `loss_scale`;
    - `skipped_steps` so far, and `cost` so far if `price_per_hour` is set.
    """

    def __init__(self, run: RunContext):
        super().__init__(run)
        self._watch = Stopwatch(run.args.device)
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
        self._is_forward = self.run.model.training
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
            self._unit_flops = unit_flops(self.run.model)
        return sum(unit * count for unit, count in zip(self._unit_flops, sequence_lengths(inputs), strict=True))

    def before_log(self, row: dict[str, float]) -> None:
        """Add the columns, computed since the last row."""
        if self._marked is not None:
            row |= self._figures()

    def fraction_done(self) -> float:
        """Share of the planned rows that were trained on; a share of steps would be wrong if steps differ in size."""
        schedule, state = self.run.schedule, self.run.state
        return schedule.rows_before(state.global_step) / schedule.rows_before(state.max_steps)

    def _mark(self) -> Mark:
        state = self.run.state
        rows = self.run.schedule.rows_before(state.global_step)
        return Mark(time.perf_counter(), state.global_step, rows, state.num_input_tokens_seen, state.total_flos)

    def _figures(self) -> dict[str, float]:
        before, now = self._marked, self._mark()
        parts = self._watch.collect()
        steps, seconds = now.step - before.step, now.seconds - before.seconds
        if steps == 0 or seconds == 0:
            return {}
        self._marked = now
        forward = parts.get("forward", 0.0)
        rate, devices = (now.tokens - before.tokens) / seconds, self.run.args.world_size
        left = self.run.schedule.rows_before(self.run.state.max_steps) - now.rows
        figures = {
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
            "global_batch_size": self.run.schedule.size(now.step - 1),
            "skipped_steps": self.run.totals.skipped_steps,
        }
        memory = read_host_memory()
        figures |= {"host_memory": float(memory.used), "shared_memory": float(memory.shared_used)}
        if (scale := self._loss_scale()) is not None:
            figures["loss_scale"] = scale
        if self.run.args.device.type == "cuda":
            peak = peak_flops(torch.cuda.get_device_name(self.run.args.device), self.run.args.mixed_precision)
            if peak is not None:
                figures["mfu"] = (now.flops - before.flops) / (seconds * devices * peak)
            figures["memory_allocated"] = float(torch.cuda.max_memory_allocated(self.run.args.device))
            figures["memory_reserved"] = float(torch.cuda.max_memory_reserved(self.run.args.device))
        if self.run.args.price_per_hour is not None:
            self.run.totals.cost += seconds / 3600 * devices * self.run.args.price_per_hour
            figures["cost"] = self.run.totals.cost
        return figures

    def _loss_scale(self) -> float | None:
        """What the loss is multiplied by under float16, by torch's scaler or by DeepSpeed; None otherwise."""
        scaler = self.run.accelerator.scaler
        if scaler is not None:
            return float(scaler.get_scale())
        if self.run.is_deepspeed_enabled and self.run.args.fp16:
            return float(self.run.deepspeed.optimizer.loss_scale)
        return None
