"""In-context learning of languages: models on HMMs of words, and on HMMs whose emissions change with every sequence.

    hmm-datasets experiment icll --config icll/small.yaml [--plan H200] [--models 1m 3m ...]

HMMs of several sizes are fitted to the words of TinyStories. For each there are two sources of sequences: the HMM
itself, which a model can learn by heart, and the family in which the emission rows are shuffled among the states anew
for every sequence (`PermutedEmissions`), which it must infer from its context. A model of each size is pretrained on
each source. `compare.py` shows the divergence of every model from exact predictors, which know the process, and from
predictors that only count in the context, and the models' excess over the optimum by the number of states.

A family of more than seven states has no Bayes-optimal predictor that could be computed. There the excess is over an
oracle that knows the permutation, which no model can reach. When started again the experiment continues. With
`--plan H200` it only prints what it would cost there, without data: the plan takes random HMMs of the same sizes.
"""

import re
import shlex
import tempfile
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

from hmm_datasets.errors import InputError
from hmm_datasets.runtime.program import run
from hmm_datasets.runtime.settings import setting

KINDS = ("plain", "permuted")
FIT = {"length": 32, "max_epochs": 30, "pseudocount": 0.05}
"""Words per window that HMMs are fitted to, the maximum number of epochs, and what is added to expected counts."""
DEFAULTS = "--global_batch_size 32 --per_device_train_batch_size 16 --learning_rate 3e-3"
"""Flags of pretraining that others take the place of."""
GIVEN = ("output_dir", "hmm", "model", "seed", "length", "train_tokens")
"""Settings of pretraining that the experiment gives."""


@dataclass
class ICLLSettings:
    """Settings of the experiment."""

    output_dir: str = setting(MISSING, "Output folder.")
    corpus: str = setting("tinystories-sample", "A text corpus: name, file or Hub data set.")
    hmms: list[str] = setting(["H4-E100", "H8-E100", "H16-E100"], "Sizes of the HMMs, with H states and E words.")
    kinds: list[str] = setting(list(KINDS), "Some of plain, permuted.")
    models: list[str] = setting(["1m"], "Sizes of the models.")
    seeds: list[int] = setting([0], "Seeds of the models.")
    length: int = setting(64, "Symbols per sequence of the models.")
    train_tokens: int = setting(200_000, "Tokens that each model is trained on.")
    pretrain: str = setting("", f"Flags of pretraining, beyond '{DEFAULTS}' and icll/pretrain.yaml.")
    num_sequences: int = setting(256, "Held-out sequences that models are measured on.")
    plan: str | None = setting(
        None, "A device, such as H200, or H200:0.5: print the plan of the models on it, and end."
    )

    def __post_init__(self):
        for name in self.hmms:
            size_of(name)
        for kind in self.kinds:
            if kind not in KINDS:
                raise InputError(f"kinds has {kind!r}; expected some of {', '.join(KINDS)}")


def size_of(name: str) -> tuple[int, int]:
    """States and words of an HMM by its name.

    ```python
    >>> size_of("H500-E100")
    (500, 100)

    ```
    """
    match = re.fullmatch(r"H([1-9]\d*)-E([1-9]\d*)", name)
    if match is None:
        raise InputError(f"hmms has {name!r}; expected names such as H500-E100, for 500 states and 100 words")
    return int(match[1]), int(match[2])


def main(settings: ICLLSettings) -> None:
    """Fit HMMs, make the sources, train and measure models on them, compare."""
    from hmm_datasets.files import write_yaml
    from hmm_datasets.hmm.model import HMM
    from hmm_datasets.operations.stages import run_or_exit
    from hmm_datasets.operations.sweeps.file import read_sweep

    root = Path(settings.output_dir)
    fits, models = root / "fits.yaml", root / "models.yaml"
    write_yaml(fits, fits_sweep(settings))
    if settings.plan:
        from sweep_costs import costs_text

        with tempfile.TemporaryDirectory() as folder:
            stand_ins(settings, Path(folder))
            models = Path(folder) / "models.yaml"
            write_yaml(models, models_sweep(settings, Path(folder)))
            print(costs_text(read_sweep(models)))
        return
    write_yaml(models, models_sweep(settings, root))
    compare = _quoted(Path(__file__).with_name("compare.py"))
    training = [
        ("A model of each size on each source", f"hmm-datasets sweep {_quoted(models)}"),
        ("Everything together", f"python {compare} --experiment {_quoted(root)}"),
    ]
    fitting = [("HMMs fitted to the words of the corpus", f"hmm-datasets sweep {_quoted(fits)}")]
    run_or_exit(fitting, later=training, made=[root / "sources"])
    cells = {
        f"H{cell.varied['num_states']}-E{cell.varied['vocabulary_size']}": cell for cell in read_sweep(fits).cells
    }
    for name, cell in cells.items():
        if not (cell.output_dir / "hmm").is_dir():
            raise InputError(f"{cell.folder}: the fit is not finished; the same command continues")
        save_sources(name, HMM.from_pretrained(cell.output_dir / "hmm"), settings, root)
    run_or_exit(training)


def fits_sweep(settings: ICLLSettings) -> dict[str, Any]:
    """The file of the sweep that fits the HMMs."""
    sizes = [dict(zip(("num_states", "vocabulary_size"), size_of(name), strict=True)) for name in settings.hmms]
    return {
        "recipe": "fit",
        "output_dir": f"{settings.output_dir}/fits",
        "settings": {"corpus": settings.corpus, **FIT},
        "cells": sizes,
        "table": {"values": ["test.cross_entropy", "test.final_token_cross_entropy", "entropy_rate"]},
    }


def models_sweep(settings: ICLLSettings, root: Path) -> dict[str, Any]:
    """The file of the sweep that trains and measures models on the sources below `root`."""
    from stage_flags import read_flags

    planned = settings.plan is not None
    flags = read_flags(f"{DEFAULTS} {settings.pretrain}", (*GIVEN, *["assumed_rate"] * planned))
    shared: dict[str, Any] = {"length": settings.length, "train_tokens": settings.train_tokens}
    shared |= {"assumed_rate": settings.plan, "bf16": not flags.get("fp16")} if planned else {}
    shared |= flags
    sources = [str(root / "sources" / f"{name}-{kind}") for name in settings.hmms for kind in settings.kinds]
    return {
        "recipe": "pretrain",
        "config": "icll/pretrain.yaml",
        "output_dir": f"{settings.output_dir}/models",
        "settings": shared,
        "grid": {"hmm": sources, "model": settings.models, "seed": settings.seeds},
        "then": [
            f"evaluate {{output_dir}} --targets {{hmm}} --tasks optimum --num_sequences {settings.num_sequences}"
        ],
        "table": {"values": ["optimum.bayes_gap.bayes_gap"]},
    }


def save_sources(name: str, hmm, settings: ICLLSettings, root: Path) -> None:
    """Write the sources of an HMM that the models learn from."""
    from hmm_datasets.hmm.families import PermutedEmissions

    for kind in settings.kinds:
        source = hmm if kind == "plain" else PermutedEmissions(hmm)
        source.save_pretrained(root / "sources" / f"{name}-{kind}")


def stand_ins(settings: ICLLSettings, root: Path) -> None:
    """Write random HMMs of the same sizes, which cost the same."""
    from hmm_datasets.hmm import processes

    for name in settings.hmms:
        save_sources(name, processes.random(*size_of(name), alpha=1.0), settings, root)


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))


if __name__ == "__main__":
    run(main)
