"""The checkpoints of a run that an evaluation measures: in its folder, or revisions of its repository on the Hub."""

import re
from pathlib import Path

from ..errors import InputError
from ..hub.download import ModelName, branches_of, model_file
from ..runtime.run_records import read_checkpoint_state

_STATE_NAME = "trainer_state.json"


def progress_of(name: str) -> dict[str, int]:
    """`step` and `tokens` of a checkpoint, from the state of its trainer.

    Raises:
        `InputError`: it has no such file.
    """
    path = model_file(name, _STATE_NAME)
    if path is None:
        raise InputError(f"{name}: has no {_STATE_NAME} with the step and the tokens; push it with the checkpoint")
    state = read_checkpoint_state(path)
    if state.num_input_tokens_seen is None:
        raise InputError(f"{path}: has no num_input_tokens_seen; train with include_num_input_tokens_seen")
    return {"step": state.global_step, "tokens": state.num_input_tokens_seen}


def revisions_of(model: str, names: list[str]) -> list[str]:
    """The names of a repository at its revisions; `all` stands for its branches `step-N`, in order of `N`."""
    if names == ["all"]:
        steps = [branch for branch in branches_of(model) if re.fullmatch(r"step-\d+", branch)]
        names = sorted(steps, key=lambda branch: int(branch.removeprefix("step-")))
        if not names:
            raise InputError(
                f"{model}: has no branches step-N; push its checkpoints with hmm-datasets push --include_checkpoints"
            )
    return [str(ModelName.parse(model).at(name)) for name in names]


def checkpoints_of(folder: Path) -> list[Path]:
    """The folders `checkpoint-N` of a run, in order of `N`.

    Raises:
        `InputError`: there are none.
    """
    folders = sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    if not folders:
        raise InputError(f"{folder}: has no checkpoint-*; train with save_steps, or leave --checkpoints out")
    return folders
