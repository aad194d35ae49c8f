"""Targets, against which a model is measured: a distribution (a process) or held-out text, opened by name.

The checkpoints of a run that an evaluation measures: in its folder, or revisions of its repository on the Hub.

Where an evaluation comes from: the model, settings, versions and commit, and hashes of what it was measured on.
"""

import hashlib
import itertools
import platform
import re
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import InputError, path_errors
from ..hmm.loading import load_source, repository_of_process
from ..hmm.names import is_process_name
from ..hmm.process import Process
from ..hmm.storage import CONFIG_NAME, FAMILY_NAME, PROCESS_NAME
from ..hub.download import ModelName, branches_of, model_file
from ..hub.foreign_formats import foreign_data, refuse_foreign
from ..hub.weights_digest import weights_sha256
from ..records import Finite, as_record
from ..runtime import environment
from ..runtime.credentials import masked
from ..runtime.run_records import RunRecord, read_checkpoint_state, read_run_record
from ..text.corpora.loading import find_corpus, load_corpus
from ..text.corpora.local_files import local_files
from ..text.corpora.presets import CORPORA
from ..text.stream import TokenStream
from ..text.stream.index import INDEX_NAME
from ..text.tokenizers.words import INDEX_NAME as WORDS_NAME
from ..text.tokenizers.words import WordCorpus
from ..training.record import command_line, git_commit, package_versions

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from .evaluation import EvaluationSettings

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
    found = sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    if not found:
        raise InputError(f"{folder}: has no checkpoint-*; train with save_steps, or leave --checkpoints out")
    return found


def provenance(settings: "EvaluationSettings", model: "PreTrainedModel") -> dict[str, Any]:
    """The model, and what it was measured with."""
    return {
        "model": {
            "name": masked(settings.model),
            "type": model.config.model_type,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "sha256": weights_sha256(model),
        },
        "settings": masked(asdict(settings)),
        "seeds": {"stream": settings.data_seed, "evaluation": settings.seed},
        "versions": package_versions(),
        "python": platform.python_version(),
        "commit": git_commit(),
        "command": command_line(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def data_hashes(found: dict[str, Any]) -> dict[str, Any]:
    """Hashes of the data measured on: the distribution, the held-out text, the questions of each task."""
    hashes = {}
    if "optimum" in found:
        hashes["optimum"] = found["optimum"]["fingerprint"]
    if "text" in found:
        hashes["text"] = found["text"]["sha256"]
    if "core" in found:
        hashes["core"] = {label: task["sha256"] for label, task in found["core"]["tasks"].items()}
    return hashes


_WINDOW = 64  # words, as fits have by default
_RECORD = "run.json"
_TEST_FRACTION = 0.1  # as recipes have by default


class Documents(NamedTuple):
    """Held-out documents: the `name` by which they were opened, and their `texts`.

    If `of_symbols`, the texts are words that an HMM was fitted to, which models of its symbols read by name.
    """

    name: str
    texts: list[str]
    of_symbols: bool = False

    @property
    def sha256(self) -> str:
        """A hash of the texts, in order."""
        digest = hashlib.sha256()
        for text in self.texts:
            digest.update(hashlib.sha256(text.encode()).digest())
        return digest.hexdigest()


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


def open_target(
    name: str, max_documents: int = 1000, *, test_fraction: float | None = None, known: TrainedOn | None = None
) -> Process | TokenStream | Documents:
    """Open a target by its name.

    Args:
        name (`str`): one of these: `process:` and a call, such as `process:mess3(x=0.05)`; a folder of a process or a
            token stream; `words/` of a fit, whose held-out sentences are read in windows of 64 words; a named corpus,
            whose test split is read; a file of text, of whose documents those are read that training holds out; or the
            Hub repository of a process or a data set of text.
        max_documents (`int`, *optional*, defaults to 1000): maximum number of documents read from a corpus or file.
        test_fraction (`float`, *optional*): share of the documents of a file or a bundled sample that is held out, at
            most as in training; 1 for a file of which nothing was trained on. By default that of `known`, else 0.1.
        known ([`TrainedOn`], *optional*): what the model was trained on.

    Raises:
        `InputError`: the name is none of these, or a text that the model was trained on.

    ```python
    >>> open_target("tinystories-sample", max_documents=2).texts[0][:8]
    'Once upo'

    ```
    """
    if is_process_name(name):
        return load_source(name)
    folder, known = Path(name), known or TrainedOn()
    with path_errors(name):
        refuse_foreign(name, foreign_data, "a process, a token stream or text")
        is_folder = folder.is_dir() and not local_files(name)
    if is_folder:
        if (folder / INDEX_NAME).exists():
            stream = TokenStream(name)
            if stream.index.sha256 in known.streams:
                raise InputError(
                    f"{name}: the model was trained on these tokens; give held-out ones, such as those in test/ beside"
                )
            return stream
        if (folder / WORDS_NAME).exists():
            return _held_out_words(name)
        if any((folder / file).exists() for file in (PROCESS_NAME, FAMILY_NAME, CONFIG_NAME)):
            return load_source(name)
        raise InputError(
            f"{name}: has no {CONFIG_NAME} of an HMM, {FAMILY_NAME} of a family, {PROCESS_NAME} of another process, "
            f"{INDEX_NAME} of a token stream or {WORDS_NAME} of words"
        )
    if name.partition(":")[0] not in CORPORA and not local_files(name):
        kind = repository_of_process(name)
        if kind is not None:
            return load_source(name, repo_type=kind)
    rows = load_corpus(name, kind="text", **held_out_part(name, test_fraction, known))
    return Documents(name, [row["text"] for row in itertools.islice(rows, max_documents)])


def held_out_part(name: str, test_fraction: float | None, known: TrainedOn) -> dict[str, Any]:
    """Arguments of `load_corpus` for documents of a corpus that a model was not trained on; see [`open_target`]."""
    _, files = find_corpus(name)
    if not files:
        return {"split": "test"}
    is_own = name not in CORPORA  # not one of the bundled files
    if test_fraction == 1 and is_own:
        return {"split": "train", "test_fraction": 0.0}
    share = test_fraction if test_fraction is not None else known.test_fraction
    share = _TEST_FRACTION if share is None else share
    if not 0 < share < 1 or (known.test_fraction is not None and share > known.test_fraction):
        raise InputError(
            f"{name}: test_fraction is {share:g}, and training held out {known.test_fraction}; expected a share above "
            "0 and at most as large, or 1 for a file of which nothing was trained on"
        )
    if is_own and environment.rank() == 0:
        print(
            f"{name}: the documents that training holds out are read, a share of {share:g}; pass --test_fraction 1 if "
            "it was not trained on",
            file=sys.stderr,
        )
    return {"split": "test", "test_fraction": share}


def _held_out_words(name: str) -> Documents:
    words = WordCorpus.load(name)
    windows = words.as_windows("test", min(_WINDOW, len(words.test.tokens)))
    return Documents(name, [" ".join(words.vocabulary[symbol] for symbol in row) for row in windows], of_symbols=True)
