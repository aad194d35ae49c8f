"""Token streams on disk: concatenated documents in memory-mapped shards.

A folder has shards in datatrove's layout (`00000.ds` and `00000.ds.index`, `00001.ds` and so on) and `index.json`,
which describes their origin and content (see `index`). Every document has exactly one EOS, at its end. A shard ends
with the first document that brings it to `shard_tokens` tokens. The same documents give the same bytes.
"""

from .datatrove_shards import adopt_datatrove as adopt_datatrove
from .index import FORMAT_VERSION as FORMAT_VERSION
from .index import INDEX_NAME as INDEX_NAME
from .index import Shard as Shard
from .index import TokenIndex as TokenIndex
from .reader import TokenStream as TokenStream
from .tokenization import tokenize_corpus as tokenize_corpus
from .tokenization import tokenize_splits as tokenize_splits
from .tokenization import tokenizer_hash as tokenizer_hash
from .unfinished import check_replaceable as check_replaceable
from .writer import SHARD_TOKENS as SHARD_TOKENS
from .writer import write_tokens as write_tokens
