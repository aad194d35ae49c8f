"""What is read from the results of the experiment, in bits per symbol, and unigram models of a simple chain."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float
from texts import Texts, unigram_losses

from hmm_datasets.hmm.structured.markov import MarkovChain

FLIPS = 0.05
"""How often the chain of the unigram models changes from one symbol to the other."""
UNIGRAM_SIZES = (2, 4, 8, 16, 32, 64, 128, 256)

Result = Mapping[str, Any]


def price(result: Result, window: int) -> Float[np.ndarray, "N"]:
    """What the best predictor loses by reading windows, in bits per symbol, on each row of the test text."""
    losses = {name: np.array(values) for name, values in result["windows"][str(window)].items()}
    return (losses["nats"] - losses["full"]) / losses["symbols"] / math.log(2)


def excess(result: Result, window: int) -> Float[np.ndarray, "N"]:
    """What models lose beyond the best predictor of windows, in bits per symbol: by seed, or of one seed by row."""
    losses = result["windows"][str(window)]
    lost = np.array([model["nats"] for model in result["models"]]) - losses["nats"]
    symbols = np.array(losses["symbols"])
    by_row = lost / symbols / math.log(2)
    return by_row[0] if len(by_row) == 1 else lost.sum(1) / symbols.sum() / math.log(2)


def together(result: Result, window: int) -> float:
    """The price of the window and the mean excess of the models."""
    return float(price(result, window).mean() + excess(result, window).mean())


def bound(result: Result, context: int) -> float:
    """A bound on the gap at the next token after `context` tokens, in bits per symbol of a chain of order `k`.

    What decides the next token is the last `k` symbols and where the last token ends. Of these the tokens that are
    read lack some, so that the gap, the information of the lacking symbols about the next token, is at most their
    entropy: their mean number times the bits of a symbol.
    """
    return result["missing"][str(context)] * math.log2(result["symbols"]) / result["symbols_per_token"]


def unigram_curve() -> dict[str, Any]:
    """The entropy rate of a chain of two symbols, and by number of tokens what unigram models of them lose."""
    chain = MarkovChain([[1 - FLIPS, FLIPS], [FLIPS, 1 - FLIPS]])
    losses = {str(size): unigram_losses(Texts.of(chain.to_hmm(), "clean", size)) for size in UNIGRAM_SIZES}
    return {"entropy_rate": chain.entropy_rate().value, "losses": losses}
