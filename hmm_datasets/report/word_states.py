"""Which hidden states emit a word, and which other words those states emit.

By Bayes' rule, with the stationary distribution `π` of the chain,

    P(state i | symbol x) = π_i emission[i, x] / sum_j π_j emission[j, x].
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..errors import InputError
from ..hmm.model import HMM
from .tables import text_table

_MIN_SHARE = 0.05  # of a word's occurrences, for a state to be listed
_WORDS_OF_STATE = 4


def states_of_words(hmm: HMM, words: Sequence[str], name: str) -> list[dict[str, Any]]:
    """The states of each word, most probable first.

    Args:
        hmm ([`~hmm_datasets.HMM`]): an HMM whose symbols have names.
        words (sequence of `str`): names of symbols.
        name (`str`): what the HMM is called in errors.

    Returns:
        `list` of `dict`, one per word: `word`; `share`, its stationary probability; `states`, a list of `state`,
        `posterior` (`P(state | word)`), `emission` (`P(word | state)`) and `words`, the most probable of the state.

    Raises:
        `InputError`: the symbols have no names, or a word is none of them.
    """
    if hmm.vocabulary is None:
        raise InputError(f"--words: the symbols of {name} have no names; --plot draws all emissions")
    symbols = {word: symbol for symbol, word in enumerate(hmm.vocabulary)}
    missing = [word for word in words if word not in symbols]
    if missing:
        raise InputError(
            f"--words {missing[0]}: is no word of {name}; expected such as {', '.join(hmm.vocabulary[:5])}"
        )
    joint = hmm.stationary()[:, None] * hmm.emission
    return [_states_of(hmm, joint[:, symbols[word]], word, symbols[word]) for word in words]


def _states_of(hmm: HMM, joint: np.ndarray, word: str, symbol: int) -> dict[str, Any]:
    share = joint.sum()
    posterior = joint / share if share > 0 else joint
    states = [state for state in np.argsort(-posterior, kind="stable").tolist() if posterior[state] >= _MIN_SHARE]
    return {
        "word": word,
        "share": float(share),
        "states": [
            {
                "state": state,
                "posterior": float(posterior[state]),
                "emission": float(hmm.emission[state, symbol]),
                "words": [
                    hmm.vocabulary[x] for x in np.argsort(-hmm.emission[state], kind="stable")[:_WORDS_OF_STATE]
                ],
            }
            for state in states
        ],
    }


def word_states_table(rows: Iterable[dict[str, Any]]) -> str:
    """The rows of [`states_of_words`], each with `hmm` and `epoch`, as a table with a line for each state."""
    cells = [
        [
            row["hmm"],
            "" if row["epoch"] is None else str(row["epoch"]),
            row["word"],
            f"{row['share']:.4f}",
            str(state["state"]),
            f"{state['posterior']:.3f}",
            f"{state['emission']:.3f}",
            " ".join(state["words"]),
        ]
        for row in rows
        for state in row["states"]
    ]
    names = ["HMM", "epoch", "word", "share", "state", "P(state | word)", "P(word | state)", "words of the state"]
    return text_table(names, cells)
