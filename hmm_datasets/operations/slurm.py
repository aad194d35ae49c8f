"""Jobs of Slurm: whether one waits in the queue, and requeueing one with hosts left out."""

import contextlib
import os
import shutil
import signal
import subprocess

from ..errors import InputError

_PATIENCE = 30.0  # seconds; a busy controller answers slowly


def waiting_job(job: str | None) -> str | None:
    """A job that waits to start, with the start that Slurm expects, if any; None if none is known to wait.

    In words such as `job 1234 (PENDING, Resources, expected to start 2026-11-29T05:00:00)`.

    Args:
        job (`str`, *optional*): a job as in heartbeats, `slurm ID NAME`, or just its number. A job that was put back
            into the queue has the same number, and the jobs of an array have that of the array.
    """
    words = (job or "").removeprefix("slurm ").split()
    if not words or not words[0].isdigit() or shutil.which("squeue") is None:
        return None
    lines: list[str] = []
    with contextlib.suppress(InputError):  # a job that has ended long ago is unknown
        lines = run_slurm("squeue", "--noheader", "--format", "%i|%T|%r|%S", "--jobs", words[0]).splitlines()
    for line in (line for line in lines if line.count("|") >= 2):
        number, state, reason, start = f"{line}|".split("|")[:4]
        if state in ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "CONFIGURING", "RESV_DEL_HOLD"):
            expected = "" if start in ("", "N/A") else f", expected to start {start}"
            return f"job {number} ({state}, {reason.strip('()')}{expected})"
    return None


def limit_exclusions(hosts: list[str]) -> list[str]:
    """As many of the first hosts as can be left out so that the job that this process runs in has enough nodes."""
    _this_job()
    if not hosts:
        return []
    nodes = run_slurm("sinfo", "--noheader", "--Node", "--format", "%N", "-p", os.environ["SLURM_JOB_PARTITION"])
    spare = len(set(nodes.split())) - int(os.environ.get("SLURM_JOB_NUM_NODES", "1"))
    return hosts[: max(spare, 0)]


def requeue_job(excluded: list[str]) -> None:
    """Put the job that this process runs in back into the queue, which ends it within seconds.

    Args:
        excluded (`list[str]`): nodes to leave out.

    Raises:
        `InputError`: this is not a job of Slurm, or Slurm refuses.
    """
    job = _this_job()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # which Slurm sends to the processes of a job that it puts back
    if not excluded:
        run_slurm("scontrol", "requeue", job)
        return
    run_slurm("scontrol", "requeuehold", job)
    try:
        # The nodes of a job can be changed only while it waits.
        run_slurm("scontrol", "update", f"JobId={job}", f"ExcNodeList={','.join(excluded)}")
    finally:
        run_slurm("scontrol", "release", job)


def _this_job() -> str:
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        raise InputError("SLURM_JOB_ID is not set: only a job of Slurm can be put back into its queue")
    return job


def run_slurm(*command: str) -> str:
    """What a command of Slurm prints.

    Raises:
        `InputError`: it fails, or there is none.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"{' '.join(command)}: {error}") from None
    if done.returncode != 0:
        raise InputError(f"{' '.join(command)}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout
