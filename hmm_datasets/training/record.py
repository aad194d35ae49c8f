"""The record of a run (settings, versions, command, commit), written next to its outputs, and its history.

The stages of a model's training, each with its data and tokens.

Every run records its own stage and those before it, as `lineage` in its `run.json`. Together with the tokens in
`summary.json`, or in a checkpoint's state, this gives everything that a model was trained on. A model that another
program trained has no such record, and its tokens are not known.

How many parameters each rank actually has, which shows whether a run was sharded.
"""

import os
import platform
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Collection
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from transformers import Trainer, TrainerCallback

from ..errors import InputError
from ..files import DIGESTS_NAME, append_jsonl, file_digest, read_log, write_json, write_jsonl
from ..hub.download import ModelName, model_file
from ..hub.gguf import gguf_path, read_header
from ..records import Record, read_record
from ..runtime import environment
from ..runtime.credentials import masked, masked_arguments
from ..runtime.run_identity import check_folder_identity, write_identity
from ..runtime.run_records import CheckpointState, RunRecord, RunSummary, Stage
from ..runtime.shipped import command_of_script
from .content import SECTION
from .models import parameter_size

RECORD_NAME = "run.json"


HISTORY_NAME = "history.jsonl"
_PACKAGES = ("hmm-datasets", "torch", "transformers", "accelerate", "datasets", "tokenizers", "trl", "deepspeed")


def lineage(base: str | None, *, stage: str, data: str | None, commit: str | None = None) -> dict[str, Any]:
    """The `lineage` entry of `run.json`.

    Args:
        base (`str`, *optional*): folder or Hub name of the model that this stage starts from; None for a new one.
        stage (`str`): name of this stage.
        data (`str`, *optional*): what it trains on, in words.
        commit (`str`, *optional*): commit of the base's repository, if it comes from the Hub.

    Returns:
        `dict`: `stage`, `data`, and `before`, the earlier stages. Each of those has `stage`, `data` and `tokens`, the
        latter two None if they are not known. `base` has the `model`, its `commit`, and the SHA-256 of its `weights`
        by file, as far as its folder records them, and of a GGUF file also its `quantization`; it is None for a new
        model.
    """
    if base is None:
        return {"stage": stage, "data": data, "base": None, "before": []}
    found = {"model": base, "commit": commit, "weights": weights_of(base)}
    parsed = ModelName.parse(base)
    if parsed.gguf_file is not None:
        found["quantization"] = read_header(gguf_path(parsed)).quantization
    return {"stage": stage, "data": data, "base": found, "before": stages_of(base)}


def weights_of(model: str) -> dict[str, str]:
    """The SHA-256 of the files of a model's weights by name: of those that its folder records, or of its GGUF file."""
    found = ModelName.parse(model)
    if found.gguf_file is not None:
        path = gguf_path(found)
        return {path.name: file_digest(path)}
    digests = _read(model, DIGESTS_NAME, dict[str, dict[str, str]]) or {}
    return {name: digest for name, digest in digests.get("sha256", {}).items() if name.endswith(".safetensors")}


def stages_of(model: str) -> list[dict[str, Any]]:
    """The stages of a model's training, in order.

    Args:
        model (`str`): folder of a run or of a checkpoint, or a name on the Hub.
    """
    record, summary = _read(model, RECORD_NAME, RunRecord), _read(model, "summary.json", RunSummary)
    tokens = None if summary is None else summary.tokens
    state = _read(model, "trainer_state.json", CheckpointState)
    if record is None and state is not None:  # a checkpoint, in the folder of its run
        record = _read(str(Path(model).parent), RECORD_NAME, RunRecord)
        tokens = state.num_input_tokens_seen
    if record is None or record.lineage is None or tokens is None:
        name = model if ModelName.parse(model).on_hub else Path(model).name
        return [{"stage": f"training of {name}", "data": None, "tokens": None}]
    last = Stage(record.lineage.stage, record.lineage.data, tokens)
    return [asdict(stage) for stage in (*record.lineage.before, last)]


def _read(model: str, name: str, kind: type[Record]) -> Record | None:
    """A record of a model; None if it has none, or one of another program."""
    path = model_file(model, name)
    if path is None:
        return None
    try:
        return read_record(path, kind)
    except InputError:
        return None


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
        lineage (`dict`, *optional*): where the model comes from; see [`~hmm_datasets.training.record.lineage`].
        remedy (`str`, *optional*): advice in the error message.
        identity (`dict`, *optional*): further sections of the identity, which are written but not compared; that of
            the content of data and weights is recorded too.
        weights (`dict`, *optional*): see [`~hmm_datasets.training.precision.types_of_weights`].
        made (collection of `str`, *optional*): see [`~hmm_datasets.runtime.run_identity.check_folder_identity`].

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
    run = partial(subprocess.run, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10)
    try:
        commit = run(["git", "rev-parse", "HEAD"], check=True).stdout.strip()
        return commit + ("+" if run(["git", "status", "--porcelain", "-uno"]).stdout.strip() else "")
    except (OSError, subprocess.SubprocessError):
        return None


def forget_after(path: Path, step: int) -> None:
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


@dataclass(frozen=True)
class ShardSizes:
    """Number of elements on one rank.

    Attributes:
        rank (`int`): the rank.
        parameters (`int`): elements of the parameters that it keeps between steps.
        optimized (`int`): elements that its optimizer updates and keeps state for.
        total (`int`): elements of the whole model.
    """

    rank: int
    parameters: int
    optimized: int
    total: int


def shard_sizes(trainer: Trainer) -> list[dict]:
    """The [`ShardSizes`] of every rank as dictionaries, in order of rank; call it on all ranks after training.

    Under plain data parallelism every rank has everything. Under ZeRO 1 and 2 each rank optimizes only its part. Under
    ZeRO 3 and FSDP2 each rank also keeps only its part of the parameters.
    """
    from accelerate.utils import gather_object

    parameters = list(trainer.model.parameters())
    sizes = ShardSizes(
        rank=trainer.args.process_index,
        parameters=sum(map(_local_size, parameters)),
        optimized=sum(map(_local_size, _optimized(trainer.optimizer))),
        total=sum(map(parameter_size, parameters)),
    )
    return gather_object([asdict(sizes)])


def _optimized(optimizer) -> list:
    """The tensors that the innermost optimizer updates."""
    while hasattr(optimizer, "optimizer"):
        if hasattr(optimizer, "fp32_partitioned_groups_flat"):
            return optimizer.fp32_partitioned_groups_flat  # ZeRO 3 lends them to its inner optimizer one by one
        optimizer = optimizer.optimizer
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _local_size(tensor) -> int:
    if isinstance(tensor, DTensor):
        return tensor.to_local().numel()
    if hasattr(tensor, "ds_tensor"):
        return tensor.ds_tensor.numel()
    return tensor.numel()
