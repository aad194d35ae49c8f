"""Steps of a datatrove pipeline that tokenizes a corpus in the same way as
[`~hmm_datasets.text.stream.tokenize_corpus`].

    LocalPipelineExecutor([CorpusReader("fineweb-edu"), PlainTextTokenizer(folder, "tokenizer/tokenizer.json", ...)])

A task reads its share of the corpus and writes one shard. When all tasks have ended, [`IndexWriter`] makes their
folder a token stream. The steps run on any executor of datatrove: local, Slurm or Ray. They need the extra
`datatrove`.
"""

import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from datasets.distributed import split_dataset_by_node
from datatrove.data import Document, DocumentsPipeline
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.tokens import DocumentTokenizer

from ..corpora.loading import load_corpus
from .datatrove_shards import adopt_datatrove

if TYPE_CHECKING:
    from datasets import IterableDataset


class CorpusReader(PipelineStep):
    """Reads a split of a corpus: task `r` of `W` reads documents `r`, `r + W`, ..., or its share of the files.

    Args:
        corpus (`str`): a corpus for [`~hmm_datasets.text.corpora.loading.load_corpus`].
        split (`str`, *optional*, defaults to `"train"`), test_fraction (`float`, *optional*): see `load_corpus`.
        max_documents (`int`, *optional*): maximum number of rows of the source to read, before it is split.
    """

    name = "Corpus"
    type = "📖 - READER"

    def __init__(
        self,
        corpus: str,
        split: str = "train",
        test_fraction: float | None = None,
        max_documents: int | None = None,
    ):
        super().__init__()
        self.corpus, self.split, self.test_fraction = corpus, split, test_fraction
        self.max_documents = max_documents

    def open(self) -> "IterableDataset":
        """The rows of all tasks together.

        Raises:
            `InputError`: for the reasons of [`~hmm_datasets.text.corpora.loading.load_corpus`], or because the corpus
                has conversations.
        """
        return load_corpus(
            self.corpus,
            split=self.split,
            kind="text",
            test_fraction=self.test_fraction,
            max_documents=self.max_documents,
        )

    def run(self, data: DocumentsPipeline = None, rank: int = 0, world_size: int = 1) -> DocumentsPipeline:
        """Yield the documents of the steps before, then those of this task."""
        if data:
            yield from data
        rows = self.open()
        for number, row in enumerate(split_dataset_by_node(rows, rank=rank, world_size=world_size)):
            document = Document(text=row["text"], id=f"{self.corpus}/{rank}/{number}")
            self.update_doc_stats(document)
            yield document


class PlainTextTokenizer(DocumentTokenizer):
    """datatrove's `DocumentTokenizer`, but the names of special tokens in a text are encoded as text.

    So a document can contain neither an EOS nor a role token. Documents keep their order, because windows are shuffled
    when a trainer reads them.

    Args:
        output_folder (`str`): folder for the shards.
        tokenizer_name_or_path (`str`): a `tokenizer.json`, or an id on the Hub.
        eos_token (`str`): token that ends every document.
    """

    def __init__(self, output_folder: str, tokenizer_name_or_path: str, eos_token: str):
        super().__init__(output_folder, tokenizer_name_or_path, eos_token=eos_token, shuffle_documents=False)

    @cached_property
    def tokenizer(self):
        """The tokenizer, which encodes special tokens as text and does not truncate or pad."""
        tokenizer = super().tokenizer
        tokenizer.encode_special_tokens = True
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer


class IndexWriter(PipelineStep):
    """Calls [`~hmm_datasets.text.stream.adopt_datatrove`]; run it as one task, after the tasks that write shards.

    Args:
        folder (`str`): folder of the shards.
        tokenizer (`str`): folder of the tokenizer, or its id on the Hub.
        corpus (`str`): name of the text.
    """

    name = "Index"
    type = "🔢 - TOKENIZER"

    def __init__(self, folder: str | os.PathLike, tokenizer: str | os.PathLike, corpus: str):
        super().__init__()
        self.folder, self.tokenizer, self.corpus = Path(folder), str(tokenizer), corpus

    def run(self, data: DocumentsPipeline = None, rank: int = 0, world_size: int = 1) -> DocumentsPipeline:
        """Write the index, then yield the documents of the steps before."""
        from transformers import AutoTokenizer

        adopt_datatrove(
            self.folder, AutoTokenizer.from_pretrained(self.tokenizer, trust_remote_code=False), self.corpus
        )
        if data:
            yield from data
