"""Next-token laws a language model can be measured against, at every position.

Each predictor turns tokens `(B, T)` into laws `(B, T+1, E)`: entry `t` is the law of token `t` given those before it,
in float64. The in-context ones know nothing of the process but its alphabet, and learn from the sequence itself, as a
model reading a sequence from an unknown process must; their counts are smoothed by a symmetric Dirichlet prior of
concentration `alpha` a symbol (`alpha = 1` is Laplace's rule, 1/2 that of Krichevsky and Trofimov, IEEE Trans. Inf.
Theory 27, 1981).
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from . import inference
from .checks import as_tokens
from .model import HMM

Predictor = Callable[[Int[Tensor, "B T"]], Float[Tensor, "B T+1 E"]]


def uniform(tokens: Int[Tensor, "B T"], num_symbols: int) -> Float[Tensor, "B T+1 E"]:
    """`1 / E` everywhere: `ln E` nats a token."""
    batch, length = tokens.shape
    return torch.full((batch, length + 1, num_symbols), 1 / num_symbols, dtype=torch.float64, device=tokens.device)


def unigram(tokens: Int[Tensor, "B T"], num_symbols: int, alpha: float = 1.0) -> Float[Tensor, "B T+1 E"]:
    """In-context unigram: the smoothed frequencies of the symbols seen so far."""
    seen = _one_hot(tokens, num_symbols)
    counts = torch.cat([seen.new_zeros(len(seen), 1, num_symbols), seen.cumsum(dim=1)], dim=1) + alpha
    return counts / counts.sum(-1, keepdim=True)


def bigram(
    tokens: Int[Tensor, "B T"], num_symbols: int, alpha: float = 1.0, strength: float = 4.0
) -> Float[Tensor, "B T+1 E"]:
    """In-context bigram: what followed the last symbol so far, backed by the in-context unigram.

    `(count of pair + strength * unigram) / (count of last symbol + strength)`, the hierarchical Dirichlet smoothing of
    MacKay and Peto (Natural Language Engineering 1, 1995): with nothing seen after the last symbol it is the unigram.

    Memory and time are `O(B T (T + E))`: earlier places that hold the same symbol are found by comparing.
    """
    law = unigram(tokens, num_symbols, alpha)
    length = tokens.shape[1]
    if length < 2:
        return law
    # follows[b, t, s]: token s stands right after an earlier copy of the token before place t + 1.
    same = tokens.unsqueeze(2) == tokens.unsqueeze(1)
    follows = same.tril(diagonal=-1)[:, :, :-1].to(law.dtype)
    pairs = follows @ _one_hot(tokens, num_symbols)[:, 1:]
    total = pairs.sum(-1, keepdim=True)
    law[:, 1:] = (pairs + strength * law[:, 1:]) / (total + strength)
    return law


def bayes(tokens: Int[Tensor, "B T"], parameters: inference.Parameters) -> Float[Tensor, "B T+1 E"]:
    """The Bayes-optimal predictor: the HMM's own filter. No predictor has a lower expected cross-entropy."""
    return inference.next_token_probs(parameters, inference.forward_filter(parameters, tokens).beliefs)


class StationaryLaws(NamedTuple):
    """Of the stationary process: `symbol` (E,), the law of a symbol; `following` (E, E), of the one after each.

    A symbol that the stationary process never shows is followed by zeros.
    """

    symbol: Float[Tensor, "E"]
    following: Float[Tensor, "E E"]


def process_unigram(tokens: Int[Tensor, "B T"], laws: StationaryLaws) -> Float[Tensor, "B T+1 E"]:
    """The stationary law of the symbols, whatever the context."""
    return laws.symbol.expand(tokens.shape[0], tokens.shape[1] + 1, -1)


def process_bigram(tokens: Int[Tensor, "B T"], laws: StationaryLaws) -> Float[Tensor, "B T+1 E"]:
    """`P(next symbol | last symbol)` in the stationary process; the stationary law before the first."""
    return torch.cat([laws.symbol.expand(tokens.shape[0], 1, -1), laws.following[tokens]], dim=1)


def predictors_of(hmm: HMM, device: torch.device | str | None = None) -> dict[str, Predictor]:
    """The ladder a language model climbs on an HMM's sequences, by name.

    `uniform`; `unigram` and `bigram`, in context; `process_unigram` and `process_bigram`, which know the process and
    count nothing; `bayes`. What depends on the HMM alone is computed once, here.

    ```python
    >>> from hmm_datasets.hmm import processes
    >>> laws = predictors_of(processes.mess3())
    >>> tuple(laws["bayes"](torch.tensor([[0, 1, 2]])).shape)
    (1, 4, 3)

    ```
    """
    parameters = hmm.parameters(device=device)
    symbols = hmm.num_symbols
    stationary = stationary_laws(hmm, device)

    def checked(law: Callable[[Tensor], Tensor]) -> Predictor:
        return lambda tokens: law(as_tokens(tokens, symbols)[0])

    return {
        "uniform": checked(lambda tokens: uniform(tokens, symbols)),
        "unigram": checked(lambda tokens: unigram(tokens, symbols)),
        "bigram": checked(lambda tokens: bigram(tokens, symbols)),
        "process_unigram": checked(lambda tokens: process_unigram(tokens, stationary)),
        "process_bigram": checked(lambda tokens: process_bigram(tokens, stationary)),
        "bayes": checked(lambda tokens: bayes(tokens, parameters)),
    }


def stationary_laws(hmm: HMM, device: torch.device | str | None = None) -> StationaryLaws:
    """What [`process_unigram`] and [`process_bigram`] need of an HMM, by one step of its filter."""
    parameters = hmm.parameters(device=device)
    steady = torch.tensor(hmm.stationary(), device=device)
    symbols = torch.arange(hmm.num_symbols, device=device).unsqueeze(1)
    after = inference.forward_filter(parameters, symbols, initial=steady.expand(len(symbols), -1)).beliefs[:, 1]
    return StationaryLaws(steady @ parameters.emission, inference.next_token_probs(parameters, after))


def _one_hot(tokens: Tensor, num_symbols: int) -> Tensor:
    return torch.nn.functional.one_hot(tokens, num_symbols).to(torch.float64)
