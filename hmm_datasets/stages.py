"""Experiments of several recipes: commands run one after another, each printed, up to the first that fails."""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path


def run_stages(stages: Sequence[tuple[str, str]], root: Path) -> int:
    """Run every stage.

    Args:
        stages (sequence of pairs of `str`): title and command; `python` is this interpreter, `accelerate` its own.
        root (`Path`): the folder to run them in, that of the checkout.

    Returns:
        `int`: the exit code of the first that failed, or 0.
    """
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")])),
        "TOKENIZERS_PARALLELISM": os.environ.get("TOKENIZERS_PARALLELISM", "true"),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    began = time.time()
    for number, (title, command) in enumerate(stages, start=1):
        print(f"\n[{number}/{len(stages)}] {title}\n$ {command}", flush=True)
        started = time.time()
        code = subprocess.run(_resolve(shlex.split(command)), cwd=root, env=environment).returncode
        if code != 0:
            print(f"stage {number} failed with exit code {code}: {command}", file=sys.stderr)
            return code
        print(f"({time.time() - started:.0f} s)", flush=True)
    print(f"\nAll of it took {time.time() - began:.0f} s.")
    return 0


def _resolve(words: list[str]) -> list[str]:
    """The command under this interpreter, whatever the PATH."""
    if words[0] == "accelerate":
        return [sys.executable, "-m", "accelerate.commands.accelerate_cli", *words[1:]]
    return [sys.executable, *words[1:]]
