"""Parquet files as the Hub reads them best.

They have a page index, by which the viewer finds rows without reading a whole file, and their pages end at positions
that depend on the content. A changed file therefore shares most of its pages with the one before, and an upload sends
only the others (https://huggingface.co/docs/hub/datasets-libraries). Streaming reads one row group at a time. Pages
have checksums, which this package compares when it reads such a file; other programs do so if they are asked to.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import InputError

MAX_SHARD_BYTES = 500_000_000
"""Default size of a file in bytes, before compression."""

_GROUP_BYTES = 1 << 25  # of a row group in memory


def write_split(
    folder: Path,
    split: str,
    tables: Iterable[pa.Table],
    features: datasets.Features,
    *,
    prefix: str = "data",
    max_shard_bytes: int = MAX_SHARD_BYTES,
    on_rows: Callable[[int], object] = lambda count: None,
) -> list[str]:
    """Write the rows of a split as Parquet files, named as on the Hub: `data/train-00000-of-00002.parquet`.

    Args:
        folder (`Path`): an existing folder.
        split (`str`): name of the split.
        tables (iterable of `pa.Table`): the rows; a table is never cut, so its size is the least that a file can have.
        features (`datasets.Features`): columns and types, which are written into the files.
        prefix (`str`, *optional*, defaults to `"data"`): folder of the files.
        max_shard_bytes (`int`, *optional*): maximum size of a file in bytes before compression.
        on_rows (callable, *optional*): is called with the number of rows of each table that was written.

    Returns:
        `list[str]`: paths of the files in `folder`.

    Raises:
        [`InputError`]: there are no rows, or `max_shard_bytes` is below 1.
    """
    if max_shard_bytes < 1:
        raise InputError(f"max_shard_bytes is {max_shard_bytes}; expected 1 or more")
    (folder / prefix).mkdir(parents=True, exist_ok=True)
    shards: list[_Shard] = []
    for table in tables:
        if not shards or shards[-1].size + _content_bytes(table) > max_shard_bytes:
            if shards:
                shards[-1].close()
            shards.append(_Shard(folder / prefix / f"{split}-{len(shards)}", features.arrow_schema))
        shards[-1].add(table)
        on_rows(len(table))
    if not shards:
        raise InputError(f"{split}: no rows to write as Parquet")
    shards[-1].close()
    names = [f"{prefix}/{split}-{number:05d}-of-{len(shards):05d}.parquet" for number in range(len(shards))]
    for shard, name in zip(shards, names, strict=True):
        shard.path.rename(folder / name)
    return names


class _Shard:
    """A file that is being written; tables are collected until they fill a row group."""

    def __init__(self, path: Path, schema: pa.Schema):
        self.path, self.size = path, 0
        self._schema = schema
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0
        self._writer = pq.ParquetWriter(
            path, schema, use_content_defined_chunking=True, write_page_index=True, write_page_checksum=True
        )

    def add(self, table: pa.Table) -> None:
        self._waiting.append(table.cast(self._schema))
        self._waiting_bytes += table.nbytes
        self.size += _content_bytes(table)
        if self._waiting_bytes >= _GROUP_BYTES:
            self._write()

    def close(self) -> None:
        if self._waiting:
            self._write()
        self._writer.close()

    def _write(self) -> None:
        table = pa.concat_tables(self._waiting)
        self._writer.write_table(table, row_group_size=len(table))
        self._waiting, self._waiting_bytes = [], 0


def _content_bytes(table: pa.Table) -> int:
    """Bytes of the values of a table, without the offsets of its lists."""
    return sum(_values_bytes(chunk) for column in table.columns for chunk in column.chunks)


def _values_bytes(array: pa.Array) -> int:
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        return _values_bytes(array.flatten())
    return array.nbytes
