"""Train a byte-level BPE tokenizer on a text corpus, and turn that corpus and conversations into token streams.

    python recipes/tokenize_corpus.py --config recipes/demo/tokenize_corpus.yaml [--vocab_size 8192 ...]

In `output_dir`: `tokenizer/`; under `text/` and `chat/` the token streams `train/` and `test/`. Conversations are
written as the chat template lays them out, one document each; the names of special tokens in a text are text. Stopped
at any moment and started again with the same settings it goes on after the last whole shard.
"""

from dataclasses import asdict, dataclass, field

from hmm_datasets.recipe import run


@dataclass
class TokenizeSettings:
    """What to tokenize."""

    output_dir: str = field(metadata={"help": "Where everything goes."})
    corpus: str = field(default="tinystories-sample", metadata={"help": "A text corpus: name, file or Hub data set."})
    conversations: str | None = field(
        default="instructions-sample",
        metadata={"help": "A corpus of conversations: name, file or Hub data set; none for none."},
    )
    tokenizer_splits: list[str] = field(
        default_factory=lambda: ["train"],
        metadata={"help": "Splits whose text the tokenizer is trained on; test among them makes it a leaky one."},
    )
    vocab_size: int = field(default=4096, metadata={"help": "Tokens, special ones included."})
    split_pattern: str = field(default="gpt4", metadata={"help": "gpt2, gpt4, or a regular expression."})
    test_fraction: float = field(default=0.1, metadata={"help": "Share of the documents that is held out."})
    max_documents: int | None = field(default=None, metadata={"help": "Read no more documents of a split than this."})
    shard_tokens: int = field(
        default=100_000_000, metadata={"help": "A shard ends with the document that brings it to so many tokens."}
    )

    def __post_init__(self):
        if self.conversations == "none":
            self.conversations = None


def main(settings: TokenizeSettings) -> None:
    """Train the tokenizer, on train text alone unless told otherwise; then tokenize both splits of both corpora."""
    from itertools import chain
    from pathlib import Path

    from hmm_datasets.text.bpe import token_bytes
    from hmm_datasets.text.corpora import load_corpus
    from hmm_datasets.text.shards import INDEX_NAME, TokenStream, tokenize_corpus, tokenizer_hash, write_tokens
    from hmm_datasets.training.record import write_record

    output = Path(settings.output_dir)

    def rows(corpus: str, split: str):
        rows = load_corpus(corpus, split=split, test_fraction=settings.test_fraction)
        return rows if settings.max_documents is None else rows.take(settings.max_documents)

    data = {name: value for name, value in asdict(settings).items() if name != "output_dir"}
    write_record(output, asdict(settings), data)

    def texts():
        return chain.from_iterable(rows(settings.corpus, split)["text"] for split in settings.tokenizer_splits)

    tokenizer = _tokenizer(output / "tokenizer", settings, texts)
    for split in ("train", "test"):
        folder, documents = output / "text" / split, rows(settings.corpus, split)
        if (folder / INDEX_NAME).exists():
            index = TokenStream(folder).index
        else:
            index = tokenize_corpus(
                lambda first, documents=documents: documents.skip(first)["text"],
                tokenizer,
                folder,
                settings.corpus,
                shard_tokens=settings.shard_tokens,
            )
        _report("text", split, index)
        if settings.conversations is None:
            continue
        folder, chats = output / "chat" / split, rows(settings.conversations, split)
        if (folder / INDEX_NAME).exists():
            index = TokenStream(folder).index
        else:
            index = write_tokens(
                lambda first, chats=chats: _laid_out(tokenizer, chats.skip(first)["messages"]),
                folder,
                vocab_size=len(tokenizer),
                eos_id=tokenizer.eos_token_id,
                tokenizer_hash=tokenizer_hash(tokenizer),
                corpus=settings.conversations,
                token_bytes=token_bytes(tokenizer),
                shard_tokens=settings.shard_tokens,
            )
        _report("chat", split, index)


def _tokenizer(folder, settings: TokenizeSettings, texts):
    """The tokenizer an earlier run left in `folder`, or one trained on the texts."""
    from transformers import PreTrainedTokenizerFast

    from hmm_datasets.files import atomic_folder
    from hmm_datasets.text.bpe import train_bpe

    if not folder.exists():
        trained = train_bpe(texts(), settings.vocab_size, split_pattern=settings.split_pattern)
        with atomic_folder(folder) as temporary:
            trained.save_pretrained(temporary)
    return PreTrainedTokenizerFast.from_pretrained(folder)


def _laid_out(tokenizer, conversations):
    for messages in conversations:
        # What a message says in the form of a special token is no such token.
        yield tokenizer.apply_chat_template(messages, return_dict=False, sanitize_control_tokens=True)


def _report(kind: str, split: str, index) -> None:
    compression = f"{index.num_bytes / index.num_tokens:.2f} bytes a token"
    counts = f"{index.num_documents:,} documents, {index.num_tokens:,} tokens, {len(index.shards):,} shard(s)"
    print(f"{kind} {split}: {counts}, {compression}")


if __name__ == "__main__":
    run(main, TokenizeSettings)
