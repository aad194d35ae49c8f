# /// script
# requires-python = ">=3.11"
# dependencies = ["hmm-datasets"]
# ///

"""Train a tokenizer, write token streams; --executor slurm on a cluster.

The tokenizer is a byte-level BPE tokenizer of a text corpus; the streams are of that corpus and conversations.

    hmm-datasets tokenize mybook.txt
    hmm-datasets tokenize --config demo/tokenize_corpus.yaml [--vocab_size 8192 ...]

In `output_dir` it writes `tokenizer/`, and the token streams `train/` and `test/` below `text/` and `chat/`; for
several corpora of conversations below `chat/NAME/`. Each conversation is one document, written by the chat template.
Names of special tokens that occur in a text are encoded as text. With `--tokenizer` an existing tokenizer is used
instead of a new one, so that a corpus can be added later, in another folder:

    hmm-datasets tokenize --corpus none --conversations more.jsonl --tokenizer outputs/a/tokenizer \
        --output_dir outputs/more

With `--vocabulary characters` the new tokenizer has one token per character of the corpus, train and held out.

Both splits of a corpus are written in one pass over its first `max_documents` rows. A hash of its words decides
whether a document is held out; if a file has only one text, its end is held out. Everything is opened and checked
before the work starts. A run that was stopped continues after the last whole shard of each split when it is started
again with the same settings.
"""

import re
from dataclasses import asdict, dataclass
from pathlib import Path

from hmm_datasets.errors import InputError
from hmm_datasets.runtime.program import run
from hmm_datasets.runtime.setting_rules import Void
from hmm_datasets.runtime.settings import setting


@dataclass
class TokenizeSettings:
    """The corpora to tokenize, and the tokenizer."""

    output_dir: str | None = setting(None, "Output folder; by default outputs/ and the name of the corpus.")
    corpus: str | None = setting(
        None, "A text corpus: name, file or Hub data set; `none` for conversations alone, with a tokenizer."
    )
    conversations: list[str] | None = setting(
        None, "Corpora of conversations: names, files or Hub data sets; none by default."
    )
    tokenizer: str | None = setting(
        None, "Folder or Hub name of a fast tokenizer with an EOS token, to use instead of a new one."
    )
    tokenizer_splits: list[str] = setting(
        ["train"], "Splits whose text a new tokenizer is trained on; with test it is a leaky tokenizer."
    )
    vocabulary: str = setting("bpe", "Kind of a new tokenizer: bpe, or characters for one token per character.")
    vocab_size: int = setting(4096, "Vocabulary size of a new BPE tokenizer, special tokens included.", least=1)
    split_pattern: str = setting("gpt4", "How a new tokenizer cuts text: gpt2, gpt4, or a regular expression.")
    test_fraction: float = setting(0.1, "Share of the documents that is held out.", above=0, below=1)
    max_documents: int | None = setting(
        None, "Maximum number of rows to read per corpus, train and test together.", least=1
    )
    shard_tokens: int = setting(
        100_000_000, "A shard ends with the document that brings it to this many tokens.", least=1
    )

    voids = (
        Void("tokenizer_splits vocab_size vocabulary split_pattern", "with tokenizer", "no new one is trained"),
        Void("tokenizer_splits vocab_size split_pattern", "if vocabulary is characters"),
    )

    def __post_init__(self):
        named = [self.conversations] if isinstance(self.conversations, str) else self.conversations or []
        self.conversations = [] if named == ["none"] else list(named)
        self.corpus = None if self.corpus == "none" else self.corpus
        if self.corpus is None and not self.conversations:
            raise InputError("nothing to tokenize; give a file or a corpus, as in `hmm-datasets tokenize mybook.txt`")
        if self.corpus is None and self.tokenizer is None:
            raise InputError("corpus is none, so there is no text to train a tokenizer on; set tokenizer")
        if self.output_dir is None:
            self.output_dir = str(Path("outputs", _folder_name(self.corpus or self.conversations[0])))
        if self.vocabulary not in ("bpe", "characters"):
            raise InputError(f"vocabulary is {self.vocabulary!r}; expected bpe or characters")
        if self.vocabulary == "characters" and self.conversations and self.tokenizer is None:
            raise InputError(
                f"vocabulary is characters, which has no chat template for {self.conversations[0]}; set conversations "
                "to none"
            )
        if not set(self.tokenizer_splits) <= {"train", "test"} or not self.tokenizer_splits:
            raise InputError(f"tokenizer_splits is {self.tokenizer_splits}; expected train, test, or both")
        folders = self.chat_folders
        for name, folder in folders.items():
            other = next(
                (earlier for earlier in self.conversations if earlier != name and folders[earlier] == folder), None
            )
            if other is not None or self.conversations.count(name) > 1:
                raise InputError(f"{name} and {other or name} would both be written to {folder}; rename one of them")

    @property
    def chat_folders(self) -> dict[str, str]:
        """For each corpus of conversations the folder of its streams, below `output_dir`."""
        if len(self.conversations) == 1:
            return {self.conversations[0]: "chat"}
        return {name: f"chat/{_folder_name(name)}" for name in self.conversations}


_MADE = ("tokenizer", "text", "chat")  # in output_dir


def _folder_name(corpus: str) -> str:
    """`someone--chats` for the name `someone/chats` on the Hub, `chats` for the file `chats.jsonl`."""
    name = Path(corpus).name.partition(".")[0] if Path(corpus).exists() else corpus.replace("/", "--")
    return re.sub(r"[^\w.-]+", "-", name)


def main(settings: TokenizeSettings) -> None:
    """Check everything, train the tokenizer, tokenize every corpus."""
    from hmm_datasets.runtime.run_identity import check_folder_identity
    from hmm_datasets.text.corpora.loading import check_splits, read_splits
    from hmm_datasets.text.stream import tokenize_splits
    from hmm_datasets.text.tokenizers.chat_encoding import check_chat_template
    from hmm_datasets.text.tokenizers.chat_templates import check_messages, load_tokenizer
    from hmm_datasets.training.record import write_record
    from hmm_datasets.training.template_time import fix_template_time

    output = Path(settings.output_dir)
    chosen = {"test_fraction": settings.test_fraction, "max_documents": settings.max_documents}
    data = {name: value for name, value in asdict(settings).items() if name != "output_dir"}
    if settings.vocabulary == "bpe":
        del data["vocabulary"]
    if len(settings.conversations) < 2:
        data["conversations"] = next(iter(settings.conversations), None)
    remedy = f"choose another output_dir; --tokenizer {output / 'tokenizer'} uses this tokenizer there"
    check_folder_identity(output, {"data": data}, None, remedy=remedy, made=_MADE)
    time = fix_template_time(output)

    tokenizer_folder = output / "tokenizer"
    source = tokenizer_folder if tokenizer_folder.exists() else settings.tokenizer
    tokenizer = None if source is None else load_tokenizer(source)
    if settings.corpus is not None:
        check_splits(settings.corpus, kind="text", **chosen)
    if settings.conversations and tokenizer is not None:
        check_chat_template(tokenizer, tokenizer.name_or_path)
    for name in settings.conversations:
        check = {} if tokenizer is None else {"check": lambda row: check_messages(tokenizer, row["messages"])}
        check_splits(name, kind="conversations", **check, **chosen)
    write_record(output, asdict(settings), data, None, remedy=remedy, made=_MADE, template_time=time)

    if not tokenizer_folder.exists():
        _save(tokenizer or _trained(settings, chosen), tokenizer_folder)
    tokenizer = load_tokenizer(tokenizer_folder)
    limits = {"shard_tokens": settings.shard_tokens, "num_documents": settings.max_documents}
    if settings.corpus is not None:
        rows = read_splits(settings.corpus, kind="text", **chosen)
        texts = ((split, row["text"]) for split, row in rows)
        _report("text", tokenize_splits(texts, tokenizer, _splits(output / "text"), settings.corpus, **limits))
    for name, folder in settings.chat_folders.items():
        rows = read_splits(name, kind="conversations", **chosen)
        chats = ((split, row["messages"]) for split, row in rows)
        places = _splits(output / folder)
        _report(folder, tokenize_splits(chats, tokenizer, places, name, conversations=True, **limits))


def _splits(folder: Path) -> dict[str, Path]:
    return {split: folder / split for split in ("train", "test")}


def _trained(settings: TokenizeSettings, chosen: dict):
    """A tokenizer trained on the text of `tokenizer_splits`, or of the characters of both splits."""
    from itertools import chain

    from character_tokenizer import character_tokenizer

    from hmm_datasets.text.corpora.loading import load_corpus, read_splits
    from hmm_datasets.text.tokenizers.bpe import train_bpe

    if settings.vocabulary == "characters":
        return character_tokenizer(row["text"] for _, row in read_splits(settings.corpus, kind="text", **chosen))
    splits = (load_corpus(settings.corpus, split=split, kind="text", **chosen) for split in settings.tokenizer_splits)
    texts = chain.from_iterable(rows["text"] for rows in splits)
    return train_bpe(texts, settings.vocab_size, split_pattern=settings.split_pattern)


def _save(tokenizer, folder: Path) -> None:
    from hmm_datasets.files import atomic_folder

    with atomic_folder(folder) as temporary:
        tokenizer.save_pretrained(temporary)


def _report(kind: str, indices: dict) -> None:
    for split, index in indices.items():
        counts = f"{index.num_documents:,} documents, {index.num_tokens:,} tokens, {len(index.shards):,} shard(s)"
        rate = "" if index.num_bytes is None else f", {index.num_bytes / index.num_tokens:.2f} bytes per token"
        print(f"{kind} {split}: {counts}{rate}")


if __name__ == "__main__":
    run(main)
