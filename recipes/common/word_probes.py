"""Linear probes over all words of a process up to some length, each weighted by its probability.

Where a context has few symbols there are few enough of them to probe every one. This is the protocol of Riechers,
Elliott and Shai (arXiv 2507.07432, appendix F): least squares with an intercept, weighted by the probabilities, where
directions of the hidden states with a singular value below a share `r` of the largest are left out, and `r` has the
smallest error on held-out words in a ten-fold cross-validation. Then the map is fitted on all words. Since it has seen
the words that it is measured on, the error on held-out words is given too.

Only second moments of the hidden states are kept, one matrix for each fold. They cost half the digits of float64, so
`r` is at least `1e-7`, which is the rounding error of hidden states in float32 anyway.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int

from hmm_datasets.errors import InputError
from hmm_datasets.hmm.analysis.divergence import kl_divergence
from hmm_datasets.hmm.process import Process

if TYPE_CHECKING:
    from transformers import PreTrainedModel
from hmm_datasets.evaluation.markov_beliefs import Starts

MAX_WORDS = 1 << 20
"""Maximum number of words, `E^L`."""
CUTOFFS = np.logspace(-7, -3, 17)
"""Values of `r` that are compared."""
_NEVER = 1e-12  # probability of a word that the process cannot emit, but for rounding


@dataclass(frozen=True)
class WordSet:
    """All words of 1 to `L` symbols that a process can emit.

    Attributes:
        process ([`~hmm_datasets.hmm.process.Process`]): the process.
        tokens (`np.ndarray` of shape `(N, L)`): the words of `L` symbols, in lexicographic order.
        rows, lengths (`np.ndarray` of shape `(P,)`): word `p` is `tokens[rows[p], :lengths[p]]`.
        weights (`np.ndarray` of shape `(P,)`): its probability divided by `L`; they sum to 1.
        beliefs (`np.ndarray` of shape `(P, W)`): the belief, or predictive vector, after it.
    """

    process: Process
    tokens: Int[np.ndarray, "N L"]
    rows: Int[np.ndarray, "P"]
    lengths: Int[np.ndarray, "P"]
    weights: Float[np.ndarray, "P"]
    beliefs: Float[np.ndarray, "P W"]

    @property
    def next_token_probs(self) -> Float[np.ndarray, "P E"]:
        """The distribution of the symbol after each word."""
        return np.asarray(self.process.next_token_probs(self.tokens))[self.rows, self.lengths]


@dataclass(frozen=True)
class Fit:
    """How well targets are an affine image of hidden states.

    Attributes:
        rmse (`float`): root of the mean squared Euclidean distance between targets and their predictions, each word
            weighted by its probability, fitted on all words.
        r2 (`float`): the explained share of the variance of the targets.
        held_out_rmse (`float`): as `rmse`, but each word is predicted by the map that is fitted on the other folds.
        cutoff (`float`): `r`.
        predictions (`np.ndarray` of shape `(P, K)`): predictions of the targets, fitted on all words.
        slope (`np.ndarray` of shape `(D, K)`): the linear part of the map that is fitted on all words.
    """

    rmse: float
    r2: float
    held_out_rmse: float
    cutoff: float
    predictions: Float[np.ndarray, "P K"]
    slope: Float[np.ndarray, "D K"]


def all_words(process: Process, length: int) -> WordSet:
    """All words of a process up to a length, with their probabilities and beliefs.

    Args:
        process ([`~hmm_datasets.hmm.process.Process`]): a process with beliefs and exact probabilities.
        length (`int`): `L`.

    Raises:
        `InputError`: the process has no beliefs, or more than `MAX_WORDS` words.

    ```python
    >>> from hmm_datasets import processes
    >>> words = all_words(processes.golden_mean(), 2)
    >>> words.tokens.tolist(), len(words.rows), round(float(words.weights.sum()), 6)
    ([[0, 1], [1, 0], [1, 1]], 5, 1.0)

    ```
    """
    if process.belief_width is None:
        raise InputError(f"{type(process).__name__} has no beliefs; expected an HMM or another process with beliefs")
    if process.num_symbols**length > MAX_WORDS:
        raise InputError(
            f"length is {length}, which makes {process.num_symbols}**{length} words; expected {MAX_WORDS:,} at most"
        )
    tokens = np.indices((process.num_symbols,) * length).reshape(length, -1).T
    chances = np.asarray(process.next_token_probs(tokens))[:, :-1]
    chances = np.take_along_axis(chances, tokens[..., None], 2)[..., 0].cumprod(1)
    possible = chances[:, -1] > _NEVER
    tokens, chances = np.ascontiguousarray(tokens[possible]), chances[possible]
    # In lexicographic order, a word of t symbols is new where one of the first t differs from the row before.
    new = np.ones(tokens.shape, bool)
    new[1:] = (tokens[1:] != tokens[:-1]).cumsum(1) > 0
    rows, columns = np.nonzero(new)
    weights = chances[rows, columns]
    beliefs = np.asarray(process.beliefs(tokens))[rows, columns + 1]
    return WordSet(process, tokens, rows, columns + 1, weights / weights.sum(), beliefs)


def markov_states(words: WordSet, order: int) -> Float[np.ndarray, "P S"]:
    """Beliefs over the states of the Markov approximation of order `k` of a stationary process.

    The states are the words of `k` symbols that the process can emit. After `k` symbols or more the state is certain;
    after fewer the belief is the distribution of the last `k` symbols given these.

    Args:
        words ([`WordSet`]): the words, of `k` symbols or more.
        order (`int`): `k`.
    """
    length = words.tokens.shape[1]
    if not 1 <= order <= length:
        raise InputError(f"order is {order}; expected between 1 and {length}, the symbols of the longest words")
    kept = words.lengths == order
    states, chances = words.tokens[words.rows[kept], :order], words.weights[kept]
    beliefs = np.zeros((len(words.rows), len(states)))
    for size in range(1, length + 1):
        chosen = np.flatnonzero(words.lengths == size)
        known = min(size, order)
        last = words.tokens[words.rows[chosen], size - known : size]
        beliefs[chosen] = (last[:, None] == states[None, :, order - known :]).all(-1) * chances
    return beliefs / beliefs.sum(1, keepdims=True)


def best_of_order(words: WordSet, order: int) -> float:
    """The RMSE of the beliefs that only the last `k` symbols give; no function of these symbols has a lower one."""
    tokens = torch.from_numpy(words.tokens)
    beliefs = Starts(words.process).markov_beliefs(tokens, order).numpy()[words.rows, words.lengths]
    return float(words.weights @ np.square(beliefs - words.beliefs).sum(1)) ** 0.5


def constant_rmse(words: WordSet, targets: Float[np.ndarray, "P K"]) -> float:
    """The RMSE of the best constant: what a probe of nothing has."""
    return float(words.weights @ np.square(targets - words.weights @ targets).sum(1)) ** 0.5


@torch.no_grad()
def hidden_states(
    model: "PreTrainedModel", words: WordSet, bos_token_id: int, batch_size: int = 2048
) -> tuple[list[Float[np.ndarray, "P D"]], Float[np.ndarray, "P E"]]:
    """The hidden states of a model after each word, for every layer, and its distribution of the next symbol.

    Args:
        model ([`~transformers.PreTrainedModel`]): a causal language model that reads a beginning token first.
        words ([`WordSet`]): the words.
        bos_token_id (`int`): the beginning token.
        batch_size (`int`, *optional*, defaults to 2048): rows in one forward pass.

    Raises:
        `InputError`: the model returns no hidden states.
    """
    layers: list[list[np.ndarray]] = []
    distributions = []
    for first in range(0, len(words.tokens), batch_size):
        tokens = torch.from_numpy(words.tokens[first : first + batch_size])
        tokens = torch.cat([torch.full_like(tokens[:, :1], bos_token_id), tokens], dim=1).to(model.device)
        output: Any = model(input_ids=tokens, use_cache=False, output_hidden_states=True)
        if output.hidden_states is None:
            raise InputError(f"{type(model).__name__} returns no hidden states; there is nothing to probe")
        mine = slice(*np.searchsorted(words.rows, [first, first + len(tokens)]))
        rows, columns = words.rows[mine] - first, words.lengths[mine]
        layers.append([layer.float().cpu().numpy()[rows, columns] for layer in output.hidden_states])
        # In float32 a probability below 1e-45 would be zero, and its logarithm infinite.
        symbols = output.logits[..., : words.process.num_symbols].double().softmax(-1)
        distributions.append(symbols.cpu().numpy()[rows, columns])
    return [np.concatenate(parts) for parts in zip(*layers, strict=True)], np.concatenate(distributions)


def mean_excess(words: WordSet, distributions: Float[np.ndarray, "P E"]) -> float:
    """The exact divergence of a model's predictions from the process after words of 1 to `L` symbols, in nats."""
    exact = np.where(words.next_token_probs > _NEVER, words.next_token_probs, 0.0)
    log_model = torch.from_numpy(distributions.astype(np.float64)).log()
    return float(words.weights @ kl_divergence(torch.from_numpy(exact), log_model).numpy())


def fit_words(
    words: WordSet,
    features: Float[np.ndarray, "P D"],
    targets: Float[np.ndarray, "P K"],
    *,
    folds: int = 10,
    seed: int = 0,
) -> Fit:
    """Fit the affine map from hidden states to targets that is best over all words.

    Args:
        words ([`WordSet`]): the words.
        features (`np.ndarray` of shape `(P, D)`): hidden states after each word.
        targets (`np.ndarray` of shape `(P, K)`): beliefs after each word.
        folds (`int`, *optional*, defaults to 10): parts of the cross-validation.
        seed (`int`, *optional*, defaults to 0): seed of the division of the words into parts.
    """
    roots = np.sqrt(words.weights)[:, None]
    centered = features - words.weights @ features
    design = np.concatenate([np.ones((len(centered), 1)), centered], axis=1) * roots
    mean = words.weights @ targets
    wanted = (targets - mean) * roots
    which = np.random.default_rng(seed).permutation(len(design)) % folds
    moments = [_moments(design[which == fold], wanted[which == fold]) for fold in range(folds)]
    scatter, cross, variance = (sum(parts) for parts in zip(*moments, strict=True))
    errors = np.zeros(len(CUTOFFS))
    for fold_scatter, fold_cross, fold_variance in moments:
        values, vectors = np.linalg.eigh(scatter - fold_scatter)
        maps = _maps(values, vectors.T @ (cross - fold_cross))
        inner, outer = vectors.T @ fold_scatter @ vectors, vectors.T @ fold_cross
        errors += [
            fold_variance - 2 * (linear_map * outer).sum() + (linear_map * (inner @ linear_map)).sum()
            for linear_map in maps
        ]
    best = int(errors.argmin())
    values, vectors = np.linalg.eigh(scatter)
    chosen = vectors @ _maps(values, vectors.T @ cross)[best]
    predicted = design @ chosen
    error = float(np.square(predicted - wanted).sum())
    return Fit(
        rmse=error**0.5,
        r2=1 - error / variance,
        held_out_rmse=max(errors[best], 0.0) ** 0.5,
        cutoff=float(CUTOFFS[best]),
        predictions=predicted / roots + mean,
        slope=chosen[1:],
    )


def _moments(design: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    return design.T @ design, design.T @ wanted, float(np.square(wanted).sum())


def _maps(values: np.ndarray, cross: np.ndarray) -> list[np.ndarray]:
    """The regularized map for each cut-off, in the basis of the eigenvectors."""
    kept = values > np.square(CUTOFFS)[:, None] * values[-1]
    return [np.where(directions, 1 / np.where(directions, values, 1.0), 0.0)[:, None] * cross for directions in kept]
