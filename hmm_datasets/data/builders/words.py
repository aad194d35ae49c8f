"""`datasets.load_dataset("words", ...)`: a word-level corpus as a Hugging Face data set.

```python
import hmm_datasets
from datasets import load_dataset

sentences = load_dataset("words", data_dir="outputs/words", columns=["input_ids", "text"], split="train")
windows = load_dataset("words", data_dir="outputs/words", length=64, split="train", streaming=True)
```

`data_dir` is a folder written by [`~hmm_datasets.text.tokenizers.words.WordCorpus.save`]. On the Hub,
`data_files="hf://datasets/USER/NAME/words.json"` names the corpus. The splits are `train`, `test` and `unique`, in
which each distinct sentence of `train` occurs once. The whole corpus is in memory. The `state_dict` of a stream is one
index, as for `"token_shards"`.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import datasets
import numpy as np
import pyarrow as pa

from ...errors import InputError
from ...hmm.integers import integer
from ...hmm.sampling import smallest_unsigned
from ...hub.download import download, is_address, parent_of
from ...text.tokenizers.words import ARRAYS_NAME, INDEX_NAME, Sentences, WordCorpus
from .columns import TOKEN_COLUMNS
from .indexed_builder import IndexedBuilder, IndexedExamples, features_of, files_named

_COLUMNS = (*TOKEN_COLUMNS, "text")


@dataclass
class WordsConfig(datasets.BuilderConfig):
    """Settings of the data set, given to `load_dataset` by name.

    Args:
        length (`int`, *optional*): symbols per window; the sentences are concatenated in a seeded order, and the
            remainder is dropped. None gives one sentence per row.
        seed (`int`, *optional*, defaults to 0): seed of that order.
        columns (list of `str`, *optional*, defaults to `["input_ids"]`): the columns in this order, of `input_ids`,
            `labels`, `attention_mask` and `text` (the words, separated by spaces).
        num_shards (`int`, *optional*, defaults to 48): shards of the stream.
    """

    length: int | None = None
    seed: int = 0
    columns: list[str] = field(default_factory=lambda: ["input_ids"])
    num_shards: int = 48

    def __post_init__(self):
        super().__post_init__()
        if self.length is not None:
            self.length = integer("length", self.length, 1, 31)
        self.num_shards = integer("num_shards", self.num_shards, 1, 31)
        if not self.columns or len({*self.columns} & {*_COLUMNS}) < len(self.columns):
            raise InputError(
                f"columns are {', '.join(self.columns) or 'empty'}; expected some of {', '.join(_COLUMNS)}, each once"
            )


class Words(IndexedBuilder):
    """Builder of sentences or windows of a word-level corpus."""

    BUILDER_CONFIG_CLASS = WordsConfig

    def __init__(self, *args, data_dir: str | None = None, data_files: Any = None, **settings):
        named = files_named(INDEX_NAME, data_files)
        if data_dir is not None:
            folder = Path(data_dir).expanduser()
        elif len(named) == 1 and is_address(named[0]):
            folder = download(parent_of(named[0]), [INDEX_NAME, ARRAYS_NAME], expected="a word corpus")
        else:
            raise InputError(
                "words reads a folder; pass data_dir=, a folder written by WordCorpus.save, or "
                f'data_files="hf://datasets/USER/NAME/{INDEX_NAME}"'
            )
        self.corpus = WordCorpus.load(folder)
        files = {"train": [str(folder / name) for name in (INDEX_NAME, ARRAYS_NAME)]}
        super().__init__(*args, data_dir=data_dir, data_files=files, **settings)

    def _info(self) -> datasets.DatasetInfo:
        return datasets.DatasetInfo(description="Sentences over a small vocabulary of words.")

    def _split_generators(self, dl_manager) -> list[datasets.SplitGenerator]:
        config = cast(WordsConfig, self.config)
        splits = {}
        for name in ("train", "test", "unique"):
            sentences = getattr(self.corpus, name)
            if config.length is not None and len(sentences.tokens) >= config.length:
                windows = self.corpus.as_windows(name, config.length, config.seed)
                splits[name] = Sentences(windows.ravel(), np.arange(0, windows.size + 1, config.length))
            elif config.length is None and len(sentences):
                splits[name] = sentences
        if "train" not in splits:
            raise InputError(f"length={config.length}, but train has only {len(self.corpus.train.tokens)} symbols")
        return [
            self._split(name, WordExamples(rows, self.corpus.vocabulary, config.columns, config.num_shards))
            for name, rows in splits.items()
        ]


class WordExamples(IndexedExamples):
    """Sentences or windows by index.

    Args:
        rows ([`~hmm_datasets.text.tokenizers.words.Sentences`]): the rows.
        vocabulary (tuple of `str`): the words.
        columns (list of `str`): names of the columns.
        shards (`int`): number of shards.
    """

    def __init__(self, rows: Sentences, vocabulary: tuple[str, ...], columns: list[str], shards: int):
        super().__init__(0, 1, len(rows), shards, smallest_unsigned(len(vocabulary)), columns)
        self.rows = rows
        self.words = np.array(vocabulary, dtype=object)

    @property
    def features(self) -> datasets.Features:
        """The columns and their types."""
        return features_of(self.dtype, self.columns, {"text": datasets.Value("string")})

    def _more_columns(self, first: int, step: int, count: int) -> dict[str, pa.Array]:
        if "text" not in self.columns:
            return {}
        numbers = range(first, first + step * count, step)
        return {"text": pa.array([" ".join(self.words[self.rows[number]]) for number in numbers], pa.string())}

    def _read(self, first: int, step: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        numbers = first + step * np.arange(count)
        starts, stops = self.rows.offsets[numbers], self.rows.offsets[numbers + 1]
        offsets = np.concatenate([[0], np.cumsum(stops - starts)])
        pairs = zip(starts.tolist(), stops.tolist(), strict=True)
        tokens = np.concatenate([self.rows.tokens[start:stop] for start, stop in pairs])
        return tokens.astype(self.dtype), offsets
