"""Stopping a run by signal, by file or by a time limit, with a checkpoint of the step just done.

`hmm_datasets.stop_requests` lists what asks for it. Before a time limit a run stops early enough that the checkpoint
is written in time. A signal reaches ranks at different steps, so after each step the ranks agree on the maximum of
their requests, in a collective of 8 bytes.

If another process or machine dies without notice, no rank waits for it longer than `ddp_timeout`.
"""

import time
from datetime import timedelta

import torch
from transformers import TrainerCallback

from ...stop_requests import NOTHING, STOP, StopRequests


class Interruptions(TrainerCallback):
    """Saves, or saves and stops, on request.

    Args:
        trainer ([`~hmm_datasets.training.trainer.StepTrainer`]): the trainer of the run.
        time_limit (`timedelta`, *optional*): time limit of the job, counted from the creation of this callback.
    """

    def __init__(self, trainer, time_limit: timedelta | None = None):
        self.trainer = trainer
        self.interrupted = False
        self._requests = StopRequests(trainer.args.output_dir, time_limit)
        self._longest_save = self._longest_step = 0.0
        self._step_ended: float | None = None

    @property
    def reason(self) -> str | None:
        """What asked to stop, if anything on this rank."""
        return self._requests.reason

    def on_train_begin(self, args, state, control, **kwargs):
        """Listen for requests, and bound the time to wait for other ranks."""
        if args.world_size > 1:
            _bound_waiting(timedelta(seconds=args.ddp_timeout))
        self._requests.__enter__()

    def on_train_end(self, args, state, control, **kwargs):
        """Stop listening."""
        self._requests.__exit__()

    def on_step_end(self, args, state, control, **kwargs):
        """Agree with the other ranks on a request and pass it to the Trainer."""
        now = time.monotonic()
        if self._step_ended is not None:
            self._longest_step = max(self._longest_step, now - self._step_ended)
        needed = 2 * self._longest_save + 2 * self._longest_step
        wanted = self._agree(self._requests.look(needed=needed, main=state.is_world_process_zero))
        self._step_ended = now
        if wanted == NOTHING:
            return
        self._requests.forget()
        control.should_save = True
        if wanted == STOP and state.global_step < state.max_steps:
            control.should_training_stop = self.interrupted = True
        what = "saving and stopping" if self.interrupted else "saving"
        self.trainer.say(f"step {state.global_step:,}: {what} ({self.reason or 'requested on another rank'})")

    def on_save(self, args, state, control, **kwargs):
        """Measure how long saving takes, for the time limit."""
        if self._step_ended is not None:
            self._longest_save = max(self._longest_save, time.monotonic() - self._step_ended)
            self._step_ended = None

    def _agree(self, wanted: int) -> int:
        if self.trainer.args.world_size == 1:
            return wanted
        number = torch.tensor(wanted, device=self.trainer.args.device)
        torch.distributed.all_reduce(number, torch.distributed.ReduceOp.MAX)
        return int(number)


def _bound_waiting(timeout: timedelta) -> None:
    """Set the timeout of all process groups; the Trainer sets only that of the first, and not those of DeepSpeed."""
    from ...compat.torch import set_timeout_of_all_groups

    set_timeout_of_all_groups(timeout)
