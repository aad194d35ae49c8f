"""HMMs fitted to the words of TinyStories: how many words, states and symbols per window, and how often to update?

    hmm-datasets experiment tinystories-hmm --config tinystories_hmm/small.yaml [--num_states 8 16 ...]

Two sweeps of `hmm-datasets fit` are written to the output folder and run. `sizes` has a fit for every vocabulary (E),
number of states (H) and length of windows (L). `updates` compares one update per epoch with one every few batches, by
stochastic EM and by plain replacement of the counts. A Llama is then pretrained on sequences of the best HMM, and
measured against its optimum. `compare.py` writes `report.md`: losses on train, test and distinct test sentences, with
the final-token cross-entropy; the update rules by epoch; ten sentences of the best HMM, and ten of the Llama.

The fits save and stop on SIGTERM, and at a `--time_limit` among the flags of `fit`; when started again the experiment
continues.
"""

import shlex
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

from hmm_datasets.errors import InputError
from hmm_datasets.runtime.program import run
from hmm_datasets.runtime.settings import setting

FIT = "--max_epochs 40 --patience 5 --save_every 2 --pseudocount 0.05"
"""Flags of the fits that others take the place of."""
GIVEN = {
    "fit": ("output_dir", "corpus", "vocabulary_size", "num_states", "length", "seed", "update_every", "update_rule"),
    "pretrain": ("output_dir", "hmm"),
}
"""Settings of each recipe that the experiment gives."""
UPDATE_RULES = ["stochastic", "replace"]
UPDATE_EVERY = [1, 2, 8, 16, 32]
"""Batches per update of the fits that compare updates, beside one per epoch."""
UPDATE_FIT = {"vocabulary_size": 200, "num_states": 16, "length": 32, "max_documents": 10_000}
UPDATE_FIT |= {"max_epochs": 20, "batch_size": 4, "patience": 20, "tolerance": 0.0}
"""Settings of these fits. All run to the end, so that their curves can be compared."""
HELD_OUT = ("test", "unique_test")
LOSSES = ("cross_entropy", "final_token_cross_entropy")


@dataclass
class TinyStoriesSettings:
    """Settings of the experiment."""

    output_dir: str = setting(MISSING, "Output folder.")
    corpus: str = setting("tinystories-sample", "A text corpus: name, file or Hub data set.")
    vocabulary_size: list[int] = setting([200], "E: numbers of words, including the full stop.")
    num_states: list[int] = setting([8, 16, 32], "H: numbers of states.")
    length: list[int] = setting([16, 32, 64], "L: symbols per window.")
    seeds: list[int] = setting([0], "Seeds of the fits.")
    fit: str = setting(
        "",
        f"Flags of the fits, beyond '{FIT}', such as '--time_limit 3:55:00'. Those that compare updates keep epochs, "
        "patience, tolerance, batch and documents of their own.",
    )
    pretrain: str = setting(
        "", "Flags of the Llama on the best HMM, beyond tinystories_hmm/pretrain.yaml, such as '--model 5m'."
    )
    launcher: str | None = setting(None, "Launch configuration of pretraining and evaluation, such as cpu2 or ddp.")


def main(settings: TinyStoriesSettings) -> None:
    """Fit, choose the best HMM, pretrain on it, compare."""
    from hmm_datasets.files import write_yaml
    from hmm_datasets.operations.stages import run_or_exit

    root = Path(settings.output_dir)
    for name, content in sweeps(settings).items():
        write_yaml(root / f"{name}.yaml", content)
    run_or_exit(fitting(settings), later=on_the_best(settings, root / "sizes" / "best"))
    run_or_exit(on_the_best(settings, best_fit(root)))


def sweeps(settings: TinyStoriesSettings) -> dict[str, dict[str, Any]]:
    """The files of the two sweeps, by name."""
    from stage_flags import read_flags

    read_flags(settings.pretrain, GIVEN["pretrain"])
    shared = {"corpus": settings.corpus} | read_flags(f"{FIT} {settings.fit}", GIVEN["fit"], recipe="fit")
    values = ["train_log_likelihood", *(f"{split}.{loss}" for split in HELD_OUT for loss in LOSSES), "epochs"]
    sizes = {
        "recipe": "fit",
        "output_dir": f"{settings.output_dir}/sizes",
        "settings": shared,
        "grid": {
            "vocabulary_size": settings.vocabulary_size,
            "num_states": settings.num_states,
            "length": settings.length,
            "seed": settings.seeds,
        },
        "table": {"values": values},
    }
    cells = [{"update_every": every, "update_rule": rule} for rule in UPDATE_RULES for every in UPDATE_EVERY]
    updates = {
        "recipe": "fit",
        "output_dir": f"{settings.output_dir}/updates",
        "settings": shared | UPDATE_FIT,
        "cells": [*cells, {"update_every": None, "update_rule": "stochastic"}],
        "grid": {"seed": settings.seeds},
        "table": {"values": values},
    }
    return {"sizes": sizes, "updates": updates}


def fitting(settings: TinyStoriesSettings) -> list[tuple[str, str]]:
    """Title and command of both sweeps."""
    titles = {"sizes": "HMMs of every size", "updates": "How often to update the tables, and how"}
    root = Path(settings.output_dir)
    return [(title, f"hmm-datasets sweep {_quoted(root / f'{name}.yaml')}") for name, title in titles.items()]


def best_fit(root: Path) -> Path:
    """The fit with the largest vocabulary that has the lowest cross-entropy of test sentences.

    Raises:
        `InputError`: a fit is not finished, for example because its time limit was up.
    """
    from hmm_datasets.files import read_json

    for name in ("sizes", "updates"):
        waiting = [
            cell["name"] for cell in read_json(root / name / "sweep.json")["cells"] if cell["state"] != "finished"
        ]
        if waiting:
            raise InputError(
                f"{root / name}: {len(waiting)} fits are not finished, such as {waiting[0]}; the same command "
                "continues"
            )
    cells = read_json(root / "sizes" / "sweep.json")["cells"]
    words = max(cell["settings"]["vocabulary_size"] for cell in cells)
    cells = [cell for cell in cells if cell["settings"]["vocabulary_size"] == words]
    return Path(min(cells, key=lambda cell: cell["values"]["test.cross_entropy"])["folder"]) / "run"


def on_the_best(settings: TinyStoriesSettings, best: Path) -> list[tuple[str, str]]:
    """Title and command of what follows the fits."""
    root = Path(settings.output_dir)
    hmm, model = _quoted(best / "hmm"), _quoted(root / "llama")
    launch = "" if settings.launcher is None else f" --launch {settings.launcher}"
    draw = "--text --num_sequences 40 --length 40 --seed 0 --output"
    programs = map(Path(__file__).with_name, ("compare.py", "emissions.py", "sentences.py"))
    compare, emissions, sentences = map(_quoted, programs)
    return [
        (
            "How the emissions of its most visited states changed over epochs",
            f"python {emissions} --fit {_quoted(best)} --output {_quoted(root / 'emissions.png')}",
        ),
        ("What the best HMM says", f"hmm-datasets sample {hmm} {draw} {_quoted(root / 'said_by_hmm.txt')}"),
        (
            "A Llama on its sequences",
            f"hmm-datasets pretrain{launch} --config tinystories_hmm/pretrain.yaml --hmm {hmm} --output_dir {model} "
            f"{settings.pretrain}".rstrip(),
        ),
        (
            "How far is the Llama from the optimum?",
            f"hmm-datasets evaluate {model}{launch} --targets {hmm} --tasks optimum training "
            f"--output_dir {_quoted(root / 'evaluation')}",
        ),
        ("What the Llama says", f"python {sentences} {model} {_quoted(root / 'said_by_llama.txt')}"),
        ("Everything together", f"python {compare} --experiment {_quoted(root)} --best {_quoted(best)}"),
    ]


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))


if __name__ == "__main__":
    run(main)
