"""The processes whose sequences are tokenized: an HMM fitted to the characters of stories, and named ones."""

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hmm_datasets.errors import InputError
from hmm_datasets.hmm.families.family import Family
from hmm_datasets.hmm.fitting.fit import fit_hmm
from hmm_datasets.hmm.loading import load_source
from hmm_datasets.hmm.model import HMM
from hmm_datasets.text.corpora.loading import load_corpus

ALPHABET = "abcdefghijklmnopqrstuvwxyz .,!?'\"\n"
"""Characters of the stories; others are left out."""
LENGTH, FITTED, HELD_OUT, EPOCHS = 256, 500_000, 16_384, 20
"""Characters per row, of all rows and of those held out, and passes of the fit."""


class Source(NamedTuple):
    """An HMM that emits symbols from its stationary distribution on.

    Attributes:
        name (`str`): for tables.
        folder (`str`): the name as that of a folder.
        hmm ([`HMM`]): the process.
        order (`int`, *optional*): the number of symbols that decide what comes next, if there is one.
    """

    name: str
    folder: str
    hmm: HMM
    order: int | None = None


def named_source(name: str) -> Source:
    """A process by name, folder or call; of a family the HMM of its first sequence.

    Raises:
        `InputError`: it is no HMM and has none.
    """
    process = load_source(name)
    order = getattr(process, "order", None)
    if isinstance(process, Family):
        process = process.hmm_at(0, 0)
    hmm = process.to_hmm() if hasattr(process, "to_hmm") else process
    if not isinstance(hmm, HMM):
        raise InputError(f"processes: {name} is {process.describe()}; expected an HMM, a chain or a family of HMMs")
    return Source(name, re.sub(r"\W+", "-", name).strip("-"), _stationary(hmm), order)


def story_source(folder: Path, states: int) -> Source:
    """An HMM fitted to the characters of the bundled stories by stochastic EM; from its folder, if it was fitted."""
    numbers = {character: number for number, character in enumerate(ALPHABET)}
    text = "\n".join(load_corpus("tinystories-sample", kind="text")["text"]).lower()
    symbols = np.array([numbers[character] for character in text if character in numbers], np.uint8)
    rows = symbols[: FITTED // LENGTH * LENGTH].reshape(-1, LENGTH)
    held_out = symbols[-HELD_OUT:].reshape(-1, LENGTH)
    fit = {"num_states": states, "max_epochs": EPOCHS, "pseudocount": 1e-3, "update_every": 4, "batch_size": 16}
    result = fit_hmm(rows, vocabulary=ALPHABET, test_tokens=held_out, checkpoint_dir=folder / "fit", **fit)
    return Source(f"stories, {states} states", f"stories-{states}", _stationary(result.hmm))


def _stationary(hmm: HMM) -> HMM:
    return HMM(**{**hmm.arrays(), "start": hmm.stationary()}, vocabulary=hmm.vocabulary)
