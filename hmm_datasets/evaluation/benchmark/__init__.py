"""A benchmark of language models whose optimum is known: held-out sequences of twelve fixed processes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from ...errors import InputError
from ...runtime.setting_rules import check_object
from ...runtime.settings import argument, option

Track = Literal["ids", "text"]
TRACKS = get_args(Track)
"""What a model reads: symbols as token ids, or letters as text."""

SCORED = {"ids": 256, "text": 12}
"""Sequences of each process in the score of a track. A model of text has a hundred times the parameters and more."""


@dataclass(frozen=True, kw_only=True)
class BenchmarkSettings:
    """The model to score, and on what.

    Raises:
        `InputError`: a setting has a value that it cannot have, or does not fit to the model.
    """

    model: str = argument("MODEL", "causal language model, or folder with one for each process")
    data: str | None = option(None, "DATA", "folder or Hub name of the data set; computed by default")
    process: list[str] = option([], "NAME", "a process, by default all; may be repeated", repeated=True)
    track: Track | None = option(None, None, "default text if the model has a tokenizer")
    num_sequences: int | None = option(None, "N", "of each process, default 256 (track ids) or 12 (text)", least=1)
    batch_size: int = option(32, "B", "sequences per pass, default 32", least=1)
    output_dir: str | None = option(None, "FOLDER", "default benchmark/ in the model's folder")

    def __post_init__(self):
        check_object(self)
        if self.track not in (None, *TRACKS):
            raise InputError(f"track is {self.track!r}; expected {' or '.join(TRACKS)}")

    def is_standard(self, track: Track) -> bool:
        """Whether a model of this track is scored as in the benchmark, and its result can be compared with others."""
        return not self.process and self.num_sequences in (None, SCORED[track])

    @property
    def folder(self) -> Path:
        """Where the results go."""
        path = Path(self.model)
        default = path / "benchmark" if path.is_dir() else Path(f"benchmark-{path.name}")
        return default if self.output_dir is None else Path(self.output_dir)
