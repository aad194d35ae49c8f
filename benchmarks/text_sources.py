"""Texts that the benchmarks of text work on, the tokenizer of them, and the clock."""

import argparse
import gc
import json
import random
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from hmm_datasets.text.tokenizers.bpe import train_bpe

SUFFIXES = (".py", ".md", ".rst", ".txt", ".pyi")
VOCABULARY = 32_768


def gather(settings: argparse.Namespace, file: Path) -> list[int]:
    """Write texts to a JSON Lines file, in a seeded order, up to so many megabytes; return their bytes."""
    roots = settings.text or [Path(sysconfig.get_path("stdlib")), Path(sysconfig.get_path("purelib"))]
    found = {path.resolve() for root in roots for path in ([root] if root.is_file() else root.rglob("*"))}
    paths = sorted(path for path in found if path.suffix in SUFFIXES and path.is_file() and path.stat().st_size > 0)
    random.Random(0).shuffle(paths)
    sizes, left = [], settings.megabytes * 1e6
    with file.open("w", encoding="utf-8") as lines:
        for path in paths:
            text = path.read_text(encoding="utf-8", errors="replace")
            sizes.append(len(text.encode()))
            left -= sizes[-1]
            if left < 0:
                return sizes[:-1]
            lines.write(json.dumps({"text": text}) + "\n")
    return sizes


def documents(settings: argparse.Namespace) -> Iterator[str]:
    """Yield the texts, one at a time."""
    with settings.file.open(encoding="utf-8") as lines:
        yield from (json.loads(line)["text"] for line in lines)


def trained_tokenizer(settings: argparse.Namespace) -> PreTrainedTokenizerFast:
    """A BPE tokenizer of these texts, trained once."""
    if not hasattr(settings, "tokenizer"):
        texts = documents(settings)
        settings.tokenizer = train_bpe(texts, VOCABULARY, split_pattern="gpt4", show_progress=False)
    return settings.tokenizer


def megabytes(texts: list[str]) -> float:
    """The bytes of all texts, in millions."""
    return sum(len(text.encode()) for text in texts) / 1e6


def drain(items: Iterable[object]) -> None:
    """Use up an iterable."""
    for _ in items:
        pass


def seconds_of(job: Callable[[], object]) -> float:
    """What a job takes by the clock, once."""
    gc.collect()
    began = time.perf_counter()
    job()
    return time.perf_counter() - began
