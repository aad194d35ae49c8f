"""What a run consumes, told at every log step: tokens, arithmetic, time and where it goes, memory.

Mixed into a Trainer. A step is: waiting for data, forward, backward, the optimizer, and the rest (logging, callbacks,
gathering of counts, evaluations and checkpoints since the last log step). On a GPU the parts are measured by events on
its stream, read at log steps alone, so that nothing waits for them; on a CPU by the clock. Times are rank 0's; tokens
and FLOPs are all ranks', padding apart, summed batch by batch and saved with the checkpoint.
"""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from transformers import TrainerCallback

from .plan.devices import peak_flops
from .plan.flops import sequence_lengths, unit_flops
from .skips import FiniteGradients


class Stopwatch:
    """Seconds spent in named parts.

    Args:
        device (`torch.device`): whose time; that of a GPU is its stream's.
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
        """End a part that was begun."""
        begun, now = self._begun.pop(name), self._now()
        if self._on_stream:
            self._events.append((name, begun, now))
        else:
            self._seconds[name] += now - begun

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time what is inside."""
        self.begin(name)
        yield
        self.end(name)

    @contextmanager
    def waiting(self, name: str) -> Iterator[None]:
        """Time what is inside by the clock on any device: what keeps a GPU waiting."""
        began = time.perf_counter()
        yield
        self._seconds[name] += time.perf_counter() - began

    def _now(self) -> Any:
        if not self._on_stream:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def collect(self) -> dict[str, float]:
        """The seconds since the last time; waits for the GPU."""
        if self._events:
            torch.cuda.synchronize()
            for name, begin, end in self._events:
                self._seconds[name] += begin.elapsed_time(end) / 1000
        seconds, self._events, self._seconds = dict(self._seconds), [], defaultdict(float)
        return seconds


class Mark(NamedTuple):
    """How far a run had come, and when."""

    seconds: float
    step: int
    rows: int
    tokens: int
    flops: float


class _OptimizerClock(TrainerCallback):
    def __init__(self, watch: Stopwatch):
        self._watch = watch

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        self._watch.begin("optimizer")

    def on_optimizer_step(self, args, state, control, **kwargs):
        self._watch.end("optimizer")


class Accounting(FiniteGradients):
    """Mixed into a Trainer whose settings mix in [`~hmm_datasets.training.settings.GlobalBatch`].

    Adds to every row that has a loss: `step_seconds` and of it `data_seconds`, `forward_seconds`, `backward_seconds`,
    `optimizer_seconds`, all a step (DeepSpeed steps its optimizer within the backward pass); `tokens_per_second` and
    `samples_per_second` over all ranks, `tokens_per_second_per_device`; `flops` so far, and `mfu` where the device's
    peak is known; `memory_allocated` and `memory_reserved` on a GPU, at most, in bytes; `fraction` of the plan, and
    `seconds_left` at the rate of this start, evaluations and checkpoints included; `skipped_steps` so far; `cost` so
    far, where `price_per_hour` says what a device costs.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._watch = Stopwatch(self.args.device)
        self._unit_flops: tuple[int, int] | None = None
        self._began: Mark | None = None
        self._marked: Mark | None = None
        self.add_callback(_OptimizerClock(self._watch))

    def get_batch_samples(self, *args, **kwargs):
        """The micro-batches of a step; what this takes is waiting for data."""
        if self._marked is None:
            self._began = self._marked = self._mark()
        with self._watch.waiting("data"):
            return super().get_batch_samples(*args, **kwargs)

    def compute_loss(self, model, inputs, *args, **kwargs):
        """The forward pass."""
        if not model.training:
            return super().compute_loss(model, inputs, *args, **kwargs)
        with self._watch.part("forward"):
            return super().compute_loss(model, inputs, *args, **kwargs)

    def training_step(self, *args, **kwargs):
        """Forward and backward of a micro-batch."""
        with self._watch.part("forward and backward"):
            return super().training_step(*args, **kwargs)

    def floating_point_ops(self, inputs) -> int:
        """FLOPs of a micro-batch on this rank; the Trainer adds them up and saves the sum with its checkpoints."""
        if self._unit_flops is None:
            self._unit_flops = unit_flops(self.model)
        return sum(unit * count for unit, count in zip(self._unit_flops, sequence_lengths(inputs), strict=True))

    def store_flos(self) -> None:
        """Add the FLOPs of all ranks to the sum, in float64; the Trainer adds in float32, to 7 digits."""
        flops = torch.tensor(self.current_flos, dtype=torch.float64, device=self.args.device)
        if self.args.world_size > 1:
            torch.distributed.all_reduce(flops)
        self.state.total_flos += flops.item()
        self.current_flos = 0

    def fraction_done(self) -> float:
        """Share of the plan's rows that were trained on; not of its steps, which a ramp makes unequal."""
        ramp = self.args.ramp
        return ramp.rows_before(self.state.global_step) / ramp.rows_before(self.state.max_steps)

    def log(self, logs: dict[str, float], *args, **kwargs) -> None:
        """Add the accounts to a row with a loss."""
        if "loss" in logs and self._marked is not None:
            logs |= self._accounts()
        super().log(logs, *args, **kwargs)

    def _mark(self) -> Mark:
        state = self.state
        rows = self.args.ramp.rows_before(state.global_step)
        return Mark(time.perf_counter(), state.global_step, rows, state.num_input_tokens_seen, state.total_flos)

    def _accounts(self) -> dict[str, float]:
        before, now = self._marked, self._mark()
        parts = self._watch.collect()
        steps, seconds = now.step - before.step, now.seconds - before.seconds
        if steps == 0 or seconds == 0:
            return {}
        self._marked = now
        forward = parts.get("forward", 0.0)
        rate, devices = (now.tokens - before.tokens) / seconds, self.args.world_size
        left = self.args.ramp.rows_before(self.state.max_steps) - now.rows
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
            "skipped_steps": self.tally.skipped_steps,
        }
        if self.args.device.type == "cuda":
            peak = peak_flops(torch.cuda.get_device_name(self.args.device), self.args.mixed_precision)
            if peak is not None:
                found["mfu"] = (now.flops - before.flops) / (seconds * devices * peak)
            found["memory_allocated"] = float(torch.cuda.max_memory_allocated(self.args.device))
            found["memory_reserved"] = float(torch.cuda.max_memory_reserved(self.args.device))
        if self.args.price_per_hour is not None:
            self.tally.cost += seconds / 3600 * devices * self.args.price_per_hour
            found["cost"] = self.tally.cost
        return found
