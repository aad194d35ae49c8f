"""What a run consumes, told at every log step: tokens, arithmetic, time and where it goes, memory.

Mixed into a Trainer. A step is: waiting for data, forward, backward, the optimizer, and the rest (logging, callbacks,
gathering of counts, evaluations and checkpoints since the last log step). On a GPU the parts are measured by events on
its stream, read at log steps alone, so that nothing waits for them; on a CPU by the clock. Times are rank 0's; tokens
are all ranks', padding apart.
"""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import TrainerCallback

from .devices import peak_flops
from .flops import flops_per_token


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


class _OptimizerClock(TrainerCallback):
    def __init__(self, watch: Stopwatch):
        self._watch = watch

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        self._watch.begin("optimizer")

    def on_optimizer_step(self, args, state, control, **kwargs):
        self._watch.end("optimizer")


class Accounting:
    """Mixed into a Trainer whose settings mix in [`~hmm_datasets.training.settings.GlobalBatch`].

    Adds to every row that has a loss: `step_seconds` and of it `data_seconds`, `forward_seconds`, `backward_seconds`,
    `optimizer_seconds`, all a step (DeepSpeed steps its optimizer within the backward pass); `tokens_per_second` and
    `samples_per_second` over all ranks, `tokens_per_second_per_device`; `flops` so far, and `mfu` where the device's
    peak is known; `memory_allocated` and `memory_reserved` on a GPU, at most, in bytes; `seconds_left`; `cost` of this
    start so far, where `price_per_hour` says what a device costs.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._watch = Stopwatch(self.args.device)
        self._flops_per_token: int | None = None
        self._marked: tuple[float, int, int] | None = None
        self._spent = 0.0
        self.add_callback(_OptimizerClock(self._watch))

    def get_batch_samples(self, *args, **kwargs):
        """The micro-batches of a step; what this takes is waiting for data."""
        if self._marked is None:
            self._mark()
        with self._watch.waiting("data"):
            return super().get_batch_samples(*args, **kwargs)

    def compute_loss(self, model, inputs, *args, **kwargs):
        """The forward pass."""
        if self._flops_per_token is None:
            length = inputs["input_ids"].shape[1]
            self._flops_per_token = flops_per_token(self.accelerator.unwrap_model(model), length)
        if not model.training:
            return super().compute_loss(model, inputs, *args, **kwargs)
        with self._watch.part("forward"):
            return super().compute_loss(model, inputs, *args, **kwargs)

    def training_step(self, *args, **kwargs):
        """Forward and backward of a micro-batch."""
        with self._watch.part("forward and backward"):
            return super().training_step(*args, **kwargs)

    def log(self, logs: dict[str, float], *args, **kwargs) -> None:
        """Add the accounts to a row with a loss."""
        if "loss" in logs and self._marked is not None:
            logs |= self._accounts()
            self._mark()
        super().log(logs, *args, **kwargs)

    def _mark(self) -> None:
        self._marked = (time.perf_counter(), self.state.global_step, self.state.num_input_tokens_seen)

    def _accounts(self) -> dict[str, float]:
        began, step, tokens = self._marked
        steps, tokens = self.state.global_step - step, self.state.num_input_tokens_seen - tokens
        parts = self._watch.collect()
        seconds = time.perf_counter() - began
        if steps == 0 or seconds == 0:
            return {}
        forward = parts.get("forward", 0.0)
        rate, devices = tokens / seconds, self.args.world_size
        found = {
            "step_seconds": seconds / steps,
            "data_seconds": parts.get("data", 0.0) / steps,
            "forward_seconds": forward / steps,
            "backward_seconds": (parts.get("forward and backward", 0.0) - forward) / steps,
            "optimizer_seconds": parts.get("optimizer", 0.0) / steps,
            "tokens_per_second": rate,
            "tokens_per_second_per_device": rate / devices,
            "samples_per_second": steps * self.args.global_batch_size / seconds,
            "flops": float(self._flops_per_token * self.state.num_input_tokens_seen),
            "seconds_left": (self.state.max_steps - self.state.global_step) * seconds / steps,
        }
        if self.args.device.type == "cuda":
            precision = "bf16" if self.args.bf16 else "fp16" if self.args.fp16 else "fp32"
            peak = peak_flops(torch.cuda.get_device_name(self.args.device), precision)
            if peak is not None:
                found["mfu"] = rate * self._flops_per_token / (devices * peak)
            found["memory_allocated"] = float(torch.cuda.max_memory_allocated(self.args.device))
            found["memory_reserved"] = float(torch.cuda.max_memory_reserved(self.args.device))
        if self.args.price_per_hour is not None:
            self._spent += seconds / 3600 * devices * self.args.price_per_hour
            found["cost"] = self._spent
        return found
