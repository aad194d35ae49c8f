"""The parts `writing` and `splitting` of `text.py`: token shards, and the held-out split, with what bounds them."""

import argparse
import hashlib
import itertools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from machine import CORES
from text_sources import documents, drain, megabytes, seconds_of, trained_tokenizer
from transformers import PreTrainedTokenizerFast

from hmm_datasets.report.tables import text_table
from hmm_datasets.text.corpora.loading import load_corpus, read_splits
from hmm_datasets.text.stream import SHARD_TOKENS, tokenize_corpus, tokenize_splits
from hmm_datasets.text.stream.tokenization import tokenizer_index
from hmm_datasets.text.stream.writer import TokenBatch, write_batches
from hmm_datasets.text.tokenizers.encoding import Encoder


def writing(settings: argparse.Namespace) -> None:
    """Texts to files of tokens: the whole, the parts that bound it, and other libraries."""
    tokenizer = trained_tokenizer(settings)
    texts = list(documents(settings))
    encoded = [_encoded(Encoder(tokenizer), batch) for batch in _batches(texts)]
    blank = tokenizer_index(tokenizer, "bench", SHARD_TOKENS)
    folders = (settings.folder / f"written-{number}" for number in itertools.count())
    quiet = {"show_progress": False}
    ways = {
        "hmm-datasets, tokenize_corpus of a list": lambda: tokenize_corpus(
            texts, tokenizer, next(folders), "bench", **quiet
        ),
        "hmm-datasets, tokenize_corpus of a JSON Lines file": lambda: tokenize_corpus(
            load_corpus(settings.file, test_fraction=0.0)["text"], tokenizer, next(folders), "bench", **quiet
        ),
        "  preparing the encoder alone": lambda: Encoder(tokenizer),
        "  reading and parsing alone": lambda: drain(load_corpus(settings.file, test_fraction=0.0)["text"]),
        "  encoding alone": _after_preparing(tokenizer, texts),
        "  writing alone: ends, digests, files, fsync": lambda: write_batches(
            lambda first: (batch for batch in encoded), next(folders), blank
        ),
    }
    few = texts[: len(texts) // 10]
    others = {
        f"datasets, map on {CORES} processes, save_to_disk": lambda: _datasets_writes(settings, tokenizer, few),
        "datatrove, DocumentTokenizer, 1 task": lambda: _datatrove_writes(settings, tokenizer, few),
    }
    print(f"\nWriting tokens: {len(texts):,} documents, {megabytes(texts):.1f} MB; others: the first {len(few):,}\n")
    _print_rates("writer", megabytes(texts), ways, megabytes(few), others)


def splitting(settings: argparse.Namespace) -> None:
    """A tenth held out by the content of the documents: the split alone, and with encoding and writing."""
    tokenizer = trained_tokenizer(settings)
    stories = list(load_corpus("tinystories-sample", split="train", test_fraction=0.0)["text"]) * 25
    for name, texts in (("sources and documents", list(documents(settings))), ("stories", stories)):
        _print_splitting(settings, tokenizer, name, texts)


def _print_splitting(
    settings: argparse.Namespace, tokenizer: PreTrainedTokenizerFast, name: str, texts: list[str]
) -> None:
    few = texts[: len(texts) // 4]
    every, first_ones = (_json_lines(settings.folder, f"split-{len(part)}", part) for part in (texts, few))
    folders = (settings.folder / f"{every.stem}-{number}" for number in itertools.count())
    ways = {
        "hmm-datasets, read_splits": lambda: drain(read_splits(every, kind="text", test_fraction=0.1)),
        "hmm-datasets, load_corpus, both splits in turn": lambda: [
            drain(load_corpus(every, split=split, test_fraction=0.1)) for split in ("train", "test")
        ],
        "  split, encoded and written": lambda: _write_splits(every, tokenizer, next(folders)),
        "  reading and parsing alone": lambda: drain(load_corpus(every, test_fraction=0.0)),
        "  encoding alone": _after_preparing(tokenizer, texts),
        "  preparing the encoder alone": lambda: Encoder(tokenizer),
    }
    others = {
        "hashlib and json, a loop of Python": lambda: _loop_splits(first_ones),
        "datasets, streaming, map with hashlib, two filters": lambda: _datasets_stream_splits(first_ones),
        f"datasets, map with hashlib, two filters, {CORES} processes": lambda: _datasets_splits(settings, first_ones),
        "datasets, train_test_split: by number, not by content": lambda: _datasets_by_number(settings, first_ones),
    }
    size = megabytes(texts)
    print(f"\nHolding out a tenth: {name}, {len(texts):,} documents, {size:.1f} MB; others: the first {len(few):,}\n")
    _print_rates("splitter", size, ways, megabytes(few), others)


def _json_lines(folder: Path, name: str, texts: list[str]) -> Path:
    file = folder / f"{name}.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return file


def _print_rates(
    what: str,
    size: float,
    ways: dict[str, Callable[[], object]],
    other_size: float,
    others: dict[str, Callable[[], object]],
) -> None:
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(3):
        for name, job in ways.items():
            found[name].append(seconds_of(job))
    seconds = {name: statistics.median(times) for name, times in found.items()}
    ours = size / next(iter(seconds.values()))
    rows = [[name, f"{time:.2f}", f"{size / time:.2f}", f"{ours * time / size:.2f}"] for name, time in seconds.items()]
    for name, job in others.items():
        time = seconds_of(job)
        rows.append([name, f"{time:.2f}", f"{other_size / time:.2f}", f"{ours * time / other_size:.2f}"])
    print(text_table([what, "seconds", "MB/s", "the first is times faster"], rows))


def _after_preparing(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> Callable[[], object]:
    """Encodes with an encoder that has met no text; each is prepared before it is timed."""
    encoders = [Encoder(tokenizer) for _ in range(3)]
    return lambda: list(map(encoders.pop().encode_batch, _batches(texts)))


def _batches(texts: list[str]) -> list[list[str]]:
    return [texts[first : first + 500] for first in range(0, len(texts), 500)]


def _encoded(encoder: Encoder, texts: list[str]) -> TokenBatch:
    sizes = np.fromiter((len(text.encode()) for text in texts), np.int64, len(texts))
    return TokenBatch(*encoder.encode_batch(texts), sizes)


def _write_splits(file: Path, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    texts = ((split, row["text"]) for split, row in read_splits(file, kind="text", test_fraction=0.1))
    folders = {split: folder / split for split in ("train", "test")}
    tokenize_splits(texts, tokenizer, folders, "bench", show_progress=False)


def _is_held_out(text: str) -> bool:
    digest = hashlib.blake2b(" ".join(text.split()).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < 0.1 * 2**64


def _hashed(rows: dict[str, list]) -> dict[str, list]:
    return {"held_out": list(map(_is_held_out, rows["text"]))}


def _loop_splits(file: Path) -> None:
    with file.open(encoding="utf-8") as lines:
        drain((_is_held_out(row["text"]), row) for row in map(json.loads, lines))


def _datasets_stream_splits(file: Path) -> None:
    import datasets

    rows = datasets.load_dataset("json", data_files=str(file), split="train", streaming=True)
    hashed = rows.map(_hashed, batched=True)
    for held_out in (False, True):
        drain(hashed.filter(lambda row, held_out=held_out: row["held_out"] == held_out))


def _datasets_splits(settings: argparse.Namespace, file: Path) -> None:
    import datasets

    datasets.disable_progress_bars()
    hashed = _datasets_table(settings, file).map(_hashed, batched=True, num_proc=CORES)
    for held_out in (False, True):
        hashed.filter(
            lambda flags, held_out=held_out: [flag == held_out for flag in flags],
            batched=True,
            input_columns="held_out",
            num_proc=CORES,
        )


def _datasets_by_number(settings: argparse.Namespace, file: Path) -> None:
    for part in _datasets_table(settings, file).train_test_split(0.1, seed=0).values():
        drain(part)


def _datasets_table(settings: argparse.Namespace, file: Path) -> Any:
    """The table, built anew each time: in an empty cache."""
    import datasets

    cache = str(settings.folder / f"cache-{time.time_ns()}")
    return datasets.load_dataset("json", data_files=str(file), split="train", cache_dir=cache)


def _datasets_writes(settings: argparse.Namespace, tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> None:
    import datasets

    datasets.disable_progress_bars()
    encoded = datasets.Dataset.from_dict({"text": texts}).map(
        lambda rows: {"input_ids": tokenizer(rows["text"], add_special_tokens=False)["input_ids"]},
        batched=True,
        remove_columns=["text"],
        num_proc=CORES,
    )
    encoded.save_to_disk(settings.folder / "arrow")


def _datatrove_writes(settings: argparse.Namespace, tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> None:
    from datatrove.data import Document
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.tokens import DocumentTokenizer

    tokenizer.save_pretrained(settings.folder / "tokenizer")
    folder = settings.folder / "trove"
    step = DocumentTokenizer(
        str(folder),
        tokenizer_name_or_path=str(settings.folder / "tokenizer/tokenizer.json"),
        eos_token="<|endoftext|>",
    )
    pieces = [Document(text=text, id=str(number)) for number, text in enumerate(texts)]
    LocalPipelineExecutor(pipeline=[pieces, step], tasks=1, logging_dir=f"{folder}-logs").run()
