"""What a language model of text predicts about the next symbol of an HMM whose symbols it reads as words: `A B B A`.

The text is that of the benchmark's track `text`. Here the whole distribution over the symbols is needed, at every
position and from one forward pass. So a tokenizer has to write every symbol as the same tokens but for a last one that
is its own: ` A` as one token, or a space and a letter. The prediction is read where that last token is predicted, and
normalized over the symbols.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from hmm_datasets.errors import InputError
from hmm_datasets.evaluation.scoring import beginning_token, common_prefix, context_limit, encode
from hmm_datasets.hmm.analysis.divergence import kl_divergence

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from hmm_datasets.hmm.model import HMM


@dataclass(frozen=True)
class SymbolTokens:
    """How a tokenizer writes symbols, separated by spaces.

    Attributes:
        beginning (`tuple` of `int`): tokens before the first symbol.
        first (`tuple` of `tuple` of `int`): tokens of each symbol at the beginning of a text, all of one length.
        before (`tuple` of `int`): tokens that begin every later symbol, such as a space; often none.
        own (`tuple` of `int`): the last token of each later symbol.
    """

    beginning: tuple[int, ...]
    first: tuple[tuple[int, ...], ...]
    before: tuple[int, ...]
    own: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: "PreTrainedTokenizerBase", names: Sequence[str]) -> "SymbolTokens":
        """How a tokenizer writes symbols of these names.

        Raises:
            `InputError`: it writes them as different numbers of tokens, or joins them.
        """
        alone = encode(tokenizer, list(names))
        rows = [row[len(alone[0]) :] for row in encode(tokenizer, [f"{names[0]} {name}" for name in names])]
        shared = common_prefix(rows)
        beginning, _ = beginning_token(tokenizer)
        found = cls(
            () if beginning is None else (beginning,),
            tuple(map(tuple, alone)),
            tuple(rows[0][:shared]),
            tuple(row[-1] for row in rows),
        )
        order = [*range(len(names)), *range(len(names))[::-1]]
        whole = encode(tokenizer, [" ".join(names[x] for x in order)])[0]
        same = len({len(row) for row in rows}) == len({len(row) for row in alone}) == 1
        if (
            not same
            or len(rows[0]) != shared + 1
            or found.written(np.array([order]))[0].tolist()
            != [
                *found.beginning,
                *whole,
            ]
        ):
            raise InputError(
                f"{tokenizer.name_or_path or 'the tokenizer'} does not write each of {' '.join(names)} as the same "
                "tokens and one of its own; name other symbols with --alphabet"
            )
        return found

    def written(self, tokens: Int[np.ndarray, "B T"]) -> Int[np.ndarray, "B L"]:
        """The rows of tokens of sequences of symbols."""
        before = [*self.before]
        rows = [
            [*self.beginning, *self.first[row[0]], *(part for x in row[1:] for part in (*before, self.own[x]))]
            for row in tokens.tolist()
        ]
        return np.array(rows, dtype=np.int64)

    def places(self, length: int) -> Int[np.ndarray, "T-1"]:
        """Where the symbols `1 .. T - 1` of a row are predicted: the indices of the tokens before their own."""
        start, step = len(self.beginning) + len(self.first[0]), len(self.before) + 1
        return start + step * np.arange(1, length) - 2


def text_predictions(
    model: "PreTrainedModel", symbols: SymbolTokens, tokens: Int[np.ndarray, "N T"], *, batch_size: int = 1
) -> Float[Tensor, "N T-1 E"]:
    """A model's distributions of the symbols `1 .. T - 1`, each given those before it, float64.

    Args:
        model ([`~transformers.PreTrainedModel`]): a causal language model in eval mode.
        symbols ([`SymbolTokens`]): of its tokenizer.
        tokens (`np.ndarray` of shape `(N, T)`): symbols.
        batch_size (`int`, *optional*, defaults to 1): rows of a forward pass, which holds their logits of all tokens.

    Raises:
        `InputError`: the rows are longer than the model's context.
    """
    rows, limit = torch.from_numpy(symbols.written(tokens)), context_limit(model)
    if limit is not None and rows.shape[1] - 1 > limit:
        raise InputError(
            f"{tokens.shape[1]} symbols are {rows.shape[1]} tokens, but the model reads at most {limit}; set a "
            "smaller --length"
        )
    places = torch.from_numpy(symbols.places(tokens.shape[1])).to(model.device)
    own, found = torch.tensor(symbols.own, device=model.device), []
    for part in rows.split(batch_size):
        with torch.inference_mode():
            logits = model(input_ids=part[:, :-1].to(model.device), use_cache=False).logits
        found.append(logits[:, places][..., own].double().softmax(-1).cpu())
    return torch.cat(found)


def viterbi_predictions(hmm: "HMM", tokens: Int[np.ndarray, "N T"]) -> Float[np.ndarray, "N T-1 E"]:
    """The distributions of the symbols `1 .. T - 1` if the state before is taken from the most probable path.

    At each position the path is that of the symbols so far (the Viterbi algorithm, of which only the last state is
    needed), and the next symbol is predicted as if its last state were certain.

    Args:
        hmm ([`~hmm_datasets.HMM`]): a state-emitting HMM.
        tokens (`np.ndarray` of shape `(N, T)`): symbols.

    ```python
    >>> from hmm_datasets.hmm import processes
    >>> viterbi_predictions(processes.umbrella(), np.array([[1, 1]])).round(3).tolist()
    [[[0.31, 0.69]]]

    ```
    """
    if hmm.edges is not None:
        raise InputError(f"{hmm} has no emission table; expected a state-emitting HMM")
    with np.errstate(divide="ignore"):
        start, moves, shown = (np.log(table) for table in (hmm.start, hmm.transition, hmm.emission))
    following = hmm.transition @ hmm.emission
    best, found = start + shown[:, tokens[:, 0]].T, []
    for t in range(1, tokens.shape[1]):
        found.append(following[best.argmax(1)])
        best = (best[:, :, None] + moves).max(1) + shown[:, tokens[:, t]].T
    return np.stack(found, axis=1)


def agreement(exact: Float[np.ndarray, "N T E"], found: Float[np.ndarray, "N T E"]) -> dict[str, np.ndarray]:
    """How good predictions are under the exact distributions, at every position, as means over sequences.

    Returns:
        `dict`: arrays of shape `(T,)`: `accuracy`, the probability that the most probable symbol of `found` is the
        next one (that of the exact distributions is the highest possible); `kl`, the divergence from `exact` in nats;
        and `hellinger`, the Hellinger distance, in `[0, 1]`.

    ```python
    >>> exact = np.array([[[0.9, 0.1]]])
    >>> {name: value.round(3).tolist() for name, value in agreement(exact, exact[..., ::-1]).items()}
    {'accuracy': [0.1], 'kl': [1.758], 'hellinger': [0.632]}

    ```
    """
    chosen = np.take_along_axis(exact, found.argmax(-1)[..., None], -1)[..., 0]
    truth, other = (torch.from_numpy(np.ascontiguousarray(table)) for table in (exact, found))
    divergence = kl_divergence(truth, other.log()).numpy()
    distance = np.sqrt(((np.sqrt(exact) - np.sqrt(found)) ** 2).sum(-1) / 2)
    return {"accuracy": chosen.mean(0), "kl": divergence.mean(0), "hellinger": distance.mean(0)}
