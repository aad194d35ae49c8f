"""A recipe that counts to `steps`, and continues where it was stopped.

It keeps in its folder a line for each start and each end. Started by a sweep, it is found through `sitecustomize`
(see `conftest.py`).
"""

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Settings:
    """What to count."""

    output_dir: str
    a: int = 0
    b: int = 0
    seed: int = 0
    steps: int = 8
    fails: int = 0


def run(main):
    """Read the settings; what `hmm_datasets.runtime.program.run` does, without torch."""
    import yaml

    from hmm_datasets.runtime.parent_watch import end_with_launcher

    end_with_launcher()
    main(Settings(**yaml.safe_load(Path(sys.argv[2]).read_text())))


def main(settings: Settings) -> None:
    """Count."""
    folder = Path(settings.output_dir)
    folder.mkdir(exist_ok=True)
    append(folder / "pids", os.getpid())
    append(folder / "started", time.time())
    attempts = len((folder / "started").read_text().splitlines())
    if attempts <= settings.fails:
        sys.exit(f"error: attempt {attempts} fails")
    steps = folder / "steps"
    while not steps.exists() or len(steps.read_text().splitlines()) < settings.steps:
        time.sleep(0.1)
        append(steps, "x")
    (folder / "summary.json").write_text(f'{{"value": {settings.a * 10 + settings.b + settings.seed / 8}}}\n')
    append(folder / "ended", time.time())


def append(path: Path, value: object) -> None:
    with path.open("a") as file:
        file.write(f"{value}\n")


if __name__ == "__main__":
    run(main)
