"""Whether the job of a run goes back into the queue of Slurm when its batch script is about to end.

A run continues in another job if its job's time was over, or after a fault: it was ended by a fault that the
supervisor in the job could not mend, or by the loss of a host. It does not if it is finished, was stopped by its user,
has wrong settings, or fails again and again without a new checkpoint. A host that is at fault for two failures is left
out.
"""

from pathlib import Path

from ..runtime.events import append_event
from ..runtime.rank_heartbeats import STOPPED
from .exits import faulty_hosts
from .run_state import FINISHED, RunObserver
from .slurm import limit_exclusions, requeue_job
from .supervision import saved_progress

_LAST_SIGNALS = ("SIGUSR1", "the time limit is near")
_FINAL = ("settings", "give up")


def requeue(folder: str | Path, max_requeues: int = 5) -> str:
    """Put the job that this process runs in back into Slurm's queue, if its run should continue.

    Args:
        folder (path): folder of the run.
        max_requeues (`int`, *optional*, defaults to 5): how often in a row without a new checkpoint.

    Returns:
        `str`: what was done and why, in one sentence.

    Raises:
        `InputError`: this is not a job of Slurm, or Slurm refuses.
    """
    state = RunObserver(folder).look()
    last = next((event for event in reversed(state.events) if event["kind"] in (*_FINAL, "start")), None)
    if state.state == FINISHED:
        return f"{folder}: finished; the job is not put back"
    if state.state == STOPPED and not any(reason in state.reason for reason in _LAST_SIGNALS):
        return f"{folder}: stopped on request ({state.reason}); the job is not put back"
    if last is not None and last["kind"] in _FINAL:
        return f"{folder}: {last['message']}; the job is not put back"
    newest = saved_progress(folder)
    before = [event.get("newest", 0) for event in state.events if event["kind"] == "requeue"]
    if before[-max_requeues:].count(newest) == max_requeues:
        return f"{folder}: put back {max_requeues} times without a new checkpoint; the job is not put back again"
    excluded = limit_exclusions(faulty_hosts(folder))
    without = f", without {', '.join(excluded)}" if excluded else ""
    message = f"the job goes back into the queue{without}: {state.state}: {state.reason}"
    append_event(folder, "requeue", message, newest=newest)  # first, since the other ends this process soon
    requeue_job(excluded)
    return f"{folder}: {message}"
