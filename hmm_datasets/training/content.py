"""Digests of the content that a run reads: of its rows, and of the weights that it starts from.

Names, counts and seeds stay the same when a file is exchanged, so they do not identify what is in it. A run records
these digests in its identity, in the section `content`, and a start that reads something else is refused.

Rows are hashed as Arrow columns at about the rate of SHA-256, 0.5 to 2 GB/s, whatever file they come from; tokenizing
them takes a hundred times as long. Weights are hashed file by file at the same rate, and only by the first start of a
run: later ones compare size, inode and times of change with those in `.content.json` of its folder, and hash a file
again if any of them differs. The cache of huggingface_hub names files by their SHA-256, so those are not read.
"""

import contextlib
import hashlib
import re
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError
from ..files import file_digest, write_json
from ..hub.download import ModelName, model_file
from ..hub.gguf import gguf_path
from ..hub.weights import base_of_adapter
from ..records import read_record
from ..runtime import environment
from ..runtime.credentials import masked

if TYPE_CHECKING:
    from datasets import Dataset

SECTION = "content"
"""The section of an identity with these digests."""

CACHE_NAME = ".content.json"
"""The file of a run with the digests of weights, and what their files were like when they were hashed."""

_SHA256 = re.compile("[0-9a-f]{64}")


def rows_digest(rows: "Dataset", columns: Collection[str] | None = None) -> str:
    """SHA-256 of the rows of a data set, in hexadecimal, whatever its files, chunks and cache.

    Args:
        rows (`datasets.Dataset`): the rows.
        columns (collection of `str`, *optional*): columns to hash; by default all. Those that are missing are left
            out.
    """
    names = sorted(name for name in rows.column_names if columns is None or name in columns)
    digest, schema = hashlib.sha256(), None
    for table in rows.select_columns(names).with_format("arrow").iter(batch_size=1000):
        table = table.select(names).replace_schema_metadata(None).combine_chunks()
        if schema is None:
            schema = "\n".join(f"{field.name}: {field.type}" for field in table.schema)
            digest.update(schema.encode())
        for batch in table.to_batches():
            digest.update(batch.serialize())
    return digest.hexdigest()


@dataclass(frozen=True)
class _Known:
    """The digest of a file, and its size, number and times by which a change is seen."""

    seen: list[int]
    sha256: str


def weights_digest(model: str, cache: Path | None = None) -> str:
    """SHA-256 of all files with weights of a model, of an adapter those of its base too; in hexadecimal.

    Args:
        model (`str`): see [`~hmm_datasets.hub.download.ModelName.parse`].
        cache (`Path`, *optional*): a file with digests of earlier calls, which is read, and on rank 0 written.
    """
    known: dict[str, _Known] = {}
    if cache is not None and cache.exists():
        with contextlib.suppress(InputError):  # it only saves time
            known = read_record(cache, dict[str, _Known])
    digests = {}
    for path in _weight_files(model):
        content, state = path.resolve(), path.stat()
        key, seen = masked(str(content)), [state.st_size, state.st_ino, state.st_mtime_ns, state.st_ctime_ns]
        if _SHA256.fullmatch(content.name):
            digests[key] = content.name
        elif key in known and known[key].seen == seen:
            digests[key] = known[key].sha256
        else:
            digests[key] = file_digest(content)
            known[key] = _Known(seen, digests[key])
    if cache is not None and known and environment.rank() == 0:
        write_json(cache, {key: asdict(entry) for key, entry in known.items()})
    return hashlib.sha256("\n".join(digests.values()).encode()).hexdigest()


def _weight_files(model: str) -> Iterator[Path]:
    """The files with weights of a model, in order; of an adapter also those of its base."""
    name = ModelName.parse(model)
    if name.gguf_file is not None:
        yield gguf_path(name)
        return
    config = model_file(model, "adapter_config.json") or model_file(model, "config.json")
    if config is None:
        return
    files = (path for path in config.parent.iterdir() if path.is_file())
    yield from sorted(path for path in files if path.suffix == ".safetensors" or path.name.startswith("pytorch_model"))
    base = base_of_adapter(config) if config.name == "adapter_config.json" else None
    if base and Path(base).resolve() != Path(model).resolve():
        yield from _weight_files(base)
