"""A program that writes a token stream in child processes and kills them: `killed_writer.py FOLDER KILLS|points[/N]`.

A number: so many times at random moments, going on with the same stream until it is whole, then with the next.
`points`: at every file operation and every document of a small stream in turn, or at every `N`-th. Prints, as JSON,
one row for each kill, and for each stream that became whole the digests of its files. Nothing is imported but what
writes, so that a child is a fork.
"""

import hashlib
import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np

from hmm_datasets.text.stream import write_tokens

EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "test.document"}


def documents(count: int, size: int, pause: float):
    """Documents that are a function of their number; every seventh is empty."""

    def after(first: int):
        for number in range(first, count):
            time.sleep(pause)
            sys.audit("test.document")
            yield (number * number + np.arange(0 if number % 7 == 3 else size + number % 13)) % 997

    return after


def write(folder: Path, count: int, size: int, shard_tokens: int, pause: float = 0.0, overwrite: bool = False) -> None:
    settings = {"vocab_size": 1000, "eos_id": 999, "tokenizer_hash": "none", "corpus": "numbers"}
    source = documents(count, size, pause)
    write_tokens(source, folder, shard_tokens=shard_tokens, overwrite=overwrite, **settings)


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of everything in the stream's folder and beside it, but the lock, which stays where its holder dies."""
    lock = folder.with_name(f".{folder.name}.lock")
    files = sorted(path for path in folder.parent.rglob("*") if path.is_file() and path != lock)
    return {str(path.relative_to(folder.parent)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def start(work) -> int:
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    return child


def ended_by(child: int) -> int:
    """The signal that ended a child, 0 for none; a child that fails is an error of this program."""
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return os.WTERMSIG(status)
    if os.WEXITSTATUS(status):
        sys.exit("a writer failed")
    return 0


def fresh(folder: Path) -> None:
    shutil.rmtree(folder.parent, ignore_errors=True)
    folder.parent.mkdir(parents=True)


def kill_at_random_times(folder: Path, kills: int, seed: int) -> None:
    def work():
        write(folder, count=200, size=3000, shard_tokens=40_000, pause=0.001)

    moments = random.Random(seed)
    fresh(folder)
    begin = time.monotonic()
    ended_by(start(work))
    undisturbed = time.monotonic() - begin
    report({"whole": digests(folder), "seconds": undisturbed})
    fresh(folder)
    while kills:
        # Half of them early, so that streams are killed several times before they are whole.
        delay = moments.uniform(0, undisturbed) * moments.choice([0.3, 1])
        child = start(work)
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
        was_killed = ended_by(child)
        if was_killed and not folder.exists():  # a stream that is in its place was whole before the kill
            unfinished = folder.with_name("a.unfinished")
            index = unfinished / "index.json"
            shards = len(json.loads(index.read_text())["shards"]) if index.exists() else 0
            files = os.listdir(unfinished) if unfinished.exists() else []
            report({"killed": delay, "shards": shards, "files": files})
            kills -= 1
        else:
            report({"whole": digests(folder)})
            fresh(folder)
    ended_by(start(work))
    report({"whole": digests(folder)})


def kill_at_points(folder: Path, overwrite: bool, every: int) -> None:
    def work(point: int = 0):
        passed = 0

        def count(event: str, _arguments: tuple) -> None:
            nonlocal passed
            passed += event in EVENTS
            if event in EVENTS and passed == point:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        write(folder, count=12, size=9000, shard_tokens=30_000, overwrite=overwrite)

    point, killed = 1, True
    while killed:
        fresh(folder)
        if overwrite:
            ended_by(start(lambda: write(folder, count=9, size=50, shard_tokens=100)))
        report({"before": digests(folder)})
        killed = ended_by(start(lambda point=point: work(point)))
        # What a reader finds now.
        report({"killed": bool(killed), "left": {n: d for n, d in digests(folder).items() if n.startswith("a/")}})
        if killed and (overwrite or not folder.exists()):
            ended_by(start(work))
        report({"whole": digests(folder)})
        point += every


def report(row: dict) -> None:
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    target = Path(sys.argv[1]) / "stream" / "a"
    if sys.argv[2].startswith("points"):
        every = int(sys.argv[2].partition("/")[2] or 1)
        kill_at_points(target, overwrite=False, every=every)
        kill_at_points(target, overwrite=True, every=every)
    else:
        kill_at_random_times(target, kills=int(sys.argv[2]), seed=4)
