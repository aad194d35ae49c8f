"""Samplers that fill in several masked tokens at once: how wrong are they with an exact denoiser?

A masked diffusion model (Sahoo et al., arXiv 2406.07524) begins with masks alone, predicts the distribution of every
masked token given those that are known, and fills in some of them at each step, each by its own distribution. Filled
in one by one, the tokens have the model's own joint distribution. Filled in together they are taken to be independent,
which is wrong however good the model is. For short sequences all partly filled ones can be enumerated, so that the
distribution of what a sampler writes is computed exactly, for an exact denoiser and for a trained one alike.

A partly filled sequence is an index into an array of shape `(E + 1,) * L`, where `E` is the mask.
"""

import itertools
from collections.abc import Callable

import numpy as np
from decoding import all_rows
from jaxtyping import Float

Marginals = Float[np.ndarray, "K L E"]
"""The distribution of every token of each of `K` partly filled sequences, in the order of [`partly_filled`]."""
ORDERS = ("random", "left to right", "most certain first", "least entropy first")


def partly_filled(num_symbols: int, length: int) -> np.ndarray:
    """All `(E + 1)**L` partly filled sequences, the mask being `E`, as rows."""
    return all_rows(num_symbols + 1, length)


def exact_marginals(probs: Float[np.ndarray, "S"], num_symbols: int, length: int) -> Marginals:
    """What an exact denoiser predicts; zeros where the known tokens are impossible, and at known tokens.

    Args:
        probs (`np.ndarray` of shape `(E**L,)`): probability of every sequence, in alphabetical order.
        num_symbols, length (`int`): `E` and `L`.
    """
    sums = probs.reshape((num_symbols,) * length)
    for axis in range(length):
        sums = np.concatenate([sums, sums.sum(axis, keepdims=True)], axis)
    marginals = np.zeros((*sums.shape, length, num_symbols))
    for place in range(length):
        masked = (*[slice(None)] * place, num_symbols)
        filled = np.moveaxis(sums, place, -1)[..., :num_symbols]
        whole = np.take(sums, num_symbols, axis=place)[..., None]
        marginals[(*masked, *[slice(None)] * (length - place - 1), place)] = np.divide(
            filled, whole, out=np.zeros_like(filled), where=whole > 0
        )
    return marginals.reshape(-1, length, num_symbols)


def written(marginals: Marginals, num_symbols: int, length: int, per_step: int, order: str) -> Float[np.ndarray, "S"]:
    """The probability of every sequence that a sampler writes which fills in so many tokens at each step.

    Args:
        marginals: what the denoiser predicts.
        num_symbols, length (`int`): `E` and `L`.
        per_step (`int`): tokens that are filled in at a step; fewer at the last, if it does not divide `L`.
        order (`str`): one of [`ORDERS`]; the last two choose by what the denoiser predicts.
    """
    sizes = (num_symbols + 1) ** np.arange(length - 1, -1, -1)
    rows = partly_filled(num_symbols, length)
    choose = _orders(marginals, order)
    now = {int(len(rows) - 1): 1.0}
    for _ in range(-(-length // per_step)):
        after: dict[int, float] = {}
        for state, weight in now.items():
            masked = np.flatnonzero(rows[state] == num_symbols)
            for share, places in choose(state, masked, min(per_step, len(masked))):
                # Codes of all ways to fill in these places, and their probabilities as of independent tokens.
                codes, probs = np.array([state]), np.array([weight * share])
                for place in places:
                    step = (np.arange(num_symbols) - num_symbols) * sizes[place]
                    codes = (codes[:, None] + step).ravel()
                    probs = (probs[:, None] * marginals[state, place]).ravel()
                for code, prob in zip(codes.tolist(), probs.tolist(), strict=True):
                    if prob > 0:
                        after[code] = after.get(code, 0.0) + prob
        now = after
    found = np.zeros((num_symbols + 1,) * length)
    np.put(found, list(now), list(now.values()))
    return found[(slice(num_symbols),) * length].ravel()


def _orders(marginals: Marginals, order: str) -> Callable[[int, np.ndarray, int], list[tuple[float, tuple[int, ...]]]]:
    # Which places are filled in next, with the probability of each choice.
    if order == "random":

        def chosen(state: int, masked: np.ndarray, count: int) -> list[tuple[float, tuple[int, ...]]]:
            sets = list(itertools.combinations(masked.tolist(), count))
            return [(1 / len(sets), places) for places in sets]

        return chosen

    if order == "left to right":
        return lambda state, masked, count: [(1.0, tuple(masked[:count].tolist()))]

    with np.errstate(divide="ignore", invalid="ignore"):
        plogp = np.where(marginals > 0, marginals * np.log(marginals), 0.0)
    score = marginals.max(-1) if order == "most certain first" else plogp.sum(-1)

    def best(state: int, masked: np.ndarray, count: int) -> list[tuple[float, tuple[int, ...]]]:
        # Of equals, the first.
        ranked = masked[np.argsort(-np.round(score[state, masked], 9), kind="stable")]
        return [(1.0, tuple(ranked[:count].tolist()))]

    return best
