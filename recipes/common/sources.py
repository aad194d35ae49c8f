"""The processes of experiments: an HMM fitted to the characters of stories, and named ones, from where they settle."""

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hmm_datasets.errors import InputError
from hmm_datasets.hmm.families.family import Family
from hmm_datasets.hmm.families.mixture import Mixture
from hmm_datasets.hmm.fitting.fit import fit_hmm
from hmm_datasets.hmm.loading import load_source
from hmm_datasets.hmm.model import HMM
from hmm_datasets.hmm.process import Process
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


def named_process(name: str) -> Process:
    """A process by name, folder or call: an HMM from its stationary distribution on, of a family that is no mixture
    the HMM of its first sequence, and any other as it is.
    """
    process = load_source(name)
    if isinstance(process, Family) and not isinstance(process, Mixture):
        process = process.hmm_at(0, 0)
    hmm = process.to_hmm() if hasattr(process, "to_hmm") else process
    return _stationary(hmm) if isinstance(hmm, HMM) else process


def named_source(name: str) -> Source:
    """The source that a name, folder or call stands for, see [`named_process`].

    Raises:
        `InputError`: it is no HMM and has none.
    """
    hmm = named_process(name)
    if not isinstance(hmm, HMM):
        raise InputError(f"processes: {name} is {hmm.describe()}; expected an HMM, a chain or a family of HMMs")
    return Source(name, folder_name(name), hmm, getattr(load_source(name), "order", None))


def folder_name(name: str) -> str:
    """The name of a process as that of a folder.

    ```python
    >>> folder_name("dyck(4, kinds=2)")
    'dyck-4-kinds-2'

    ```
    """
    return re.sub(r"\W+", "-", name).strip("-")


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
