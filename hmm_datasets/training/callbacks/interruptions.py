"""Stopping a run by signal, file or time limit, with a checkpoint of the step just done.

`hmm_datasets.runtime.stop_requests` lists what asks for it. Before a time limit a run stops early enough that the
checkpoint is written in time. A signal reaches ranks at different steps, so in each step the ranks agree on the
maximum of their requests, which are gathered together with their losses.

If another process or machine dies without notice, no rank waits for it longer than `ddp_timeout`.
"""

import time
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
from transformers import TrainerCallback

from ...compat.torch import set_timeout_of_all_groups
from ...runtime.stop_requests import NOTHING, STOP, StopRequests

if TYPE_CHECKING:
    from ..run_context import RunContext
    from ..step.loss import StepLoss


class Interruptions(TrainerCallback):
    """Saves, or saves and stops, on request.

    Args:
        run ([`~hmm_datasets.training.run_context.RunContext`]): the run.
        step_loss ([`~hmm_datasets.training.step.loss.StepLoss`]): gathers the requests of the ranks.
        time_limit (`timedelta`, *optional*): time limit of the job, counted from its first start.

    Attributes:
        interrupted (`bool`): whether it has stopped the run.
        reason (`str`, *optional*): what asked for it, on whatever rank.
    """

    def __init__(self, run: "RunContext", step_loss: "StepLoss", time_limit: timedelta | None = None):
        self._run, self._step_loss = run, step_loss
        self.interrupted = False
        self.reason: str | None = None
        self._requests = StopRequests(run.args.output_dir, time_limit)
        self._longest_save = self._longest_step = 0.0
        self._step_ended: float | None = None

    def on_train_begin(self, args, state, control, **kwargs):
        """Listen for requests, and bound the time to wait for other ranks."""
        if args.world_size > 1:  # the Trainer sets the timeout of the first group alone, and not those of DeepSpeed
            set_timeout_of_all_groups(timedelta(seconds=args.ddp_timeout))
            self._step_loss.request = self._look
        self._requests.__enter__()

    def on_train_end(self, args, state, control, **kwargs):
        """Stop listening."""
        self.close()

    def close(self) -> None:
        """Stop listening, also after an error, which the Trainer reports to no callback.

        A handler left behind would keep this process, and the worker processes that it forks later, from ending on
        SIGTERM, and a `multiprocessing.Pool` waits for them without end.
        """
        self._requests.__exit__()

    def on_step_end(self, args, state, control, **kwargs):
        """Pass a request, on which the ranks have agreed, to the Trainer."""
        now = time.monotonic()
        if self._step_ended is not None:
            self._longest_step = max(self._longest_step, now - self._step_ended)
        wanted = self._step_loss.requested if args.world_size > 1 else self._look()
        self._step_ended = now
        if wanted == NOTHING:
            return
        self.reason = self._reason()
        self._requests.forget(wanted)
        control.should_save = True
        if wanted == STOP and state.global_step < state.max_steps:
            control.should_training_stop = self.interrupted = self._run.is_interrupted = True
        what = "saving and stopping" if self.interrupted else "saving"
        self._run.say(f"step {state.global_step:,}: {what} ({self.reason})")

    def on_save(self, args, state, control, **kwargs):
        """Measure how long saving takes, for the time limit."""
        if self._step_ended is not None:
            self._longest_save = max(self._longest_save, time.monotonic() - self._step_ended)
            self._step_ended = None

    def _reason(self) -> str | None:
        """What was asked for, on the first rank that was asked; a collective."""
        reasons = [self._requests.reason]
        if self._run.args.world_size > 1:
            reasons *= self._run.args.world_size
            torch.distributed.all_gather_object(reasons, self._requests.reason)
        return next(filter(None, reasons), None)

    def _look(self) -> int:
        """What is asked for on this rank."""
        needed = 2 * self._longest_save + 2 * self._longest_step
        return self._requests.look(needed=needed, main=self._run.is_world_process_zero())
