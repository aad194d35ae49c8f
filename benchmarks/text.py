"""Text: BPE training, encoding, splitting, shard writing and reading, beside what one would take instead.

    pip install -e ".[bench]"
    python benchmarks/text.py [--part training encoding writing splitting reading] [--text PATH ...] [--megabytes 100]

Prints machine, versions, then a table a part: rates, and how many times faster ours is, all of one run. The text is
that of the files given, by default the Python sources, Markdown and plain text of this Python and its packages, a file
a document, in a seeded order; where encoding is timed also English stories, the bundled sample over and over. Each
training runs in a process of its own, whose peak of resident memory is reported. Writing and splitting are timed three
times, in turn with what bounds them; the medians are reported. The slow libraries get the first documents only, and
their rates are of these. Run it on a quiet machine.
"""

import argparse
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")

import numpy as np
import torch
from machine import CORES, print_heading
from text_shards import splitting, writing
from text_sources import VOCABULARY, documents, gather, megabytes, seconds_of, trained_tokenizer
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerFast, default_data_collator

from hmm_datasets.data.windows import TokenWindows
from hmm_datasets.report.tables import text_table
from hmm_datasets.text.corpora.loading import load_corpus
from hmm_datasets.text.stream import TokenStream, write_tokens
from hmm_datasets.text.tokenizers.bpe import SPLIT_PATTERNS, train_bpe
from hmm_datasets.text.tokenizers.encoding import Encoder
from hmm_datasets.text.tokenizers.text_sizes import byte_characters

PACKAGES = ("tokenizers", "tiktoken", "fastokens", "transformers", "datasets", "datatrove", "numpy", "torch")
LENGTH, BATCH = 1024, 32
# The pattern "gpt4" as tiktoken writes it: possessive, so quicker for it, the same pieces.
CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
    r"|\s+(?!\S)|\s"
)


def main() -> None:
    """Time what was asked for; print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = {
        "training": training,
        "encoding": encoding,
        "writing": writing,
        "splitting": splitting,
        "reading": reading,
    }
    parser.add_argument("--part", nargs="*", choices=parts, default=list(parts))
    parser.add_argument("--text", nargs="*", type=Path, help="files, or folders of them; default this Python's own")
    parser.add_argument("--megabytes", type=float, default=100.0, help="read no more text than this, default 100")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    settings = parser.parse_args()
    if settings.child is not None:
        _train_and_tell(settings)
        return
    print_heading(PACKAGES)
    with tempfile.TemporaryDirectory() as folder:
        settings.folder = Path(folder)
        settings.file = settings.folder / "texts.jsonl"
        sizes = gather(settings, settings.file)
        print(f"text: {len(sizes):,} documents, {sum(sizes) / 1e6:.1f} MB")
        for part in settings.part:
            parts[part](settings)


def training(settings: argparse.Namespace) -> None:
    """Seconds and memory of training a BPE tokenizer, each in a process of its own."""
    rows, ours = [], None
    for name, child in (
        (f"hmm-datasets, a stream of texts, {CORES} threads", "stream"),
        ("tokenizers, train_from_iterator over a list in memory", "list"),
    ):
        command = [sys.executable, __file__, "--child", child, "--file", str(settings.file)]
        result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        ours = ours or result["seconds"]
        rate = result["bytes"] / 1e6 / result["seconds"]
        memory = (f"{result[when] / 1e6:,.0f}" for when in ("before", "peak"))
        rows.append([name, f"{result['seconds']:.1f}", f"{rate:.2f}", f"{result['seconds'] / ours:.2f}", *memory])
    print(f"\nTraining byte-level BPE: {VOCABULARY:,} tokens, split as GPT-4\n")
    header = ["trainer", "seconds", "MB/s", "ours is times faster", "MB before", "MB at most"]
    print(text_table(header, rows))


def _train_and_tell(settings: argparse.Namespace) -> None:
    texts = documents(settings)
    before = _peak_memory()
    size = sum(len(text.encode()) for text in documents(settings))
    if settings.child == "list":
        texts = list(texts)
    began = time.perf_counter()
    if settings.child == "list":
        tokenizer, trainer = _plain_trainer()
        tokenizer.train_from_iterator(texts, trainer=trainer)
    else:
        train_bpe(texts, VOCABULARY, split_pattern="gpt4", show_progress=False)
    seconds = time.perf_counter() - began
    print(json.dumps({"seconds": seconds, "bytes": size, "before": before, "peak": _peak_memory()}))


def _plain_trainer():
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(SPLIT_PATTERNS["gpt4"]), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return tokenizer, trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=alphabet, show_progress=False)


def encoding(settings: argparse.Namespace) -> None:
    """Megabytes a second of every encoder, on two kinds of text, with the same vocabulary; ids are compared."""
    tokenizer = trained_tokenizer(settings)
    stories = list(load_corpus("tinystories-sample", split="train", test_fraction=0.0)["text"])
    texts = list(itertools.islice(documents(settings), 3000))
    for name, sample in (("sources and documents", texts), ("stories", stories * 5)):
        few = sample[:500]
        reference, lengths = Encoder(tokenizer).encode_batch(few)
        expected = [part.tolist() for part in np.split(reference, np.cumsum(lengths)[:-1])]
        rows, ours = [], None
        for encoder, (encode, first_id) in _encoders(tokenizer).items():
            cold, warm = _megabytes_a_second(encode, sample)
            ours = ours or (cold, warm)
            ids = encode(few)
            same = "" if ids is None else "same" if _shifted(ids, first_id) == expected else "DIFFER"
            cells = (cold, ours[0] / cold, warm, ours[1] / warm)
            rows.append([encoder, *(f"{value:.2f}" for value in cells), same])
        size = megabytes(sample)
        print(
            f"\nEncoding: {name}, {len(sample):,} documents, {size:.1f} MB, {VOCABULARY:,} tokens in the vocabulary\n"
        )
        print(text_table(["encoder", "MB/s, first pass", "ours is", "MB/s, best of 3", "ours is", "ids"], rows))


def _encoders(tokenizer: PreTrainedTokenizerFast) -> dict[str, tuple[Callable[[list[str]], Any], int]]:
    """By name: what encodes a batch of texts, and the id its first token that is not special has in ours."""
    import tiktoken
    from tokenizers import Tokenizer

    ours = Encoder(tokenizer)
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.encode_special_tokens = True
    ranks = _ranks(tokenizer)
    first = len(tokenizer) - len(ranks)
    tik = tiktoken.Encoding("bench", pat_str=CL100K, mergeable_ranks=ranks, special_tokens={})
    pool = ThreadPoolExecutor(CORES)

    def of_ours(texts):
        tokens, lengths = ours.encode_batch(texts)
        return np.split(tokens, np.cumsum(lengths)[:-1]) if len(texts) <= 500 else None

    def of_tokenizers(texts):
        return [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]

    def of_transformers(texts):
        return tokenizer(texts, add_special_tokens=False, split_special_tokens=True)["input_ids"]

    return {
        f"hmm-datasets ({ours.backend}), {CORES} threads": (of_ours, 0),
        f"tokenizers, encode_batch_fast, {CORES} threads": (of_tokenizers, 0),
        f"tiktoken, encode_to_numpy, {CORES} threads": (
            lambda texts: list(pool.map(lambda text: tik.encode_to_numpy(text, disallowed_special=()), texts)),
            first,
        ),
        f"tiktoken, encode_ordinary_batch, {CORES} threads": (
            lambda texts: tik.encode_ordinary_batch(texts, num_threads=CORES),
            first,
        ),
        "transformers, tokenizer(texts)": (of_transformers, 0),
    }


def _shifted(ids: list, first_id: int) -> list[list[int]]:
    # Special tokens stand first in ours; tiktoken's ranks begin at 0.
    return [(np.asarray(part, dtype=np.int64) + first_id).tolist() for part in ids]


def _ranks(tokenizer: PreTrainedTokenizerFast) -> dict[bytes, int]:
    """The byte-level vocabulary as tiktoken takes it: bytes, in the order of the merges."""
    byte_of = {character: byte for byte, character in enumerate(byte_characters())}
    special = {str(token) for token in tokenizer.added_tokens_decoder.values()}
    vocabulary = {token: number for token, number in tokenizer.get_vocab().items() if token not in special}
    first = min(vocabulary.values())
    return {bytes(byte_of[c] for c in token): number - first for token, number in vocabulary.items()}


def reading(settings: argparse.Namespace) -> None:
    """Tokens a second from a warm page cache into collated int64 batches, on one process."""
    import datasets

    folder = settings.folder / "numbers"
    tokens = np.random.default_rng(0).integers(1, 50_000, 40_000_000, dtype=np.uint16)
    pieces = np.array_split(tokens, 40_000)
    write_tokens(pieces, folder, vocab_size=50_000, eos_id=0, tokenizer_hash="none", corpus="numbers")
    stream = TokenStream(folder)
    plain = folder.with_suffix(".bin")
    tokens.tofile(plain)
    table = datasets.Dataset.from_dict(
        {"input_ids": tokens[: 4_000 * LENGTH].reshape(-1, LENGTH)},
        features=datasets.Features({"input_ids": datasets.List(datasets.Value("uint16"), length=LENGTH)}),
    )

    def of_loader(rows, collate, count):
        for batch in itertools.islice(DataLoader(rows, batch_size=BATCH, collate_fn=collate), count):
            assert batch["input_ids"].shape == (BATCH, LENGTH)

    def of_numpy(order=None):
        mapped = np.memmap(plain, dtype=np.uint16, mode="r")
        rows = mapped[: len(mapped) // LENGTH * LENGTH].reshape(-1, LENGTH)
        for first in range(0, 32_000, BATCH):
            places = slice(first, first + BATCH) if order is None else order[first : first + BATCH]
            torch.from_numpy(rows[places].astype(np.int64))

    order = np.random.default_rng(1).permutation(len(tokens) // LENGTH)
    shuffled, in_order = TokenWindows(stream, LENGTH, seed=1), TokenWindows(stream, LENGTH)
    jobs = {
        "hmm-datasets, shuffled windows": (lambda: of_loader(shuffled, default_data_collator, 1000), 1000),
        "hmm-datasets, windows in order": (lambda: of_loader(in_order, default_data_collator, 1000), 1000),
        "numpy, plain read in order, no loader": (of_numpy, 1000),
        "numpy, plain read shuffled, no loader": (lambda: of_numpy(order), 1000),
        "datasets, Arrow, torch format": (lambda: of_loader(table.with_format("torch"), None, 100), 100),
        "datasets, Arrow, lists, default_data_collator": (lambda: of_loader(table, default_data_collator, 30), 30),
    }
    of_loader(shuffled, default_data_collator, 10)  # compiles the cipher, and warms the page cache
    rates = {name: batches * BATCH * LENGTH / seconds_of(job) for name, (job, batches) in jobs.items()}
    ours = next(iter(rates.values()))
    rows = [[name, f"{rate:,.0f}", f"{ours / rate:.2f}"] for name, rate in rates.items()]
    print(f"\nReading: batches of {BATCH} windows of {LENGTH}, uint16 on disk, int64 in the batch, one process\n")
    print(text_table(["reader", "tokens/s", "ours is times faster"], rows))


def _megabytes_a_second(encode: Callable[[list[str]], Any], texts: list[str]) -> tuple[float, float]:
    """Of the first pass, when no encoder has met the texts, and of the best of three."""
    batches = [texts[first : first + 1000] for first in range(0, len(texts), 1000)]
    size = megabytes(texts)
    passes = [seconds_of(lambda: [encode(batch) for batch in batches]) for _ in range(3)]
    return size / passes[0], size / min(passes)


def _peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
