"""A program that makes every push in a process of its own: a fork of one that has imported everything.

It reads lines of JSON from standard input, each a list of pushes that run at the same time, and answers each with a
line: for each push its exit status (negative after a signal) and what it returned. A push orders its own faults from
the local Hub, with its process id, and is named in the header `User-Agent` of its requests. It can be ended after a
number of seconds, by SIGALRM, which it does not catch.
"""

import json
import os
import signal
import sys
import tempfile
import time
import urllib.request
from dataclasses import asdict
from pathlib import Path

from huggingface_hub import CommitOperationAdd, HfApi, constants  # noqa: F401 (imported for the forks)

from hmm_datasets.errors import InputError
from hmm_datasets.hub import push

AT_ONCE = 16


def run(order: dict) -> dict:
    """Order the faults, push, and return what came of it."""
    if "ends_after" in order:  # nothing in Python sees the signal
        signal.setitimer(signal.ITIMER_REAL, order["ends_after"])
    constants.HF_HUB_USER_AGENT_ORIGIN = order["repo_id"]
    constants.HF_HUB_DISABLE_XET = not order.get("xet", False)
    for fault in order.get("faults", ()):
        content = json.dumps({"client": f"origin/{order['repo_id']}", **fault, "process": os.getpid()}).encode()
        urllib.request.urlopen(urllib.request.Request(f"{constants.ENDPOINT}/faults", content)).close()
    started = time.monotonic()
    try:
        result = asdict(push.push_folder(order["folder"], order["repo_id"], **order.get("options", {})))
    except InputError as error:
        result = {"error": str(error)}
    return {**result, "seconds": time.monotonic() - started}


def start(order: dict, result: Path) -> int:
    """Fork, and push in the child."""
    process = os.fork()
    if process:
        return process
    try:
        os.dup2(os.open(f"{result}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND), 2)
        os.dup2(2, 1)
        result.write_text(json.dumps(run(order)))
        os._exit(0)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)


def run_all(orders: list[dict], folder: Path) -> list[dict]:
    """Run pushes, some at a time, and return what came of each."""
    statuses: dict[int, int] = {}
    running: dict[int, int] = {}
    for number, order in enumerate(orders):
        running[start(order, folder / f"{number}")] = number
        while running and (len(running) == AT_ONCE or number + 1 == len(orders)):
            process, status = os.wait()
            statuses[running.pop(process)] = os.waitstatus_to_exitcode(status)
    found = []
    for number in range(len(orders)):
        path, log = folder / f"{number}", folder / f"{number}.log"
        result = json.loads(path.read_text()) if path.exists() else {}
        found.append({"status": statuses[number], "log": log.read_text(errors="replace"), **result})
        path.unlink(missing_ok=True)
    return found


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with tempfile.TemporaryDirectory() as scratch:
        for line in sys.stdin:
            print(json.dumps(run_all(json.loads(line), Path(scratch))), flush=True)
