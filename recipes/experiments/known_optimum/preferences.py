"""Pairs of sequences of an HMM with labels from a known reward, for preference optimization.

Pair `i` has sequences `2 i` and `2 i + 1` of the stream of a seed. The first is preferred with the probability of the
Bradley-Terry model, `sigmoid(r(first) - r(second))`, decided by a random number of its own (see `families.family`).
So a pair depends on `(optimum, seed, i)` alone. DPO with the HMM as reference and the `beta` of the optimum leads to
the optimum.
"""

import numpy as np
from datasets import Dataset

from hmm_datasets.hmm.integers import integer
from hmm_datasets.hmm.kernels.draws import PREFERENCES
from hmm_datasets.hmm.sampling import random_words
from hmm_datasets.hmm.tilted import TiltedHMM


def preference_pairs(optimum: TiltedHMM, num_pairs: int, seed: int = 0, first: int = 0) -> Dataset:
    """Pairs `first, first + 1, ...`, with the columns of TRL's `DPOTrainer` after its own preparation.

    Args:
        optimum ([`~hmm_datasets.hmm.tilted.TiltedHMM`]): the HMM, the rewards and the length.
        num_pairs (`int`): how many.
        seed (`int`, *optional*, defaults to 0): which stream to draw from, in `[0, 2**64)`.
        first (`int`, *optional*, defaults to 0): index of the first pair, in `[0, 2**63)`.

    Returns:
        `datasets.Dataset` with `prompt_ids` (the beginning token, `E`), `chosen_ids` and `rejected_ids`. There is no
        end-of-sequence token.

    ```python
    >>> from hmm_datasets.hmm import processes
    >>> pairs = preference_pairs(TiltedHMM(processes.mess3(0.15, 0.6), [0, 1, 0], 1.0, length=4), 3)
    >>> pairs[0]["prompt_ids"], len(pairs[0]["chosen_ids"]), len(pairs)
    ([3], 4, 3)

    ```
    """
    num_pairs, first = integer("num_pairs", num_pairs, 1, 62), integer("first", first, 0, 63)
    hmm, length = optimum.hmm, optimum.length
    tokens = hmm.sample(2 * num_pairs, length, seed=seed, first=2 * first).reshape(num_pairs, 2, length)
    rewards = optimum.reward(tokens.reshape(-1, length)).reshape(num_pairs, 2)
    indices = np.uint64(first) + np.arange(num_pairs, dtype=np.uint64)
    words = random_words(PREFERENCES, indices, np.uint64(seed)).astype(np.float64)
    uniform = (words[:, 0] + words[:, 1] / 2**32) / 2**32
    with np.errstate(over="ignore"):
        second_wins = uniform >= 1 / (1 + np.exp(rewards[:, 1] - rewards[:, 0]))
    rows, winner = np.arange(num_pairs), second_wins.astype(int)
    columns = {"prompt_ids": [[hmm.num_symbols]] * num_pairs}
    for name, index in (("chosen", winner), ("rejected", 1 - winner)):
        columns[f"{name}_ids"] = tokens[rows, index].tolist()
    return Dataset.from_dict(columns)
