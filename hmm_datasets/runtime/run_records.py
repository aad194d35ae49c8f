"""What the files in the folder of a run contain, for those who read them: `run.json`, the state of a checkpoint, and
the rows of `history.jsonl`.

`hmm_datasets.training.record` and the Trainer write them. Files of earlier versions have fewer fields, and those of
other programs that have the same names may have any.
"""

import os
from dataclasses import dataclass, field
from typing import Any

from ..records import Count, Finite, read_record, read_rows

FINISHING_NAME = ".finishing"
"""A file beside `summary.json` while what follows from it is not done yet: plots, card, push."""

_REMEDY = "copy it again from where it was written, or move it away if another program wrote it"


@dataclass(frozen=True)
class Stage:
    """A stage of a model's training.

    Attributes:
        stage (`str`): its name.
        data (`str`, *optional*): what it trained on, in words.
        tokens (`int`, *optional*): tokens that it consumed, if they are known.
    """

    stage: str
    data: str | None = None
    tokens: Count | None = None


@dataclass(frozen=True)
class BaseModel:
    """The model that a stage started from.

    Attributes:
        model (`str`): its folder or its name on the Hub.
        commit (`str`, *optional*): commit of its repository.
        weights (`dict[str, str]`): SHA-256 of the files of its weights, as far as its folder records them.
        quantization (`str`, *optional*): that of a GGUF file.
        licence (`dict[str, str]`): what its file or card states of its licence, by the names of a card.
    """

    model: str
    commit: str | None = None
    weights: dict[str, str] = field(default_factory=dict)
    quantization: str | None = None
    licence: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Lineage:
    """The stages of a model's training; see [`~hmm_datasets.training.lineage.lineage`].

    Attributes:
        stage (`str`), data (`str`, *optional*): the last stage.
        before (list of [`Stage`]): the earlier ones, in order.
        base ([`BaseModel`], *optional*): the model that the last stage started from.
    """

    stage: str
    data: str | None = None
    before: list[Stage] = field(default_factory=list)
    base: BaseModel | None = None


@dataclass(frozen=True)
class RunRecord:
    """`run.json`.

    Attributes:
        settings (`dict`): every setting as resolved.
        data (`dict`): what determines the examples and their order.
        versions (`dict[str, str]`): of packages.
        command (`str`): the command that started the run.
        world_size (`int`): number of its processes.
        lineage ([`Lineage`], *optional*): where the model comes from.
        types (`dict[str, str]`, *optional*): see [`~hmm_datasets.training.precision.types_of_weights`].
        device (`str`, *optional*): what it computed on.
        commit (`str`, *optional*): git commit of the code.
        template_time (`str`, *optional*): see [`~hmm_datasets.training.template_time.fix_template_time`].
    """

    settings: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str | None] = field(default_factory=dict)
    command: str = ""
    world_size: Count = 1
    lineage: Lineage | None = None
    types: dict[str, str] | None = None
    device: str | None = None
    commit: str | None = None
    template_time: str | None = None


def read_run_record(path: str | os.PathLike) -> RunRecord:
    """Read `run.json`.

    Raises:
        `InputError`: there is no such file, or it is none of this package.
    """
    return read_record(path, RunRecord, _REMEDY)


@dataclass(frozen=True)
class RunSummary:
    """`summary.json` of a training run.

    Attributes:
        tokens (`int`): tokens that it consumed.
        parameters (`dict[str, int]`): number of parameters: `total`, and `body`, which leaves out embeddings.
        global_batch_size (`int`), learning_rate (`float`): as resolved.
        evaluation (`dict[str, float]`): the held-out figures at its end, by their names; some may be NaN.
        budget (`dict[str, float]`): its length, as `max_steps` or `num_train_epochs`.
        flops (`float`, *optional*), seconds (`float`, *optional*): what it took.
    """

    tokens: Count
    parameters: dict[str, Count]
    global_batch_size: Count
    learning_rate: Finite
    evaluation: dict[str, float] = field(default_factory=dict)
    budget: dict[str, Finite] = field(default_factory=dict)
    flops: Finite | None = None
    seconds: Finite | None = None


@dataclass(frozen=True)
class CheckpointState:
    """`trainer_state.json` of a checkpoint, as the Trainer writes it.

    Attributes:
        global_step (`int`): the step after which it was saved.
        max_steps (`int`, *optional*): the last step of the run.
        num_input_tokens_seen (`int`, *optional*): tokens consumed up to then, if they were counted.
        best_global_step (`int`, *optional*): the step with the best metric so far.
        stateful_callbacks (`dict`): the states of callbacks, by their names.
    """

    global_step: Count
    max_steps: Count | None = None
    num_input_tokens_seen: Count | None = None
    best_global_step: Count | None = None
    stateful_callbacks: dict[str, Any] = field(default_factory=dict)


def read_checkpoint_state(path: str | os.PathLike) -> CheckpointState:
    """Read `trainer_state.json`.

    Raises:
        `InputError`: there is no such file, or it is not the state of a Trainer.
    """
    return read_record(path, CheckpointState)


@dataclass(frozen=True)
class _HistoryRow:
    """Fields that readers of a history rely on, where they are there; a loss may be NaN."""

    step: Count = 0
    max_steps: Count = 0
    tokens: Count = 0
    time: Finite = 0.0
    host: str = ""
    loss: float = 0.0
    fraction: Finite = 0.0
    flops: Finite = 0.0
    tokens_per_second_per_device: Finite = 0.0


def read_history(path: str | os.PathLike) -> list[dict[str, Any]]:
    """The rows of `history.jsonl` in the order in which they were logged.

    Rows whose step, tokens, time, loss or rate is of another type are skipped, and named once in a warning.

    Raises:
        `InputError`: there is no such file.
    """
    return read_rows(path, _HistoryRow)
