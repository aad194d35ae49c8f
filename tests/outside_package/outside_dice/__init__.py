"""Independent throws of a die with given weights."""

import numpy as np

from hmm_datasets.hmm.process import Process
from hmm_datasets.hmm.sampling import philox


class Dice(Process):
    """Throws of a die whose faces have these weights (a test of hmm-datasets, 2026)."""

    stored_name = "dice"

    def __init__(self, weights=(1, 2, 5)):
        self.weights = tuple(map(int, weights))

    @property
    def num_symbols(self):
        return len(self.weights)

    def settings(self):
        return {"weights": list(self.weights)}

    def _draw(self, seed, first, step, out):
        index = first + step * np.arange(len(out), dtype=np.uint64)
        counter = np.zeros((*out.shape, 4), np.uint64)
        counter[..., 0], counter[..., 1] = index[:, None], np.arange(out.shape[1])
        words = philox(counter.reshape(-1, 4), np.full((out.size, 2), seed, np.uint64))[:, 0]
        ends = np.cumsum(self.weights)
        out[:] = np.searchsorted(ends, words % np.uint64(ends[-1]), side="right").reshape(out.shape)

    def next_token_probs(self, tokens):
        probs = np.array(self.weights) / sum(self.weights)
        return np.broadcast_to(probs, (len(tokens), len(tokens[0]) + 1, len(probs))).copy()


def loaded_dice(six=0.5):
    """A die of six faces that shows the last one with this probability, in percent."""
    return Dice([20 * (1 - six)] * 5 + [100 * six])
