"""What a path is, and which files of it belong in a repository on the Hub.

[`detect_kind`] looks at the files of a folder, in the order of its list of kinds. Some get files that are made
for the Hub: Parquet, by which `load_dataset` reads a data set without this package, and a card.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...data.builders.token_shards import token_streams
from ...errors import InputError
from ...files import read_json
from ...hmm.loading import load_source
from ...hmm.process_storage import FAMILY_NAME, PROCESS_NAME
from ...hmm.storage import CONFIG_NAME
from ...runtime.run_records import read_run_record
from ...text.corpora.local_files import has_rows
from ...text.stream.index import INDEX_NAME
from ...text.tokenizers import words
from ..cards import CARD_NAME
from ..contents import DEFAULT_IGNORE, files_in
from ..download import RepoType
from ..weights import has_weights, refuse_stopped, saved_checkpoints
from .process import SETTINGS_NAME, write_hmm_dataset, write_process_card
from .text import write_token_dataset

Make = Callable[..., None]

_MARKS = {"eval.yaml": "benchmark", SETTINGS_NAME: "data set of an HMM", words.INDEX_NAME: "word corpus"}
"""Files that mark the folder of a data set, and what it is."""


@dataclass(frozen=True)
class Contents:
    """What is pushed of a path.

    Attributes:
        kind (`str`): what the path is, in words.
        repo_type (`str`): type of the repository, `"model"` or `"dataset"`.
        folder (`Path`): the folder of the files.
        files (mapping from `str` to `Path`): names in the repository, and the files.
        make (callable, *optional*): writes further files into a folder; takes it, `licence`, `repo_id` and `name`.
        made (`str`): what these files are, in words.
        checkpoints (tuple of `Path`): the folders of checkpoints of a run, by step.
    """

    kind: str
    repo_type: RepoType
    folder: Path
    files: Mapping[str, Path]
    make: Make | None = None
    made: str = ""
    checkpoints: tuple[Path, ...] = ()


def detect_kind(path: str | os.PathLike, repo_type: RepoType | None = None) -> Contents:
    """Find out what a path is and which of its files are pushed.

    Args:
        path (path): a folder.
        repo_type (`str`, *optional*): type of the repository. By default that of the kind. A process with
            `"dataset"` becomes a data set of its sequences.

    Raises:
        `InputError`: there is nothing there, nothing to push, or the kind has no repository of this type.
    """
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path}: expected a folder to push, found nothing")
    # Functions from a folder to its contents, None if it is of another kind; the first that gives some is right.
    for contents_of in (_data_folder, _process, _fit, _tokens, _model):
        contents = contents_of(path, repo_type)
        if contents is None:
            continue
        if repo_type not in (None, contents.repo_type):
            raise InputError(
                f"{contents.folder}: is a {contents.kind}, whose repository is a {contents.repo_type}, not a "
                f"{repo_type}; leave out --repo_type"
            )
        return contents
    files = {} if path.is_file() else files_in(path, DEFAULT_IGNORE)
    # JSON may be anything.
    are_documents = all(has_rows(name) and not name.endswith(".json") for name in files.keys() - {CARD_NAME})
    if path.is_file() or (repo_type is None and files and are_documents):
        raise InputError(
            f"{path}: expected a folder to push, of other files than documents; push documents with "
            "load_corpus(..., streaming=False).push_to_hub(...), or a folder of them as it is with --repo_type dataset"
        )
    return Contents("folder", repo_type or "model", path, files)


def _process(path: Path, repo_type: RepoType | None) -> Contents | None:
    if not any((path / name).is_file() for name in (FAMILY_NAME, PROCESS_NAME)) and model_type(path) != "hmm":
        return None
    kind = "process" if (path / PROCESS_NAME).is_file() else "HMM"
    kind = "family of HMMs" if (path / FAMILY_NAME).is_file() else kind
    files = files_in(path, DEFAULT_IGNORE)

    def make(folder: Path, **settings: Any) -> None:
        if repo_type == "dataset":
            write_hmm_dataset(load_source(path), folder, **settings)
        elif CARD_NAME not in files:  # such as that of a fit
            write_process_card(load_source(path), folder, **settings)

    if repo_type != "dataset":
        return Contents(kind, "model", path, files, make, "a card")
    kind = f"data set of {'an' if kind == 'HMM' else 'a'} {kind}"
    return Contents(kind, "dataset", path, {}, make, "Parquet files, the process and a card")


def _fit(path: Path, repo_type: RepoType | None) -> Contents | None:
    """The HMM of a fit at the top, so that it loads by the repository's name, and the records beside it in `fit/`."""
    if not (path / "run.json").is_file() or _process(path / "hmm", "model") is None:
        return None
    if repo_type == "dataset":
        return _process(path / "hmm", repo_type)
    records = files_in(path, [*DEFAULT_IGNORE, "hmm/*", "fit/epoch-*/*", "tokens.npy"])
    files = files_in(path / "hmm", DEFAULT_IGNORE) | {f"fit/{name}": file for name, file in records.items()}
    return Contents("fit of an HMM", "model", path, files)


def _model(path: Path, repo_type: RepoType | None) -> Contents | None:
    refuse_stopped(path)
    if not has_weights(path):
        return None
    stage = "model"
    if (path / "run.json").is_file():
        lineage = read_run_record(path / "run.json").lineage
        stage = f"model of the stage {lineage.stage}" if lineage is not None else "model of a run"
    checkpoints = tuple(saved_checkpoints(path))
    return Contents(stage, "model", path, files_in(path, DEFAULT_IGNORE), checkpoints=checkpoints)


def _tokens(path: Path, repo_type: RepoType | None) -> Contents | None:
    """The output of `tokenize`, or a stream or several at the top or in subfolders, which are the configs then."""
    at_top = (path / INDEX_NAME).is_file() or any(path.glob(f"*/{INDEX_NAME}"))
    places = [path] if at_top else sorted({index.parents[1] for index in path.glob(f"*/*/{INDEX_NAME}")})
    if not places:
        return None
    files = files_in(path, DEFAULT_IGNORE)
    tokenizer = next(
        (place for place in (path / "tokenizer", path.resolve().parent / "tokenizer") if place.is_dir()), None
    )
    if tokenizer is not None:
        files |= {f"tokenizer/{name}": file for name, file in files_in(tokenizer, DEFAULT_IGNORE).items()}

    def make(folder: Path, **settings: Any) -> None:
        streams = {"" if at_top else place.name: token_streams(place) for place in places}
        # The largest corpus first, since that is what `load_dataset` gives without a config.
        sizes = {corpus: sum(stream.num_tokens for stream in splits.values()) for corpus, splits in streams.items()}
        streams = {corpus: streams[corpus] for corpus in sorted(streams, key=sizes.__getitem__, reverse=True)}
        write_token_dataset(streams, folder, tokenizer=None if tokenizer is None else "tokenizer", **settings)

    return Contents("token stream", "dataset", path, files, make, "Parquet files of the documents and a card")


def _data_folder(path: Path, repo_type: RepoType | None) -> Contents | None:
    """A data set whose files are pushed as they are."""
    kind = next((kind for name, kind in _MARKS.items() if (path / name).is_file()), None)
    return None if kind is None else Contents(kind, "dataset", path, files_in(path, DEFAULT_IGNORE))


def model_type(path: Path) -> str | None:
    """The type of a model or process by its `config.json`; None without one."""
    config = path / CONFIG_NAME
    content = read_json(config) if config.is_file() else None
    kind = content.get("model_type") if isinstance(content, dict) else None
    return kind if isinstance(kind, str) else None
