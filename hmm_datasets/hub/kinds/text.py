"""Data sets of text for the Hub: token streams and word corpora as Parquet, each with a card.

The functions write what a repository has besides the files that are there already: the Parquet files, which
`load_dataset("USER/NAME")` reads without this package, and the card. Each returns nothing and writes into a folder
that exists.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
from datasets import List, Value

from ...data.builders.token_shards import TokenExamples, document_tables
from ...display import format_bytes
from ...hmm.sampling import smallest_unsigned
from ...runtime.progress import progress_bar
from ...text.corpora.presets import corpus_licence
from ...text.stream.reader import TokenStream
from ...text.tokenizers.words import Sentences, WordCorpus
from ..cards import write_card
from ..parquet import MAX_SHARD_BYTES, write_split

_WORDS = 20  # of a vocabulary that the card lists
_SENTENCES = 1 << 16  # in a table
_ON_HUB = {"odc-by-1.0": "odc-by"}  # identifiers that the Hub has under another name than SPDX

_DECODE = """\
from huggingface_hub import snapshot_download
from transformers import AutoTokenizer

folder = snapshot_download("{repo_id}", repo_type="dataset", allow_patterns="{tokenizer}/*")
tokenizer = AutoTokenizer.from_pretrained(folder + "/{tokenizer}")
text = tokenizer.decode(default[0]["input_ids"])"""


def write_token_dataset(
    corpora: Mapping[str, Mapping[str, TokenStream]],
    folder: Path,
    *,
    name: str,
    licence: str | None = None,
    repo_id: str | None = None,
    tokenizer: str | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
    show_progress: bool = True,
) -> None:
    """Write the documents of token streams as Parquet, one per row, and the card.

    Args:
        corpora (mapping from `str` to mapping from `str` to [`~hmm_datasets.TokenStream`]): the streams by config and
            split. A config of the name `""` is the only one; its streams lie at the top of the repository.
        folder (`Path`): where `data/` and `README.md` go.
        name (`str`): title of the card.
        licence (`str`, *optional*): licence of the text, an identifier of the Hub.
        repo_id (`str`, *optional*): name on the Hub, for the commands in the card.
        tokenizer (`str`, *optional*): folder of the tokenizer in the repository.
        max_shard_bytes (`int`, *optional*): maximum size of a Parquet file before compression.
        show_progress (`bool`, *optional*, defaults to `True`): show a progress bar.
    """
    streams = [stream for splits in corpora.values() for stream in splits.values()]
    index = streams[0].index
    configs = []
    with progress_bar(
        sum(stream.num_documents for stream in streams), " documents", shown=show_progress, desc="Parquet"
    ) as bar:
        for config, splits in corpora.items():
            prefix = f"data/{config}" if config else "data"
            parts = []
            for split, stream in splits.items():
                rows = TokenExamples(stream, None, 1)
                tables = document_tables(stream, max_shard_bytes // rows.dtype.itemsize)
                write_split(
                    *(folder, split, tables, rows.features),
                    prefix=prefix,
                    max_shard_bytes=max_shard_bytes,
                    on_rows=bar.update,
                )
                parts.append(_split(split, prefix, stream.num_documents, stream.num_tokens))
            configs.append({"name": config or "default", "splits": parts})
    repository = f"hf://datasets/{repo_id or 'USER/NAME'}"
    first = next(iter(corpora))
    corpora_names = list(dict.fromkeys(stream.index.corpus for stream in streams))
    details = [
        ("Corpora", ", ".join(corpora_names)),
        ("Vocabulary", f"{index.vocab_size:,} tokens"),
        ("End of a document", f"token {index.eos_id}, the last of each row"),
        ("Tokenizer", f"`{tokenizer}/`" if tokenizer else "not in this repository"),
        ("SHA-256 of the tokenizer's definition", f"`{index.tokenizer_hash}`" if index.tokenizer_hash else ""),
        ("Text", _text_size(streams)),
    ]
    load = [
        "from hmm_datasets import TokenStream, TokenWindows",
        "",
        f'stream = TokenStream("{repository}{"/" + first if first else ""}/{next(iter(corpora[first]))}")'
        if first or len(corpora[first]) > 1
        else f'stream = TokenStream("{repository}")',
        "windows = TokenWindows(stream, length=1024)  # shards are downloaded when they are first read",
    ]
    _write_card(
        *(folder, name, licence, repo_id, corpora_names),
        summary="Token ids of a text corpus, one document per row. The same tokens lie beside them as shards "
        "that are memory-mapped, read by position and checked by their SHA-256.",
        configs=configs,
        details=[{"name": key, "value": value} for key, value in details if value],
        load="\n".join(load),
        decode=tokenizer and _DECODE.format(repo_id=repo_id or "USER/NAME", tokenizer=tokenizer),
    )


def write_word_dataset(
    corpus: WordCorpus, folder: Path, *, name: str, licence: str | None = None, repo_id: str | None = None
) -> None:
    """Write the sentences of a word corpus as Parquet, and the card; for the arguments see [`write_token_dataset`].

    The splits are `train`, `test` and `unique`; a row has `input_ids` and `text`.
    """
    parts = {part: getattr(corpus, part) for part in ("train", "test", "unique") if len(getattr(corpus, part))}
    kind, words, entries = str(smallest_unsigned(len(corpus.vocabulary))), np.array(corpus.vocabulary, object), []
    features = datasets.Features({"input_ids": List(Value(kind)), "text": Value("string")})
    with progress_bar(sum(map(len, parts.values())), " sentences", desc="Parquet") as bar:
        for part, sentences in parts.items():
            write_split(folder, part, _sentence_tables(sentences, words, features), features, on_rows=bar.update)
            entries.append(_split(part, "data", len(sentences), len(sentences.tokens)))
    shown = corpus.vocabulary[:_WORDS]
    _write_card(
        *(folder, name, licence, repo_id, [corpus.corpus] if corpus.corpus else []),
        summary=f"Real sentences that consist of the {len(corpus.vocabulary):,} most frequent words only, as "
        "symbols to which a hidden Markov model can be fitted. `unique` has each distinct sentence of `train` "
        "once.",
        configs=[{"name": "default", "splits": entries}],
        details=[
            {
                "name": "Vocabulary",
                "value": ", ".join(shown) + (", ..." if len(shown) < len(corpus.vocabulary) else ""),
            },
            {"name": "Read", "value": f"{corpus.num_documents:,} documents, {corpus.num_sentences:,} sentences"},
        ],
        load="from huggingface_hub import snapshot_download\n\n"
        "from hmm_datasets.text.tokenizers.words import WordCorpus\n\n"
        f'corpus = WordCorpus.load(snapshot_download("{repo_id or "USER/NAME"}", repo_type="dataset"))',
    )


def _sentence_tables(sentences: Sentences, words: np.ndarray, features: datasets.Features) -> Iterator[pa.Table]:
    """The sentences as tables, with their words separated by spaces."""
    for first in range(0, len(sentences), _SENTENCES):
        rows = [sentences[number] for number in range(first, min(first + _SENTENCES, len(sentences)))]
        columns = {"input_ids": rows, "text": [" ".join(words[row]) for row in rows]}
        yield pa.table(columns, schema=features.arrow_schema)


def _write_card(
    folder: Path,
    name: str,
    licence: str | None,
    repo_id: str | None,
    corpora: Sequence[str],
    *,
    details: list[dict[str, str]],
    **facts: Any,
) -> None:
    """Write a card with the licences of the named corpora among `corpora`; the front matter has one identifier."""
    stated = {corpus: text for corpus in corpora if (text := corpus_licence(corpus))}
    details += [{"name": f"Licence of {Path(corpus).name}", "value": text} for corpus, text in stated.items()]
    names = {"other" if " " in text else _ON_HUB.get(text.lower(), text.lower()) for text in stated.values()}
    if licence is None and stated:
        licence = names.pop() if len(names) == 1 and len(stated) == len(corpora) else "other"
    limits = [] if licence else ["The licence of the text is not known to the package that wrote this card."]
    facts |= {"name": name, "license": licence, "repo_id": repo_id, "details": details, "limits": limits}
    write_card("text", folder, facts)


def _split(split: str, prefix: str, rows: int, tokens: int | None) -> dict[str, Any]:
    return {"split": split, "path": f"{prefix}/{split}-*", "rows": rows, "tokens": tokens}


def _text_size(streams: list[TokenStream]) -> str:
    sizes = [stream.index.num_bytes for stream in streams if stream.index.num_bytes is not None]
    return f"{format_bytes(sum(sizes))} of UTF-8" if len(sizes) == len(streams) else ""
