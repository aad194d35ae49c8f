"""Totals of a run over all its starts: rows, tokens, steps, seconds, skipped steps and cost."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import psutil
from transformers import TrainerCallback

from ...compat.transformers import ExportableState

if TYPE_CHECKING:
    from ..run_context import RunContext


class RunTotals(TrainerCallback, ExportableState):
    """Totals of a run over all its starts, saved in `trainer_state.json` together with the Trainer's own counts.

    Work lost between a checkpoint and a crash is in none of them.

    Args:
        run ([`~hmm_datasets.training.run_context.RunContext`]): the run.
        logs_so_far (callable): what was computed since the latest row of the log; a collective.
        continue_logs (callable): continues with what a checkpoint noted.

    Attributes:
        skipped_steps (`int`): steps that changed no weight.
        cost (`float`): money at the price per hour.
        rows (`int`): rows trained on, in the order of the data set; so also the number of the next row, without those
            that are skipped.
        seconds (`float`): time of training by a monotonic clock, with evaluations and checkpoints.
        tokens (`int`): tokens trained on in these seconds, fewer than all if an earlier version began the run.
        steps (`int`): steps in these seconds.
        seconds_to_first_step (`float`, *optional*): from the start of this process to the end of its first step, with
            imports, the rendezvous of the ranks, opening data and model, and compiling.
        logs (`dict`): what was computed since the latest row of the log, which the next row is a mean of.
    """

    def __init__(
        self,
        run: "RunContext",
        logs_so_far: Callable[[], dict[str, Any]],
        continue_logs: Callable[[dict[str, Any]], None],
    ):
        self._run, self._logs_so_far, self._continue_logs = run, logs_so_far, continue_logs
        self._began: tuple[float, int, int] | None = None
        self.skipped_steps = 0
        self.cost = 0.0
        self.rows = 0
        self.seconds, self.tokens, self.steps = 0.0, 0, 0
        self.logs: dict[str, Any] = {}
        self.seconds_to_first_step: float | None = None

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
        self._continue_logs(self.logs)

    def on_step_end(self, args, state, control, **kwargs):
        """Measure how long it took until the first step was done."""
        if self.seconds_to_first_step is None:
            self.seconds_to_first_step = round(time.time() - psutil.Process().create_time(), 1)

    def on_train_end(self, args, state, control, **kwargs):
        """Stop measuring."""
        self._measure()
        self._began = None

    def note_logs(self) -> None:
        """Note what the next row of the log is a mean of; a collective, before a checkpoint is written."""
        self.logs = self._logs_so_far()

    def _measure(self) -> None:
        if self._began is None:
            return
        state, now = self._run.state, time.monotonic()
        began, tokens, step = self._began
        self.seconds += now - began
        self.tokens += state.num_input_tokens_seen - tokens
        self.steps += state.global_step - step
        self._began = (now, state.num_input_tokens_seen, state.global_step)
