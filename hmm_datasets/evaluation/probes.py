"""Linear probes over all words of a process up to some length, each weighted by its probability.

Where a context has few symbols there are few enough of them to probe every one. This is the protocol of Riechers,
Elliott and Shai (arXiv 2507.07432, appendix F): least squares with an intercept, weighted by the probabilities, where
directions of the hidden states with a singular value below a share `r` of the largest are left out, and `r` has the
smallest error on held-out words in a ten-fold cross-validation. Then the map is fitted on all words. Since it has seen
the words that it is measured on, the error on held-out words is given too.

Only second moments of the hidden states are kept, one matrix for each fold. They cost half the digits of float64, so
`r` is at least `1e-7`, which is the rounding error of hidden states in float32 anyway.

Linear regression from features to targets, with one pass over the fitting data and one over the held-out data.

This is least squares with an intercept. Only the means and centered second moments of features and targets are kept,
updated batch by batch in float64 (Chan, Golub and LeVeque, The American Statistician 37, 1983). So memory is
`O((D + K)^2)` for `D` features and `K` targets, whatever the number of positions. The scatter matrix of the features
is then decomposed, and directions whose variance is below `D` rounding errors of the largest are left out. This gives
the minimum-norm solution, which is needed if the features span fewer than `D` dimensions, as an embedding of few
symbols does. Time is `O(D^2)` per position and `O(D^3)` to solve. Second moments cost half the digits of float64,
which leaves about the precision of float32, the type of the features.

The control is the same regression to targets of other positions: those of another sequence of the same half, in random
order. What it explains is due to chance.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..errors import InputError
from ..hmm.analysis.divergence import kl_divergence
from ..hmm.model import HMM
from ..hmm.process import Process

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Starts:
    """A process that starts in its stationary distribution.

    Args:
        process ([`~hmm_datasets.hmm.process.Process`]): a process with beliefs.

    ```python
    >>> from hmm_datasets import processes
    >>> tokens = torch.tensor([[1, 0, 1, 1, 1, 1]])
    >>> Starts(processes.golden_mean()).markov_beliefs(tokens, 1)[0, :, 0].round(decimals=3).tolist()
    [0.667, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0]

    ```
    """

    def __init__(self, process: Process):
        is_hmm = isinstance(process, HMM)
        self.process = HMM(**{**process.tables(), "start": process.stationary()}) if is_hmm else process

    def markov_beliefs(self, tokens: Int[Tensor, "B T"], order: int) -> Float[Tensor, "B T+1 W"]:
        """The beliefs of Markov order `order` before each token and after the last.

        Windows that occur more than once are computed once.

        Args:
            tokens (`torch.Tensor` of shape `(B, T)`): symbols.
            order (`int`): `k`, 1 or more.
        """
        first = self.process.beliefs(tokens[:, : order - 1])
        if tokens.shape[1] < order:
            return first
        windows = tokens.unfold(1, order, 1)
        distinct, which = torch.unique(windows.reshape(-1, order), dim=0, return_inverse=True)
        last = self.process.beliefs(distinct)[:, -1]
        return torch.cat([first, last[which].unflatten(0, windows.shape[:2])], dim=1)


def split_sequences(count: int, seed: int) -> tuple[Int[np.ndarray, "F"], Int[np.ndarray, "G"]]:
    """The indices of the sequences to fit on and of those to test on: random halves, each in ascending order.

    Raises:
        `InputError`: fewer than 4 sequences, so that a half has fewer than two.

    ```python
    >>> [half.tolist() for half in split_sequences(6, seed=0)]
    [[2, 3, 5], [0, 1, 4]]

    ```
    """
    if count < 4:
        raise InputError(f"{count} sequences to probe; expected 4 or more, two of them in each half")
    order = np.random.default_rng(seed).permutation(count)
    return np.sort(order[: count // 2]), np.sort(order[count // 2 :])


def partners(half: Int[np.ndarray, "F"]) -> Int[np.ndarray, "F"]:
    """For each sequence of a half another sequence of the same half."""
    return np.roll(half, 1)


def shuffled_positions(sequence: int, length: int, seed: int) -> Int[np.ndarray, "T"]:
    """A random order of the positions of one sequence's partner."""
    return np.random.default_rng([seed, sequence]).permutation(length)


class Moments:
    """Count, means and centered second moments of rows that are added in batches.

    Attributes:
        count (`int`): rows so far.
        mean (`torch.Tensor` of shape `(C,)`, float64): mean of the rows.
        scatter (`torch.Tensor` of shape `(C, C)`, float64): sum of the outer products of their deviations from the
            mean.
    """

    count = 0
    mean: Float[Tensor, "C"]
    scatter: Float[Tensor, "C C"]

    def add(self, rows: Float[Tensor, "R C"]) -> None:
        """Add rows, in float64."""
        mean = rows.mean(0)
        deviation = rows - mean
        scatter = deviation.T @ deviation
        if self.count == 0:
            self.count, self.mean, self.scatter = len(rows), mean, scatter
            return
        total = self.count + len(rows)
        change = mean - self.mean
        self.scatter += scatter + torch.outer(change, change) * (self.count * len(rows) / total)
        self.mean = self.mean + change * (len(rows) / total)
        self.count = total

    def regress(self, features: slice, targets: slice) -> tuple[Float[Tensor, "D K"], Float[Tensor, "K"]]:
        """Weights and intercept of the least-squares regression of some columns on others."""
        values, vectors = torch.linalg.eigh(self.scatter[features, features])
        smallest = values[-1] * len(values) * torch.finfo(values.dtype).eps
        inverse = torch.where(values > smallest, values.reciprocal(), 0.0)
        weights = vectors @ (inverse.unsqueeze(1) * (vectors.T @ self.scatter[features, targets]))
        return weights, self.mean[targets] - self.mean[features] @ weights


class LinearProbe:
    """Regressions of groups of targets on several sets of features, and on all features together.

    First call [`LinearProbe.fit`] with all positions to fit on, then [`LinearProbe.test`] with all held-out positions.

    Args:
        widths (sequence of `int`, or mapping from `str`): number of features of each set, `D_0, D_1, ..`; the sets are
            concatenated. Those of a sequence are named `"0"`, `"1"`, ..
        targets (mapping from `str` to `int`): number of targets of each group, such as beliefs and shuffled beliefs.
            The first group is the main one.
        num_positions (`int`, *optional*, defaults to 1): `T`, positions of a sequence. Rows are whole sequences, one
            after the other.
    """

    def __init__(self, widths: Sequence[int] | Mapping[str, int], targets: Mapping[str, int], num_positions: int = 1):
        named = widths if isinstance(widths, Mapping) else {str(k): width for k, width in enumerate(widths)}
        ends = np.cumsum(list(named.values())).tolist()
        self._sets = {name: slice(end - width, end) for (name, width), end in zip(named.items(), ends, strict=True)}
        self._sets["all"] = slice(0, ends[-1])
        last = np.cumsum(list(targets.values())).tolist()
        self._groups = {
            name: slice(end - width, end) for (name, width), end in zip(targets.items(), last, strict=True)
        }
        self._main = next(iter(targets))
        self._targets = slice(ends[-1], ends[-1] + last[-1])
        self._num_positions = num_positions
        self._moments, self._held_out = Moments(), Moments()
        self._solved: dict[str, tuple[Tensor, Tensor]] = {}
        self._squares: dict[str, Tensor] = {}
        # Of the main group, by position: squared errors of each set, and sums of the targets and of their squares.
        self._squares_at: dict[str, Tensor] = {}
        self._sums_at: Tensor | None = None

    def fit(self, features: Float[Tensor, "R D"], targets: Mapping[str, Float[Tensor, "R K"]]) -> None:
        """Add positions to fit on."""
        self._moments.add(torch.cat([features.double(), self._joined(targets)], dim=1))

    def test(
        self, features: Float[Tensor, "R D"], targets: Mapping[str, Float[Tensor, "R K"]]
    ) -> Float[Tensor, "R K"]:
        """Add held-out positions; returns the predictions of the main targets from all features together."""
        if not self._solved:
            self._solved = {name: self._moments.regress(part, self._targets) for name, part in self._sets.items()}
        features, joined = features.double(), self._joined(targets)
        self._held_out.add(joined)
        main = joined[:, self._groups[self._main]].unflatten(0, (-1, self._num_positions))
        sums = torch.stack([main.sum(0), main.square().sum(0)])
        self._sums_at = sums if self._sums_at is None else self._sums_at + sums
        for name, part in self._sets.items():
            weights, intercept = self._solved[name]
            found = features[:, part] @ weights + intercept
            errors = (joined - found).square()
            self._squares[name] = self._squares.get(name, 0) + errors.sum(0)
            at = errors[:, self._groups[self._main]].sum(1).unflatten(0, (-1, self._num_positions)).sum(0)
            self._squares_at[name] = self._squares_at.get(name, 0) + at
        return found[:, self._groups[self._main]]

    def _joined(self, targets: Mapping[str, Tensor]) -> Tensor:
        return torch.cat([targets[name].double() for name in self._groups], dim=1)

    def figures(self, group: str, columns: slice = slice(None)) -> dict[str, dict[str, float | None]]:
        """`r2` and `rmse` of a group of targets, or of some of its columns, for each set of features.

        The sets are those of `widths`, and `"all"`. R2 is the explained share of the variance of all targets together
        on the held-out positions, None if they do not vary. RMSE is the root of the mean squared error of a target.
        """
        kept = torch.arange(self._groups[group].start, self._groups[group].stop)[columns]
        spread = self._held_out.scatter.diagonal()[kept].sum().item()
        entries = self._held_out.count * len(kept)
        return {
            name: r2_and_rmse(squares[kept].sum().item(), spread, entries) for name, squares in self._squares.items()
        }

    def compared(self, group: str, error: float) -> dict[str, float | None]:
        """`r2` and `rmse` of other predictions of a group of targets, from the sum of their squared errors."""
        part = self._groups[group]
        spread = self._held_out.scatter.diagonal()[part].sum().item()
        return r2_and_rmse(error, spread, self._held_out.count * (part.stop - part.start))

    def by_position(self) -> dict[str, dict[str, list[float | None]]]:
        """`r2` and `rmse` of the main group at each position, for each set of features; R2 as in `figures`."""
        if self._sums_at is None:
            return {}
        count = self._held_out.count // self._num_positions
        total, squares = self._sums_at
        spreads = squares - total.square() / count
        # Rounding errors of the sums are no variance.
        spreads = torch.where(spreads > 1e-12 * squares, spreads, 0.0).sum(1).tolist()
        entries = count * total.shape[1]
        found = {}
        for name, errors in self._squares_at.items():
            pairs = [
                r2_and_rmse(error, spread, entries) for error, spread in zip(errors.tolist(), spreads, strict=True)
            ]
            found[name] = {figure: [pair[figure] for pair in pairs] for figure in ("r2", "rmse")}
        return found


def r2_and_rmse(error: float, spread: float, entries: int) -> dict[str, float | None]:
    """R2 and RMSE from the sum of squared errors, that of squared deviations, and the number of entries."""
    return {"r2": 1 - error / spread if spread > 0 else None, "rmse": (error / entries) ** 0.5}


def probe_arrays(
    features: Sequence[Any], targets: Sequence[Any], seed: int = 0
) -> tuple[dict[str, float | None], tuple[int, int]]:
    """Probe one set of features that is in memory.

    Args:
        features: `N` arrays of shape `(T, D)`.
        targets: `N` arrays of shape `(T, K)`.
        seed (`int`, *optional*, defaults to 0): seed of the split and the shuffle.

    Returns:
        `tuple`: `r2`, `rmse`, `shuffled_r2` and `shuffled_rmse`; and the numbers of sequences fitted and tested on.
    """
    halves = split_sequences(len(features), seed)
    width = targets[0].shape[1]
    probe = LinearProbe([features[0].shape[1]], {"": width, "shuffled_": width})
    for half, add in zip(halves, (probe.fit, probe.test), strict=True):
        for sequence, partner in zip(half, partners(half), strict=True):
            shuffled = targets[partner][shuffled_positions(sequence, len(targets[partner]), seed)]
            rows, own, other = map(torch.from_numpy, (features[sequence], targets[sequence], shuffled))
            add(rows, {"": own, "shuffled_": other})
    figures = {
        f"{group}{name}": value for group in ("", "shuffled_") for name, value in probe.figures(group)["all"].items()
    }
    return figures, (len(halves[0]), len(halves[1]))


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
    found = np.zeros((len(words.rows), len(states)))
    for size in range(1, length + 1):
        chosen = np.flatnonzero(words.lengths == size)
        known = min(size, order)
        last = words.tokens[words.rows[chosen], size - known : size]
        found[chosen] = (last[:, None] == states[None, :, order - known :]).all(-1) * chances
    return found / found.sum(1, keepdims=True)


def best_of_order(words: WordSet, order: int) -> float:
    """The RMSE of the beliefs that only the last `k` symbols give; no function of these symbols has a lower one."""
    tokens = torch.from_numpy(words.tokens)
    found = Starts(words.process).markov_beliefs(tokens, order).numpy()[words.rows, words.lengths]
    return float(words.weights @ np.square(found - words.beliefs).sum(1)) ** 0.5


@torch.inference_mode()
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
    for own_scatter, own_cross, own_variance in moments:
        values, vectors = np.linalg.eigh(scatter - own_scatter)
        maps = _maps(values, vectors.T @ (cross - own_cross))
        inner, outer = vectors.T @ own_scatter @ vectors, vectors.T @ own_cross
        errors += [own_variance - 2 * (one * outer).sum() + (one * (inner @ one)).sum() for one in maps]
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
    return [np.where(one, 1 / np.where(one, values, 1.0), 0.0)[:, None] * cross for one in kept]
