"""The record of a run (settings, versions, command, commit), written next to its outputs, and its history."""

import os
import platform
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from ..files import append_jsonl, read_log, write_json, write_jsonl
from ..runtime import environment
from ..runtime.credentials import masked, masked_arguments
from ..runtime.recipe_commands import command_of_script
from ..runtime.run_identity import check_folder_identity, write_identity
from .content import SECTION

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
    weights: dict[str, str] | None = None,
    made: Collection[str] | None = None,
    template_time: str | None = None,
) -> dict:
    """Write `run.json` on rank 0: the resolved settings, the data, versions, command, host and git commit.

    It also writes `identity.json`, with which a run that continues is compared. Access tokens and keys are
    masked in all of them.

    Args:
        output_dir (path): folder of the run.
        settings (`dict`): every setting as resolved.
        data (`dict`): what determines the examples and their order; a run in the same folder must have the same.
        accepted (collection of `str`, *optional*): names such as `data.seed` that may differ nevertheless; None if the
            program cannot continue with other data, so that the error does not suggest it.
        lineage (`dict`, *optional*): where the model comes from; see [`~hmm_datasets.training.lineage.lineage`].
        remedy (`str`, *optional*): advice in the error message.
        identity (`dict`, *optional*): further sections of the identity, which are written but not compared; that of
            the content of data and weights is recorded too.
        weights (`dict`, *optional*): see [`~hmm_datasets.training.precision.types_of_weights`].
        made (collection of `str`, *optional*): see [`~hmm_datasets.runtime.run_identity.check_folder_identity`].
        template_time (`str`, *optional*): see [`~hmm_datasets.training.template_time.fix_template_time`].

    Raises:
        `InputError`: the folder has a run on other data; the message names what differs.
    """
    folder = Path(output_dir)
    check_folder_identity(folder, {"data": data}, accepted, remedy=remedy, made=made)
    record = {
        "data": masked(data),
        "settings": masked(settings),
        "versions": package_versions(),
        "python": platform.python_version(),
        "command": command_line(),
        "host": socket.gethostname(),
        "world_size": environment.world_size(),
        "device": device_name(),
        "commit": git_commit(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    record |= {} if weights is None else {"types": weights}
    record |= {} if template_time is None else {"template_time": template_time}
    record |= {name: section for name, section in (identity or {}).items() if name == SECTION}
    if lineage is not None:
        record["lineage"] = masked(lineage)
    if environment.rank() == 0:
        write_identity(folder, {"data": data} | (identity or {}))
        write_json(folder / RECORD_NAME, record)
    return record


def command_line() -> str:
    """The command that started this program, with access tokens and keys masked.

    A recipe is started by `hmm-datasets`, which finds it in an installed package too; the launcher and its flags are
    left out, since they change no result.
    """
    if Path(sys.argv[0]).name == "ipykernel_launcher.py":
        return "(in a notebook)"
    script, *arguments = masked_arguments(sys.argv)
    words = command_of_script(script)
    if words is None:
        is_installed = os.access(script, os.X_OK) and not script.endswith(".py")
        words = [Path(script).name] if is_installed else [Path(sys.executable).name, script]
    return shlex.join([*words, *arguments])


def device_name() -> str:
    """The name of this process's accelerator, or `CPU` with the number of cores that the process may use."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"CPU ({environment.usable_cores()} cores)"


def package_versions() -> dict[str, str]:
    """Installed versions of the packages a result depends on."""
    return {name: version for name in _PACKAGES if (version := environment.package_version(name)) is not None}


def git_commit() -> str | None:
    """The commit of the working tree, followed by `+` if files differ from it; `None` outside a repository."""
    run = partial(subprocess.run, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=60)
    try:
        commit = run(["git", "rev-parse", "HEAD"], check=True).stdout.strip()
        return commit + ("+" if run(["git", "status", "--porcelain", "-uno"]).stdout.strip() else "")
    except (OSError, subprocess.SubprocessError):
        return None


def truncate_after_step(path: Path, step: int) -> None:
    """Drop the rows of a JSON Lines file after `step`, which a resumed run repeats; all rows if `step` is 0.

    The row about the whole run, which a run that is continued at its last step repeats too, is dropped as well.
    """

    def is_kept(row: dict[str, Any]) -> bool:
        at = row.get("step", step + 1)
        return step > 0 and (at < step or (at == step and "train_loss" not in row))

    if path.exists():
        write_jsonl(path, [row for row in read_log(path) if is_kept(row)])


class History(TrainerCallback):
    """Writes every log row of rank 0 to `history.jsonl`: step, tokens, seconds, host, and what the Trainer logs.

    A resumed run drops the rows of steps that it repeats, so that no step occurs twice.
    """

    def __init__(self, output_dir: str | os.PathLike):
        self.path = Path(output_dir) / HISTORY_NAME

    def on_train_begin(self, args, state, control, **kwargs):
        """Drop the rows after the checkpoint that the run continues from."""
        if state.is_world_process_zero:
            truncate_after_step(self.path, state.global_step)

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
