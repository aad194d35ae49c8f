"""The text that a model and its bases were trained on, as far as their folders record it."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..hub.download import model_file
from ..records import Finite, as_record
from ..runtime.run_records import RunRecord, read_run_record

_RECORD = "run.json"


class TrainedOn(NamedTuple):
    """The text that a model and its bases were trained on, as far as their folders record it.

    Attributes:
        streams (set of `str`): SHA-256 of token streams.
        test_fraction (`float`, *optional*): the smallest share of documents that was held out of a corpus.
    """

    streams: frozenset[str] = frozenset()
    test_fraction: float | None = None


def trained_on(model: str) -> TrainedOn:
    """What `run.json` of a model (a folder or a name on the Hub), of its bases and of their token streams say."""
    path = model_file(model, _RECORD) or _existing(Path(model).parent / _RECORD)  # of a checkpoint
    record = RunRecord() if path is None else read_run_record(path)
    read = as_record(record.settings | {"data": record.data}, _Read, path or _RECORD)
    streams, fractions = set(_listed(read.data.tokens)), [read.test_fraction]
    for folder in [*_listed(read.tokens), *(read.streams or [])]:
        records = filter(None, map(_existing, (parent / _RECORD for parent in Path(folder).parents[:2])))
        fractions += [as_record(read_run_record(of).data, _Data, of).test_fraction for of in records]
    if record.lineage is not None and record.lineage.base is not None:
        base = trained_on(record.lineage.base.model)
        streams |= base.streams
        fractions.append(base.test_fraction)
    return TrainedOn(frozenset(streams), min((f for f in fractions if f is not None), default=None))


@dataclass(frozen=True)
class _Data:
    """What the data of a run's record say about corpora and token streams."""

    tokens: str | list[str] | None = None
    test_fraction: Finite | None = None


@dataclass(frozen=True)
class _Read:
    """What a run's settings, and its data, say about the corpora and token streams that it read."""

    data: _Data
    tokens: str | list[str] | None = None
    streams: list[str] | None = None
    test_fraction: Finite | None = None


def _listed(names: str | list[str] | None) -> list[str]:
    return [names] if isinstance(names, str) else names or []


def _existing(path: Path) -> Path | None:
    return path if path.is_file() else None
