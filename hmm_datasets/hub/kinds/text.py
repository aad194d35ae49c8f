"""Token streams as data sets on the Hub: their documents as Parquet, and a card.

A repository has them besides the shards: `load_dataset("USER/NAME")` reads the Parquet files without this package.
"""

from collections.abc import Mapping
from pathlib import Path

from ...data.builders.token_shards import TokenExamples
from ...display import format_bytes
from ...runtime.progress import progress_bar
from ...text.corpora.presets import corpus_licence
from ...text.stream.reader import TokenStream
from ..cards import write_card
from ..parquet import MAX_SHARD_BYTES, write_split

_ON_HUB = {"odc-by-1.0": "odc-by"}  # identifiers that the Hub has under another name than SPDX


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
        folder (`Path`): where `data/` and `README.md` go; it exists.
        name (`str`): title of the card.
        licence (`str`, *optional*): licence of the text, an identifier of the Hub; by default that of the named
            corpora among the streams.
        repo_id (`str`, *optional*): name on the Hub, for the commands in the card.
        tokenizer (`str`, *optional*): folder of the tokenizer in the repository.
        max_shard_bytes (`int`, *optional*): maximum size of a Parquet file before compression, if it has more than
            four million tokens.
        show_progress (`bool`, *optional*, defaults to `True`): show a progress bar.
    """
    streams = [stream for splits in corpora.values() for stream in splits.values()]
    configs = []
    count = sum(stream.num_documents for stream in streams)
    with progress_bar(count, " documents", shown=show_progress, desc="Parquet") as bar:
        for config, splits in corpora.items():
            prefix, parts = f"data/{config}".rstrip("/"), []
            for split, stream in splits.items():
                rows = TokenExamples(stream, None, 1)
                sizes = {"prefix": prefix, "max_shard_bytes": max_shard_bytes}
                write_split(folder, split, rows.tables(), rows.features, **sizes, on_rows=bar.update)
                counts = {"rows": stream.num_documents, "tokens": stream.num_tokens}
                parts.append({"split": split, "path": f"{prefix}/{split}-*", **counts})
            configs.append({"name": config or "default", "splits": parts})
    first = next(iter(corpora))
    folders = [first, next(iter(corpora[first]))] if first or len(corpora[first]) > 1 else []
    names = list(dict.fromkeys(stream.index.corpus for stream in streams))
    stated = {corpus: text for corpus in names if (text := corpus_licence(corpus))}
    identifiers = {"other" if " " in text else _ON_HUB.get(text.lower(), text.lower()) for text in stated.values()}
    if licence is None and stated:
        licence = identifiers.pop() if len(identifiers) == 1 and len(stated) == len(names) else "other"
    index, sizes = streams[0].index, [stream.index.num_bytes for stream in streams]
    details = {
        "Corpora": ", ".join(names),
        "Vocabulary": f"{index.vocab_size:,} tokens",
        "End of a document": f"token {index.eos_id}, the last of each row",
        "Tokenizer": f"`{tokenizer}/`" if tokenizer else "not in this repository",
        "SHA-256 of the tokenizer's definition": index.tokenizer_hash and f"`{index.tokenizer_hash}`",
        "Text": "" if None in sizes else f"{format_bytes(sum(filter(None, sizes)))} of UTF-8",
        **{f"Licence of {Path(corpus).name}": text for corpus, text in stated.items()},
    }
    write_card(
        "text",
        folder,
        {
            "name": name,
            "license": licence,
            "repo_id": repo_id,
            "configs": configs,
            "details": [{"name": key, "value": value} for key, value in details.items() if value],
            "stream": "".join(f"/{name}" for name in folders if name),
            "tokenizer": tokenizer,
        },
    )
