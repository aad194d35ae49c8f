"""Token streams on disk: concatenated documents in memory-mapped shards.

A folder has shards in datatrove's layout (`00000.ds` and `00000.ds.index`, `00001.ds` and so on) and `index.json`,
which describes their origin and content (see `index`). Every document has exactly one EOS, at its end. A shard ends
with the first document that brings it to `shard_tokens` tokens. The same documents give the same bytes.
"""

from .datatrove_shards import adopt_datatrove
from .index import FORMAT_VERSION, INDEX_NAME, Shard, TokenIndex
from .reader import TokenStream
from .tokenization import tokenize_corpus, tokenize_splits, tokenizer_hash
from .unfinished import check_replaceable
from .writer import SHARD_TOKENS, write_tokens

__all__ = [
    "FORMAT_VERSION",
    "INDEX_NAME",
    "SHARD_TOKENS",
    "Shard",
    "TokenIndex",
    "TokenStream",
    "adopt_datatrove",
    "check_replaceable",
    "tokenize_corpus",
    "tokenize_splits",
    "tokenizer_hash",
    "write_tokens",
]
