"""`datasets.load_dataset("token_shards", ...)`: a token stream as a Hugging Face data set.

```python
import hmm_datasets
from datasets import load_dataset

documents = load_dataset("token_shards", data_dir="outputs/tokens", split="train")
windows = load_dataset("token_shards", data_dir="outputs/tokens", length=1024, split="train", streaming=True)
for batch in windows.with_format("torch").batch(32):  # about ten times as fast as single rows
    batch["input_ids"], batch["labels"]  # (32, 1024), int64
```

`data_dir` is a folder written by `write_tokens` or `tokenize_corpus`, or a folder of such folders, whose names are the
splits (`train/`, `test/`). On the Hub, `data_files="hf://datasets/USER/NAME/*/index.json"` names the streams, whose
shards are downloaded when they are first read. Streaming reads the shards in place. The `state_dict` of a stream is
one index, and the number of rows read from there in a table of 1,024 rows, so resuming takes constant time. `shuffle`
permutes all rows by a cipher on the index, before its buffer.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np

from ...errors import InputError
from ...hmm.integers import integer
from ...hmm.sampling import smallest_unsigned
from ...hub.download import is_address, parent_of
from ...shuffle import indices_in_epochs
from ...text.stream.index import INDEX_NAME
from ...text.stream.reader import TokenStream
from ..windows import TokenWindows
from .indexed_builder import IndexedBuilder, IndexedExamples, files_named

_TABLE_TOKENS = 1 << 22


@dataclass
class TokenShardsConfig(datasets.BuilderConfig):
    """Settings of the data set, given to `load_dataset` by name.

    Args:
        length (`int`, *optional*): tokens per window; windows follow each other without gaps. None gives documents,
            including their EOS.
        labels (`bool`, *optional*): add a column `labels`, equal to `input_ids` but for the first, which is -100.
            Models of transformers compute a loss from them (they shift labels themselves). By default windows have
            it; documents, which a collator must pad first, do not.
        num_shards (`int`, *optional*, defaults to 48): shards of the stream. Choose a multiple of processes times
            loader workers; otherwise `datasets` reads every row on every rank and drops those of other ranks.
    """

    length: int | None = None
    labels: bool | None = None
    num_shards: int = 48

    def __post_init__(self):
        super().__post_init__()
        if self.length is not None:
            self.length = integer("length", self.length, 2, 31)
        self.num_shards = integer("num_shards", self.num_shards, 1, 31)
        if self.labels is None:
            self.labels = self.length is not None


class TokenShards(IndexedBuilder):
    """Builder of `input_ids` and `labels`: lists of the smallest types that can store all ids, and all labels."""

    BUILDER_CONFIG_CLASS = TokenShardsConfig

    def __init__(self, *args, data_dir: str | None = None, data_files: Any = None, **settings):
        indexes = files_named(INDEX_NAME, data_files)
        if data_dir is None and not (indexes and all(map(is_address, indexes))):
            raise InputError(
                "token_shards reads folders; pass data_dir=, a folder written by tokenize_corpus, or "
                f'data_files="hf://datasets/USER/NAME/*/{INDEX_NAME}"'
            )
        self.streams = token_streams(data_dir) if data_dir is not None else _opened(map(parent_of, indexes))
        # The indexes alone: they have the digests of the shards, so prepared data depend on nothing else.
        indexes = {name: str(stream.folder / INDEX_NAME) for name, stream in self.streams.items()}
        super().__init__(*args, data_dir=data_dir, data_files=indexes, **settings)

    def _info(self) -> datasets.DatasetInfo:
        return datasets.DatasetInfo(description="Token ids of a text corpus.")

    def _split_generators(self, dl_manager) -> list[datasets.SplitGenerator]:
        config = self.config
        return [
            self._split(name, TokenExamples(stream, config.length, config.num_shards, config.labels))
            for name, stream in self.streams.items()
        ]


class TokenExamples(IndexedExamples):
    """Documents or windows of a token stream, in the order of the stream or permuted by a seed.

    Args:
        stream ([`~hmm_datasets.text.stream.reader.TokenStream`]): the tokens.
        length (`int`, *optional*): tokens per window; None gives documents.
        shards (`int`): number of shards.
        labels (`bool`, *optional*, defaults to `False`): whether rows have `labels` too.
    """

    def __init__(self, stream: TokenStream, length: int | None, shards: int, labels: bool = False):
        count = stream.num_documents if length is None else stream.num_tokens // length
        if count == 0:
            raise InputError(f"length={length}, but {stream.folder} has only {stream.num_tokens} tokens")
        columns = ("input_ids", "labels") if labels else ("input_ids",)
        super().__init__(0, 1, count, shards, smallest_unsigned(stream.index.vocab_size), columns)
        self.stream = stream
        self.length = length
        self.total = count
        self.seed: int | None = None

    def _read(self, first: int, step: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        if self.length is not None:
            count = max(1, min(count, _TABLE_TOKENS // self.length))
            windows = TokenWindows(self.stream, self.length, self.seed)
            tokens = windows.tokens(first + step * np.arange(count)).astype(self.dtype)
            return tokens.ravel(), np.arange(0, tokens.size + 1, self.length)
        documents = indices_in_epochs(first + step * np.arange(count), self.total, 1, self.seed)
        starts, stops = self.stream.bounds(documents)
        offsets = np.concatenate([[0], np.cumsum(stops - starts)])
        count = max(1, int(np.searchsorted(offsets, _TABLE_TOKENS, side="right")) - 1)
        pairs = zip(starts[:count].tolist(), stops[:count].tolist(), strict=True)
        tokens = np.concatenate([self.stream.read(start, stop) for start, stop in pairs])
        return tokens.astype(self.dtype), offsets[: count + 1]

    def shuffle_data_sources(self, generator: np.random.Generator) -> "TokenExamples":
        """The rows in a random order given by the generator; they are still read by index."""
        shuffled = self._part(self.first, self.step, self.count, self.shards)
        shuffled.seed = int(generator.integers(1 << 63))
        return shuffled


def token_streams(folder: str | os.PathLike) -> dict[str, TokenStream]:
    """The token streams of a folder by split: the folder itself as `train`, or its subfolders by their names.
    Raises:
        `InputError`: there is no token stream, or there are several of different tokenizers.
    """
    folder = Path(folder).expanduser()
    if (folder / INDEX_NAME).is_file():
        return {"train": TokenStream(folder)}
    folders = [str(path.parent) for path in sorted(folder.glob(f"*/{INDEX_NAME}"))]
    if not folders:
        raise InputError(
            f"{folder}: no {INDEX_NAME}; expected a folder written by tokenize_corpus, or a folder of such folders"
        )
    return _opened(folders)


def _opened(folders: Iterable[str]) -> dict[str, TokenStream]:
    """The streams of folders or addresses by the last name of each, which is that of the split."""
    places = {folder.rpartition("/")[2]: folder for folder in folders}
    names = sorted(places, key=lambda name: name != "train")
    streams = {name: TokenStream(places[name]) for name in names}
    for name, stream in streams.items():
        first = streams[names[0]].index
        if (stream.index.tokenizer_hash, stream.index.vocab_size) != (first.tokenizer_hash, first.vocab_size):
            raise InputError(
                f"{parent_of(places[name])}: {names[0]} and {name} are of different tokenizers; tokenize one again"
            )
    return streams
