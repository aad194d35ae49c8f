"""Parquet files as the Hub reads them best.

They have a page index, by which the viewer finds rows without reading a whole file, and their pages end at positions
that depend on the content. A changed file therefore shares most of its pages with the one before, and an upload sends
only the others (https://huggingface.co/docs/hub/datasets-libraries). Streaming reads one row group at a time. Pages
have checksums, which this package compares when it reads such a file; other programs do so if they are asked to.
"""

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import InputError

MAX_SHARD_BYTES = 500_000_000
"""Default size of a file in bytes, before compression."""


def write_split(
    folder: Path,
    split: str,
    tables: Iterable[pa.Table],
    features: datasets.Features,
    *,
    prefix: str = "data",
    max_shard_bytes: int = MAX_SHARD_BYTES,
    on_rows: Callable[[int], object] = lambda count: None,
) -> None:
    """Write the rows of a split as Parquet files, named as on the Hub: `data/train-00000-of-00002.parquet`.

    Args:
        folder (`Path`): an existing folder.
        split (`str`): name of the split.
        tables (iterable of `pa.Table`): the rows; each table becomes a row group, so its size is the least that a file
            can have.
        features (`datasets.Features`): columns and types, which are written into the files.
        prefix (`str`, *optional*, defaults to `"data"`): folder of the files.
        max_shard_bytes (`int`, *optional*): maximum size of a file in bytes before compression.
        on_rows (callable, *optional*): is called with the number of rows of each table that was written.

    Raises:
        [`InputError`]: there are no rows.
    """
    (folder / prefix).mkdir(parents=True, exist_ok=True)
    paths, size, writer = [], 0, None
    with contextlib.ExitStack() as stack:
        for table in tables:
            if writer is None or size + table.nbytes > max_shard_bytes:
                stack.close()
                paths.append(folder / prefix / f"{split}-{len(paths)}")
                properties = dict.fromkeys(("use_content_defined_chunking", "write_page_index"), True)
                file = pq.ParquetWriter(paths[-1], features.arrow_schema, **properties, write_page_checksum=True)
                writer, size = stack.enter_context(file), 0
            writer.write_table(table.cast(features.arrow_schema))
            size += table.nbytes
            on_rows(len(table))
    if not paths:
        raise InputError(f"{split}: no rows to write as Parquet")
    for number, path in enumerate(paths):
        path.rename(path.with_name(f"{split}-{number:05d}-of-{len(paths):05d}.parquet"))
