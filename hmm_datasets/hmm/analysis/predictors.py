"""Baseline predictors: next-token distributions to compare a language model with, at every position.

Each predictor turns tokens `(B, T)` into distributions `(B, T+1, E)`: entry `t` is the distribution of token `t` given
the tokens before it, in float64. In-context predictors know only the alphabet of the process and learn from the
sequence itself, as a model that reads a sequence from an unknown process must. Their counts are smoothed by a
symmetric Dirichlet prior of concentration `alpha` per symbol (`alpha = 1` is Laplace's rule, 1/2 that of Krichevsky
and Trofimov, IEEE Trans. Inf. Theory 27, 1981).

The distributions of many sequences do not fit in memory. [`stream`] yields them one batch at a time, and
[`cross_entropy`] computes their mean loss at each position.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...errors import InputError
from ...runtime.progress import progress_bar
from .. import inference
from ..arrays import as_tokens, token_table
from ..integers import integer
from ..model import HMM
from ..process import Process

Predictor = Callable[[Int[Tensor, "B T"]], Float[Tensor, "B T+1 E"]]
_BATCH_BYTES = 1 << 26


def uniform(tokens: Int[Tensor, "B T"], num_symbols: int) -> Float[Tensor, "B T+1 E"]:
    """The uniform distribution, whose loss is `ln E` nats per token."""
    batch, length = tokens.shape
    return torch.full((batch, length + 1, num_symbols), 1 / num_symbols, dtype=torch.float64, device=tokens.device)


def unigram(tokens: Int[Tensor, "B T"], num_symbols: int, alpha: float = 1.0) -> Float[Tensor, "B T+1 E"]:
    """In-context unigram: the smoothed frequencies of the symbols seen so far; `alpha` is above 0."""
    _check_positive("alpha", alpha)
    seen = _one_hot(tokens, num_symbols)
    counts = torch.cat([seen.new_zeros(len(seen), 1, num_symbols), seen.cumsum(dim=1)], dim=1) + alpha
    return counts / counts.sum(-1, keepdim=True)


def bigram(
    tokens: Int[Tensor, "B T"], num_symbols: int, alpha: float = 1.0, strength: float = 4.0
) -> Float[Tensor, "B T+1 E"]:
    """In-context bigram: the frequencies of the symbols that followed the last symbol, smoothed by the unigram.

    The distribution is `(count of pair + strength * unigram) / (count of last symbol + strength)`, the hierarchical
    Dirichlet smoothing of MacKay and Peto (Natural Language Engineering 1, 1995). If nothing has followed the last
    symbol yet, it equals the unigram. This is [`ngram`] of order 2.
    """
    return ngram(tokens, num_symbols, 2, alpha, strength)


def ngram(
    tokens: Int[Tensor, "B T"], num_symbols: int, order: int, alpha: float = 1.0, strength: float = 4.0
) -> Float[Tensor, "B T+1 E"]:
    """In-context n-gram: the frequencies after the last `order - 1` symbols, smoothed by shorter n-grams.

    With `distribution_1` the unigram and `c_n` the counts after the last `n - 1` symbols,
    `distribution_n(x) = (c_n(x) + strength * distribution_{n-1}(x)) / (sum of c_n + strength)`. This is MacKay and
    Peto's hierarchy of Dirichlet distributions (see [`bigram`]) for any order; every occurrence is counted at every
    order.

    Earlier positions with the same past are found by comparing all pairs of positions. Time is `O(order B T^2 E)`, by
    matrix products. Memory is `O(B T (T + E))`, with 5 bytes per pair of positions.

    Args:
        tokens (`torch.Tensor` of shape `(B, T)`): symbols.
        num_symbols (`int`): `E`.
        order (`int`): 1 is the unigram, 2 the bigram.
        alpha (`float`, *optional*, defaults to 1.0): concentration of the unigram's prior, per symbol, above 0.
        strength (`float`, *optional*, defaults to 4.0): weight of the shorter n-gram, in occurrences, above 0.

    ```python
    >>> ngram(torch.tensor([[0, 1, 1, 0, 1, 1, 0, 1]]), 2, order=3)[0, -1].round(decimals=2).tolist()
    [0.3, 0.7]

    ```
    """
    integer("order", order, 1, 31)
    _check_positive("strength", strength)
    distribution = unigram(tokens, num_symbols, alpha)
    if tokens.shape[1] < 2 or order == 1:
        return distribution
    # Counts are whole numbers, which are exact in float32 up to 2^24.
    after = _one_hot(tokens, num_symbols).float()[:, 1:]
    # same[b, t, s]: s comes before t, and the last `length` tokens up to s equal those up to t.
    equal = (tokens.unsqueeze(2) == tokens.unsqueeze(1)).tril_(diagonal=-1)
    same = equal
    for length in range(1, min(order, tokens.shape[1])):
        if length > 1:
            longer = torch.zeros_like(same)
            longer[:, 1:, 1:] = equal[:, 1:, 1:] & same[:, :-1, :-1]
            same = longer
        counts = (same[:, :, :-1].float() @ after).double()
        distribution[:, 1:] = (counts + strength * distribution[:, 1:]) / (counts.sum(-1, keepdim=True) + strength)
    return distribution


def bayes(tokens: Int[Tensor, "B T"], parameters: inference.Parameters) -> Float[Tensor, "B T+1 E"]:
    """The Bayes-optimal predictor: the filter of the HMM. No predictor has a lower expected cross-entropy."""
    return inference.predictions(parameters, tokens)


class StationaryDistributions(NamedTuple):
    """Distributions of the stationary process: `symbol` (E,) of a symbol, `following` (E, E) of the next one given it.

    The row of a symbol that the stationary process never emits is zeros.
    """

    symbol: Float[Tensor, "E"]
    following: Float[Tensor, "E E"]


def process_unigram(tokens: Int[Tensor, "B T"], distributions: StationaryDistributions) -> Float[Tensor, "B T+1 E"]:
    """The stationary distribution of the symbols, whatever the context."""
    return distributions.symbol.expand(tokens.shape[0], tokens.shape[1] + 1, -1)


def process_bigram(tokens: Int[Tensor, "B T"], distributions: StationaryDistributions) -> Float[Tensor, "B T+1 E"]:
    """`P(next symbol | last symbol)` in the stationary process; for the first token the stationary distribution."""
    return torch.cat([distributions.symbol.expand(tokens.shape[0], 1, -1), distributions.following[tokens]], dim=1)


def predictors_of(
    source: Process, device: torch.device | str | None = None, *, order: int = 2
) -> dict[str, Predictor]:
    """The predictors, by name, to compare a language model with on the sequences of a process.

    They are `uniform`; the in-context `unigram`, `bigram`, `3-gram` and so on up to `order`; for an HMM
    `process_unigram` and `process_bigram`, which know the process and count nothing; and `bayes`, where
    the process has an exact next-token distribution. What depends on the HMM alone is computed once, here.

    ```python
    >>> from hmm_datasets.hmm import processes
    >>> distributions = predictors_of(processes.mess3())
    >>> tuple(distributions["bayes"](torch.tensor([[0, 1, 2]])).shape)
    (1, 4, 3)

    ```
    """
    symbols = source.num_symbols

    def checked(distribution: Callable[[Tensor], Tensor]) -> Predictor:
        return lambda tokens: distribution(as_tokens(tokens, symbols))

    baselines = {
        "uniform": checked(lambda tokens: uniform(tokens, symbols)),
        "unigram": checked(lambda tokens: unigram(tokens, symbols)),
        "bigram": checked(lambda tokens: bigram(tokens, symbols)),
        **{f"{n}-gram": checked(partial(ngram, num_symbols=symbols, order=n)) for n in range(3, order + 1)},
    }
    if isinstance(source, HMM):
        parameters = source.parameters(device=device)
        stationary = stationary_distributions(source, device)
        baselines["process_unigram"] = checked(lambda tokens: process_unigram(tokens, stationary))
        baselines["process_bigram"] = checked(lambda tokens: process_bigram(tokens, stationary))
        baselines["bayes"] = checked(lambda tokens: bayes(tokens, parameters))
    elif source.has_exact_distribution:
        baselines["bayes"] = checked(lambda tokens: next_token_probs(source, tokens))
    return baselines


def next_token_probs(source: Process, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T+1 E"]:
    """The Bayes-optimal distributions on the device of the tokens, wherever the process can compute them."""
    if source.computes_on_devices:
        return source.next_token_probs(tokens)
    return source.next_token_probs(tokens.cpu()).to(tokens.device)


def stationary_distributions(hmm: HMM, device: torch.device | str | None = None) -> StationaryDistributions:
    """The distributions for [`process_unigram`] and [`process_bigram`], by one step of the filter of `hmm`."""
    parameters = hmm.parameters(device=device)
    steady = torch.tensor(hmm.stationary(), device=device)
    symbols = torch.arange(hmm.num_symbols, device=device).unsqueeze(1)
    after = inference.beliefs(parameters, symbols, initial=steady.expand(len(symbols), -1))[:, 1]
    return StationaryDistributions(steady @ parameters.emission, inference.next_token_probs(parameters, after))


class Batch(NamedTuple):
    """Consecutive sequences `tokens` (B, T), and the predictor's `distributions` (B, T+1, E) for them."""

    tokens: Int[Tensor, "B T"]
    distributions: Float[Tensor, "B T+1 E"]


class CrossEntropy(NamedTuple):
    """The mean loss `-log distribution(token)` of a predictor at every position in nats, and its standard error."""

    nats: Float[np.ndarray, "T"]
    standard_error: Float[np.ndarray, "T"]


def stream(
    predictor: Predictor,
    tokens: Int[Any, "N T"],
    *,
    batch_size: int | None = None,
    device: torch.device | str | None = None,
    show_progress: bool = True,
) -> Iterator[Batch]:
    """The distributions of a predictor for many sequences, one batch at a time.

    Args:
        predictor: turns tokens `(B, T)` into distributions `(B, T+1, E)`, for example one of [`predictors_of`].
        tokens (array of shape `(N, T)`): symbols of any integer type; an array in memory or mapped from a file.
        batch_size (`int`, *optional*): `B`; by default the maximum with which the distributions fit in 64 MiB. The
            predictor needs more: a table `(B, T+1, H)` for the Bayes predictor, `(B, T, T)` for an n-gram.
        device (*optional*): where the predictor computes; the CPU by default.
        show_progress (`bool`, *optional*, defaults to `True`): show a progress bar after two seconds.

    Yields:
        [`Batch`]: in order, every sequence once.
    """
    tokens = token_table(tokens)
    count, length = tokens.shape
    if batch_size is None:
        symbols = predictor(_on(tokens[:1], device)).shape[-1] if count > 0 else 1
        batch_size = max(1, _BATCH_BYTES // (8 * (length + 1) * symbols))
    with progress_bar(count, " sequences", shown=show_progress) as bar:
        for first in range(0, count, integer("batch_size", batch_size, 1, 63)):
            batch = as_tokens(_on(tokens[first : first + batch_size], device), None)
            yield Batch(batch, predictor(batch))
            bar.update(len(batch))


def cross_entropy(predictor: Predictor, tokens: Int[Any, "N T"], **settings: Any) -> CrossEntropy:
    """The mean loss of a predictor at every position, over many sequences, in memory that does not grow with them.

    Args:
        predictor, tokens, settings: those of [`stream`].

    Returns:
        [`CrossEntropy`]: two arrays `(T,)`, both infinite where a token has probability 0. The standard error is over
            sequences.

    Raises:
        `InputError`: there are fewer than 2 sequences, so there is no standard error.

    ```python
    >>> from hmm_datasets.hmm import processes
    >>> hmm = processes.mess3()
    >>> round(float(cross_entropy(predictors_of(hmm)["bayes"], hmm.sample(1000, 8)).nats[0]), 4)
    1.0986

    ```
    """
    count, mean, squares, impossible = 0, 0.0, 0.0, 0.0
    for batch, distributions in stream(predictor, tokens, **settings):
        loss = -distributions[:, :-1].gather(-1, batch.unsqueeze(-1)).squeeze(-1).log().double()
        # Infinite losses are recorded separately, because infinity minus infinity is NaN.
        impossible = torch.where(loss.isinf().any(0), torch.inf, impossible)
        loss = loss.masked_fill(loss.isinf(), 0.0)
        # Chan's update of the mean and the sum of squared deviations; a plain sum of squares would lose digits.
        here, size = loss.mean(0), len(loss)
        change = here - mean
        squares = squares + (loss - here).square().sum(0) + change.square() * (count * size / (count + size))
        count += size
        mean = mean + change * (size / count)
    if count < 2:
        raise InputError(f"tokens hold {count} sequences; expected 2 or more")
    error = (squares / (count - 1) / count).sqrt()
    return CrossEntropy((mean + impossible).cpu().numpy(), (error + impossible).cpu().numpy())


def _check_positive(name: str, value: float) -> None:
    # Without a prior the distribution after what was never seen would be zero divided by zero.
    if not 0 < value < math.inf:
        raise InputError(f"{name} is {value}; expected a number above 0")


def _on(tokens: Any, device: torch.device | str | None) -> Tensor:
    tokens = tokens if isinstance(tokens, torch.Tensor) else torch.from_numpy(tokens.astype(np.int64))
    return tokens.to(device).long()


def _one_hot(tokens: Tensor, num_symbols: int) -> Tensor:
    return torch.nn.functional.one_hot(tokens, num_symbols).to(torch.float64)
