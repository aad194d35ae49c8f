"""Train a byte-level BPE tokenizer on a text corpus, and turn that corpus and conversations into token streams.

    python recipes/tokenize_corpus.py --config recipes/demo/tokenize_corpus.yaml [--vocab_size 8192 ...]

In `output_dir`: `tokenizer/`; under `text/` and `chat/` the token streams `train/` and `test/`. Conversations are
written as the chat template lays them out, one document each.
"""

from dataclasses import asdict, dataclass, field

from hmm_datasets.recipe import run


@dataclass
class TokenizeSettings:
    """What to tokenize."""

    output_dir: str = field(metadata={"help": "Where everything goes."})
    corpus: str = field(default="tinystories-sample", metadata={"help": "A text corpus: name, file or Hub data set."})
    conversations: str | None = field(
        default="instructions-sample", metadata={"help": "A corpus of conversations: name, file or Hub data set."}
    )
    vocab_size: int = field(default=4096, metadata={"help": "Tokens, special ones included."})
    split_pattern: str = field(default="gpt4", metadata={"help": "gpt2, gpt4, or a regular expression."})
    test_fraction: float = field(default=0.1, metadata={"help": "Share of the documents that is held out."})
    max_documents: int | None = field(default=None, metadata={"help": "Read no more documents of a split than this."})


def main(settings: TokenizeSettings) -> None:
    """Train the tokenizer on train text alone, then tokenize both splits of both corpora."""
    import itertools
    from pathlib import Path

    from hmm_datasets.text.bpe import train_bpe
    from hmm_datasets.text.corpora import load_corpus
    from hmm_datasets.text.shards import tokenize_corpus, tokenizer_hash, write_tokens
    from hmm_datasets.training.record import write_record

    output = Path(settings.output_dir)

    def documents(corpus: str, split: str, column: str):
        rows = load_corpus(corpus, split=split, test_fraction=settings.test_fraction)
        return itertools.islice((row[column] for row in rows), settings.max_documents)

    data = {"corpus": settings.corpus, "conversations": settings.conversations, "vocab_size": settings.vocab_size}
    write_record(output, asdict(settings), data)
    tokenizer = train_bpe(
        documents(settings.corpus, "train", "text"), settings.vocab_size, split_pattern=settings.split_pattern
    )
    tokenizer.save_pretrained(output / "tokenizer")
    for split in ("train", "test"):
        texts = documents(settings.corpus, split, "text")
        index = tokenize_corpus(texts, tokenizer, output / "text" / split, settings.corpus, overwrite=True)
        _report("text", split, index)
        if settings.conversations is None:
            continue
        chats = documents(settings.conversations, split, "messages")
        index = write_tokens(
            (tokenizer.apply_chat_template(messages, return_dict=False) for messages in chats),
            output / "chat" / split,
            vocab_size=len(tokenizer),
            eos_id=tokenizer.eos_token_id,
            tokenizer_hash=tokenizer_hash(tokenizer),
            corpus=settings.conversations,
            num_bytes=None,
            overwrite=True,
        )
        _report("chat", split, index)


def _report(kind: str, split: str, index) -> None:
    compression = "" if index.num_bytes is None else f", {index.num_bytes / index.num_tokens:.2f} bytes a token"
    print(f"{kind} {split}: {index.num_documents:,} documents, {index.num_tokens:,} tokens{compression}")


if __name__ == "__main__":
    run(main, TokenizeSettings)
