"""Steps of a datatrove pipeline that tokenizes a corpus in the same way as
[`~hmm_datasets.text.stream.tokenize_corpus`].

    reader = partial(read_corpus, "fineweb-edu", {"split": "train"})
    LocalPipelineExecutor([reader, PlainTextTokenizer(folder, "tokenizer/tokenizer.json", ...)])

A task reads its share of the corpus and writes one shard. When all tasks have ended, [`write_index`] makes their
folder a token stream. The steps run on any executor of datatrove: local, Slurm or Ray. They need the extra
`datatrove`.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from datasets.distributed import split_dataset_by_node
from datatrove.data import Document
from datatrove.pipeline.tokens import DocumentTokenizer

from ..corpora.loading import load_corpus
from .datatrove_shards import adopt_datatrove


def read_corpus(corpus: str, settings: Mapping[str, Any], _: None, rank: int, world_size: int) -> Iterator[Document]:
    """Reads a corpus: task `r` of `W` reads documents `r`, `r + W`, ..., or its share of the files.

    Args:
        corpus (`str`), settings (mapping): a corpus of text, and the `split` and other arguments of
            [`~hmm_datasets.text.corpora.loading.load_corpus`].
        rank (`int`), world_size (`int`): number of the task, and how many there are.
    """
    rows = load_corpus(corpus, kind="text", **settings)
    for number, row in enumerate(split_dataset_by_node(rows, rank=rank, world_size=world_size)):
        yield Document(text=row["text"], id=f"{corpus}/{rank}/{number}")


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


def write_index(folder: Path, tokenizer: str, corpus: str, *_: Any) -> None:
    """Calls [`~hmm_datasets.text.stream.adopt_datatrove`]; run it as one task, after the tasks that write shards.

    Args:
        folder (`Path`): folder of the shards.
        tokenizer (`str`): folder of the tokenizer, or its id on the Hub.
        corpus (`str`): name of the text.
    """
    from transformers import AutoTokenizer

    adopt_datatrove(folder, AutoTokenizer.from_pretrained(tokenizer, trust_remote_code=False), corpus)
