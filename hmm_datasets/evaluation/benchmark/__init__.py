"""A benchmark of language models whose optimum is known: held-out sequences of twelve fixed processes."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from ...errors import InputError
from ...runtime.setting_rules import Void, check_object
from ...runtime.settings import argument, option

Track = Literal["ids", "text"]
TRACKS = get_args(Track)
"""What a model reads: symbols as token ids, or letters as text."""

Names = Literal["letters", "numbers", "words"]
NAMES = {
    "letters": tuple("ABCDEFGHIJKLMNOP"),
    "numbers": tuple(map(str, range(16))),
    "words": (
        *("apple", "book", "cat", "dog", "ear", "fish", "gold", "hand"),
        *("ice", "king", "leaf", "moon", "night", "pen", "rain", "sun"),
    ),
}
"""What symbols are written as in text."""

SCORED = {"ids": 256, "text": 12}
"""Sequences of each process in the score of a track. A model of text has a hundred times the parameters and more."""


@dataclass(frozen=True, kw_only=True)
class BenchmarkSettings:
    """The models to score, and on what.

    Raises:
        `InputError`: a setting has a value that it cannot have, or does not fit to the models.
    """

    models: list[str] = argument(
        "MODEL",
        "causal language model, or folder with one for each process",
        many="*",
        default=[],
    )
    data: str | None = option(None, "DATA", "folder or Hub name of the data set; computed by default")
    process: list[str] = option(
        [], "NAME", "a process, `twelve` (the default) or `dial`; may be repeated", repeated=True
    )
    track: Track | None = option(None, None, "default text if the model has a tokenizer")
    symbols: Names = option("letters", None, "what symbols are written as in text, default letters")
    separator: str = option(" ", "TEXT", "what stands between symbols in text, default a space")
    num_sequences: int | None = option(None, "N", "of each process, default 256 (track ids) or 12 (text)", least=1)
    batch_size: int = option(32, "B", "sequences per pass, default 32", least=1)
    output_dir: str | None = option(
        None, "FOLDER", "default benchmark/ in the model's folder; of several models, of their picture"
    )
    dataset_id: str | None = option(None, "USER/NAME", "data set that .eval_results names; default DATA")
    push: bool = option(False, None, "add .eval_results to the model's repository on the Hub")

    voids = (Void("symbols separator", "if track is ids"),)

    def __post_init__(self):
        check_object(self)
        names = [Path(model).name for model in self.models]
        if self.output_dir is not None and len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InputError(f"--output_dir: two models are named {twice}; leave it out, or score them one by one")
        if self.symbols not in NAMES:
            raise InputError(f"symbols is {self.symbols!r}; expected one of {', '.join(NAMES)}")
        if self.track not in (None, *TRACKS):
            raise InputError(f"track is {self.track!r}; expected {' or '.join(TRACKS)}")
        folder = next((model for model in self.models if Path(model).exists()), None)
        if self.push and folder is not None:
            raise InputError(
                f"--push: {folder} is a folder; leave out --push and send the folder with `hmm-datasets push`, or "
                "give the model's name on the Hub"
            )
        if self.dataset_id is not None and not re.fullmatch(r"[\w.-]+/[\w.-]+", self.dataset_id):
            raise InputError(f"dataset_id is {self.dataset_id!r}; expected USER/NAME of a data set on the Hub")

    def is_standard(self, track: Track) -> bool:
        """Whether a model of this track is scored as in the benchmark, and its result can be compared with others."""
        count = self.num_sequences in (None, SCORED[track])
        return not self.process and count and (track == "ids" or (self.symbols, self.separator) == ("letters", " "))

    def folder_of(self, model: str) -> Path:
        """Where the results of a model go."""
        path = Path(model)
        if self.output_dir is not None:
            return Path(self.output_dir) / path.name if len(self.models) > 1 else Path(self.output_dir)
        return path / "benchmark" if path.is_dir() else Path(f"benchmark-{path.name}")
