"""The record of a run (settings, versions, command, commit), written next to its outputs, and its history."""

import importlib.metadata
import os
import platform
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from .. import launch_environment
from ..credentials import masked, masked_arguments
from ..files import (
    append_jsonl,
    read_log,
    write_json,
    write_jsonl,
)
from ..identity import check_folder_identity, write_identity

RECORD_NAME = "run.json"
HISTORY_NAME = "history.jsonl"
_PACKAGES = ("hmm-datasets", "torch", "transformers", "accelerate", "datasets", "tokenizers", "trl", "deepspeed")


def write_record(
    output_dir: str | os.PathLike,
    settings: dict[str, Any],
    data: dict[str, Any],
    accepted: Collection[str] | None = (),
    lineage: dict[str, Any] | None = None,
    remedy: str = "choose another output_dir",
    identity: dict[str, Any] | None = None,
) -> dict:
    """Write `run.json` on rank 0: the resolved settings, the data, versions, command, host and git commit.

    It also writes `identity.json`, with which a run that continues is compared. Access tokens and keys are masked in
    the settings and the command.

    Args:
        output_dir (path): folder of the run.
        settings (`dict`): every setting as resolved.
        data (`dict`): what determines the examples and their order; a run in the same folder must have the same.
        accepted (collection of `str`, *optional*): names such as `data.seed` that may differ nevertheless; None if the
            program cannot continue with other data, so that the error does not suggest it.
        lineage (`dict`, *optional*): where the model comes from; see [`~hmm_datasets.training.lineage.lineage`].
        remedy (`str`, *optional*): advice in the error message.
        identity (`dict`, *optional*): further sections of the identity, which are written but not compared.

    Raises:
        `InputError`: the folder has a run on other data; the message names what differs.
    """
    folder = Path(output_dir)
    check_folder_identity(folder, {"data": data}, accepted, remedy=remedy)
    record = {
        "data": data,
        "settings": masked(settings),
        "versions": versions(),
        "python": platform.python_version(),
        "command": command_line(),
        "host": socket.gethostname(),
        "world_size": launch_environment.world_size(),
        "device": device_name(),
        "commit": git_commit(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    if lineage is not None:
        record["lineage"] = lineage
    if launch_environment.rank() == 0:
        write_identity(folder, {"data": data} | (identity or {}))
        write_json(folder / RECORD_NAME, record)
    return record


def command_line() -> str:
    """The command that started this program, with access tokens and keys masked."""
    if Path(sys.argv[0]).name == "ipykernel_launcher.py":
        return "(in a notebook)"
    return shlex.join([Path(sys.executable).name, *masked_arguments(sys.argv)])


def device_name() -> str:
    """The name of this process's accelerator, or `CPU` with the number of cores that the process may use."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"CPU ({cores} cores)"


def versions() -> dict[str, str]:
    """Installed versions of the packages a result depends on."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def git_commit() -> str | None:
    """The commit of the working tree, followed by `+` if files differ from it; `None` outside a repository."""
    folder = Path(__file__).parent
    try:
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()
        changed = subprocess.run(
            ["git", "status", "--porcelain", "-uno"], cwd=folder, capture_output=True, text=True, timeout=10
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return commit + ("+" if changed else "")


def forget_after(path: Path, step: int) -> None:
    """Drop the rows of a JSON Lines file after `step`, which a resumed run repeats; all rows if `step` is 0."""
    if path.exists():
        write_jsonl(path, [row for row in read_log(path) if step > 0 and row.get("step", step + 1) <= step])


class History(TrainerCallback):
    """Writes every log row of rank 0 to `history.jsonl`: step, tokens, seconds, host, and what the Trainer logs.

    A resumed run drops the rows of steps that it repeats, so that no step occurs twice.
    """

    def __init__(self, output_dir: str | os.PathLike):
        self.path = Path(output_dir) / HISTORY_NAME

    def on_train_begin(self, args, state, control, **kwargs):
        """Drop the rows after the checkpoint that the run continues from."""
        if state.is_world_process_zero:
            forget_after(self.path, state.global_step)

    def on_step_end(self, args, state, control, **kwargs):
        """Log the last step in any case, so that the history ends where the run does."""
        if state.global_step >= state.max_steps:
            control.should_log = True

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Append the row."""
        if not state.is_world_process_zero or not logs:
            return
        row = {
            "step": state.global_step,
            "max_steps": state.max_steps,
            "tokens": state.num_input_tokens_seen,
            "time": time.time(),
            "host": socket.gethostname(),
        }
        append_jsonl(self.path, row | {k: v for k, v in logs.items() if k not in ("epoch", "num_input_tokens_seen")})
