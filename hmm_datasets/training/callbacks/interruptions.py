"""Stopping a run by signal, by file or by a time limit, with a checkpoint of the step just done.

These save and stop: SIGTERM; SIGUSR1, which Slurm sends before a job's end with `--signal=USR1@300`; SIGHUP, sent when
a terminal or an ssh connection closes; a file named `stop` in the run's folder; and the time limit, early enough that
the checkpoint is written in time. A SIGHUP that nohup has set to be ignored stays ignored. A file named `save` saves
and continues. A signal reaches ranks at different steps, so after each step the ranks agree on the maximum of their
requests, in a collective of 8 bytes.

If another process or machine dies without notice, no rank waits for it longer than `ddp_timeout`.
"""

import signal
import time
from datetime import timedelta
from pathlib import Path

import torch
from transformers import TrainerCallback

from ...errors import InputError

NOTHING, SAVE, STOP = 0, 1, 2

_LOOK_EVERY = 1.0  # seconds between checks for the files, which are slow on a network disk
_MARGIN = 60.0  # seconds kept free before the limit, in addition to the time that saving takes


class Interruptions(TrainerCallback):
    """Saves, or saves and stops, on request.

    Args:
        trainer ([`~hmm_datasets.training.trainer.StepTrainer`]): the trainer of the run.
        time_limit (`timedelta`, *optional*): time limit of the job, counted from the creation of this callback.
    """

    def __init__(self, trainer, time_limit: timedelta | None = None):
        self.trainer = trainer
        self.folder = Path(trainer.args.output_dir)
        self.deadline = None if time_limit is None else time.monotonic() + time_limit.total_seconds()
        self.reason: str | None = None
        self.interrupted = False
        self._wanted = NOTHING
        self._looked = 0.0
        self._longest_save = self._longest_step = 0.0
        self._step_ended: float | None = None
        self._handlers: dict[int, object] = {}

    def on_train_begin(self, args, state, control, **kwargs):
        """Install the signal handlers and bound the time to wait for other ranks."""
        if args.world_size > 1:
            _bound_waiting(timedelta(seconds=args.ddp_timeout))
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:
                self._handlers[number] = signal.signal(number, self._on_signal)

    def on_train_end(self, args, state, control, **kwargs):
        """Restore the signal handlers."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def on_step_end(self, args, state, control, **kwargs):
        """Agree with the other ranks on a request and pass it to the Trainer."""
        now = time.monotonic()
        if self._step_ended is not None:
            self._longest_step = max(self._longest_step, now - self._step_ended)
        self._look(now, state.is_world_process_zero)
        wanted = self._agree()
        self._step_ended = now
        if wanted == NOTHING:
            return
        self._wanted = NOTHING
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

    def _on_signal(self, number: int, frame) -> None:
        self._wanted, self.reason = STOP, signal.Signals(number).name

    def _look(self, now: float, is_main: bool) -> None:
        if not is_main:
            return
        needed = _MARGIN + 2 * self._longest_save + 2 * self._longest_step
        if self.deadline is not None and now + needed > self.deadline:
            self._wanted, self.reason = STOP, "the time limit is near"
        if now - self._looked < _LOOK_EVERY:
            return
        self._looked = now
        for name, wanted in (("save", SAVE), ("stop", STOP)):
            if (self.folder / name).exists():
                (self.folder / name).unlink()  # so that the next start does not stop at once
                self._wanted, self.reason = max(wanted, self._wanted), f"file {self.folder / name}"

    def _agree(self) -> int:
        if self.trainer.args.world_size == 1:
            return self._wanted
        number = torch.tensor(self._wanted, device=self.trainer.args.device)
        torch.distributed.all_reduce(number, torch.distributed.ReduceOp.MAX)
        return int(number)


def _bound_waiting(timeout: timedelta) -> None:
    """Set the timeout of all process groups; the Trainer sets only that of the first, and not those of DeepSpeed."""
    from ...compat.torch import set_timeout_of_all_groups

    set_timeout_of_all_groups(timeout)


def parse_time(text: str) -> timedelta:
    """Read a time as Slurm writes it: `minutes`, `hours:minutes:seconds`, `days-hours:minutes:seconds`, or shorter.

    ```python
    >>> parse_time("3:55:00"), parse_time("1-12"), parse_time("90").total_seconds()
    (datetime.timedelta(seconds=14100), datetime.timedelta(days=1, seconds=43200), 5400.0)

    ```
    """
    days, dash, rest = text.strip().rpartition("-")
    try:
        parts = [int(part) for part in rest.split(":")]
        if dash:
            names = ("hours", "minutes", "seconds")
        else:
            names = ("minutes", "seconds") if len(parts) < 3 else ("hours", "minutes", "seconds")
        if len(parts) > len(names) or min(parts) < 0:
            raise ValueError
        result = timedelta(days=int(days) if dash else 0, **dict(zip(names, parts, strict=False)))
    except ValueError:
        raise InputError(
            f"time_limit is {text!r}; expected minutes, minutes:seconds, hours:minutes:seconds or days-hours:minutes"
        ) from None
    if result <= timedelta():
        raise InputError(f"time_limit is {text!r}; expected more than 0")
    return result
