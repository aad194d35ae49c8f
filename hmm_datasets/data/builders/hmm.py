"""`datasets.load_dataset("hmm", ...)`: sequences of a process as a Hugging Face data set, streamed or prepared.

```python
import hmm_datasets
from datasets import load_dataset

stream = load_dataset("hmm", "mess3", length=100, split="train", streaming=True)
for batch in stream.with_format("torch").batch(256):  # about ten times as fast as single rows
    batch["input_ids"], batch["labels"]  # (256, 101), int64: 100 symbols after the beginning token
table = load_dataset("hmm", "me/my-hmm", length=100, num_sequences=10_000)
```

The second argument, or `data_dir`, is a folder written by `save_pretrained` of a process, a name such as
`mess3(x=0.05)`, or `USER/NAME` of a process on the Hub, or its address, `hf://datasets/USER/NAME@REVISION`. Streaming
stores nothing. The `state_dict` of a stream is one index, and the number of rows read from there in a table of 1,024
rows, so resuming takes constant time.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import datasets
import numpy as np
import pyarrow as pa

from ...errors import InputError
from ...hmm.integers import integer
from ...hmm.loading import load_source
from ...hmm.process import Process
from ...hmm.sampling import smallest_unsigned
from ..sequences import ENDLESS, TEST_FIRST
from .columns import bytes_per_row, check_columns, column_features, known_columns
from .indexed_builder import IndexedBuilder, IndexedExamples, features_of

_TABLE_BYTES = 1 << 25  # of a table while it is computed


@dataclass
class HMMBuilderConfig(datasets.BuilderConfig):
    """Settings of the data set, given to `load_dataset` by name.

    Args:
        length (`int`, *optional*, defaults to 100): symbols per sequence.
        num_sequences (`int`, *optional*): sequences of the split `train`; required unless streaming, where the default
            is endless.
        num_test_sequences (`int`, *optional*, defaults to 0): sequences of the split `test`, from the same stream at
            indices from `2**63` on, which `train` never reaches.
        seed (`int`, *optional*, defaults to 0): seed of the stream.
        bos (`bool`, *optional*, defaults to `True`): put a beginning token of id `E` in front, so that the first
            symbol is predicted too. [`~hmm_datasets.HMMSequences`] has the same default.
        columns (list of `str`, *optional*, defaults to `["input_ids", "labels"]`): the columns, in this order; see
            [`~hmm_datasets.data.builders.columns`]. Models of transformers compute a loss from `labels`.
        fingerprint (`str`, *optional*): fingerprint of the process, which is found by itself.
        num_shards (`int`, *optional*, defaults to 48): shards of the stream. Choose a multiple of processes times
            loader workers; otherwise `datasets` draws every sequence on every rank and drops those of other ranks.
    """

    length: int = 100
    num_sequences: int | None = None
    num_test_sequences: int = 0
    seed: int = 0
    bos: bool = True
    columns: list[str] = field(default_factory=lambda: ["input_ids", "labels"])
    num_shards: int = 48
    fingerprint: str | None = None

    def __post_init__(self):
        super().__post_init__()
        for name, minimum, exponent in (
            *(("length", 1, 32), ("num_test_sequences", 0, 63), ("seed", 0, 64), ("num_shards", 1, 31)),
            *[("num_sequences", 1, 63)] * (self.num_sequences is not None),
        ):
            setattr(self, name, integer(name, getattr(self, name), minimum, exponent))


class HMMBuilder(IndexedBuilder):
    """Builder of `input_ids` and `labels`: lists of the smallest types that can store all ids, and all labels."""

    BUILDER_CONFIG_CLASS = HMMBuilderConfig

    def __init__(
        self,
        *args,
        config_name: str | None = None,
        data_dir: str | None = None,
        data_files: Any = None,
        **settings,
    ):
        if config_name not in (None, "default") and data_dir is None:
            config_name, data_dir = None, config_name  # load_dataset("hmm", "mess3")
        if data_dir is None or data_files:
            of = "no process is named" if data_dir is None else f"data_files is given beside {data_dir}"
            raise InputError(
                f"{of}; pass a folder written by save_pretrained, USER/NAME on the Hub or a name such as mess3 as "
                "data_dir=, and no data_files"
            )
        # The names of prepared data have the fingerprint in them, whatever a name means in later versions.
        self._source = load_source(os.path.expanduser(data_dir))
        settings["fingerprint"] = self._source.fingerprint()
        super().__init__(*args, config_name=config_name, data_dir=data_dir, **settings)

    def _info(self) -> datasets.DatasetInfo:
        return datasets.DatasetInfo(description="Sequences drawn from a known process.")

    def _split_generators(self, dl_manager) -> list[datasets.SplitGenerator]:
        config = self.config
        if config.num_sequences is None and not dl_manager.is_streaming:
            raise InputError("an endless data set cannot be stored; pass num_sequences=, or streaming=True")
        splits = [(datasets.Split.TRAIN, 0, config.num_sequences or ENDLESS)]
        if config.num_test_sequences > 0:
            splits.append((datasets.Split.TEST, TEST_FIRST, config.num_test_sequences))
        return [
            self._split(
                name,
                HMMExamples(
                    *(self._source, config.length, config.seed, first, count, 1, config.bos, config.num_shards),
                    columns=config.columns,
                ),
            )
            for name, first, count in splits
        ]


class HMMExamples(IndexedExamples):
    """Sequences `first, first + step, ...` of a stream. They are independent, so shuffling keeps their order."""

    def __init__(
        self,
        source: Process,
        length: int,
        seed: int,
        first: int,
        count: int,
        step: int,
        bos: bool,
        shards: int,
        columns: Sequence[str] = ("input_ids", "labels"),
    ):
        check_columns(source, columns)
        super().__init__(first, step, count, shards, smallest_unsigned(source.num_symbols + bos), columns)
        self.source = source
        self.length = length
        self.seed = seed
        self.bos = bos

    @property
    def features(self) -> datasets.Features:
        """The columns and their types."""
        return features_of(self.dtype, self.columns, column_features(self.source, self.columns))

    def _more_columns(self, first: int, step: int, count: int) -> dict[str, pa.Array]:
        return known_columns(self.source, self.columns, self.length, self.seed, first, step, count)

    def _read(self, first: int, step: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        source, length = self.source, self.length
        count = max(1, min(count, _TABLE_BYTES // bytes_per_row(source, self.columns, length)))
        tokens = np.empty((count, length + self.bos), dtype=self.dtype)
        tokens[:, : int(self.bos)] = source.num_symbols
        source.sample(count, length, seed=self.seed, first=first, step=step, out=tokens[:, int(self.bos) :])
        if source.padding is None:
            return tokens.ravel(), np.arange(0, tokens.size + 1, tokens.shape[1])
        kept = tokens != source.padding
        return tokens[kept], np.concatenate([[0], kept.sum(axis=1).cumsum()])
