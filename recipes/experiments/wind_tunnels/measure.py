"""Filtering with an HMM that is given: models that read the tables of an HMM and then its symbols, and give the
belief.

This is the second task of Agarwal, Dalal and Misra, "The Bayesian geometry of transformer attention", arXiv
2512.22471. Every sequence has an HMM of its own, whose transition and emission rows are uniform on the simplex
(Dirichlet with concentration 1). A model reads the `2 H` rows, one at a position, as vectors, then the symbols, and
is trained on the exact distribution of the state after each symbol. The state before the first symbol's is uniform.

That is not a language model: its inputs are not tokens and its targets not symbols. So it has a training loop of its
own, around the body of a causal language model of any architecture. Sequence `i` depends on the sizes, the seed and
`i` alone, and its first symbols not on the length: its random numbers are those of Philox with the key `seed` and a
counter that begins with `i`. Random numbers are numpy's; tables are computed from them in float64, which may
differ in the last bit from machine to machine.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedConfig, get_cosine_schedule_with_warmup

from hmm_datasets.training.model_configs import new_model


@dataclass(frozen=True)
class InContextHMMs:
    """A batch of sequences with their HMMs and beliefs.

    Attributes:
        transition (`torch.Tensor` of shape `(B, H, H)`), emission (`torch.Tensor` of shape `(B, H, E)`): the tables.
        tokens (`torch.Tensor` of shape `(B, L)`): symbols.
        beliefs (`torch.Tensor` of shape `(B, L, H)`): the distribution of the state that emitted symbol `t`, given
            the symbols up to and including it, float64.
    """

    transition: Float[Tensor, "B H H"]
    emission: Float[Tensor, "B H E"]
    tokens: Int[Tensor, "B L"]
    beliefs: Float[Tensor, "B L H"]


def told_sequences(
    num_sequences: int, length: int, *, num_states: int = 5, num_symbols: int = 5, seed: int = 0, first: int = 0
) -> InContextHMMs:
    """Sequences `first, first + 1, ...` of the stream `seed`.

    ```python
    >>> batch = told_sequences(2, 7, seed=1)
    >>> batch.beliefs.shape, batch.beliefs.sum(-1).round(decimals=12).unique().tolist()
    (torch.Size([2, 7, 5]), [1.0])

    ```
    """
    tables, draws = [], []
    for index in range(first, first + num_sequences):
        random = np.random.Generator(np.random.Philox(key=seed, counter=[0, index, 0, 0]))
        tables.append(random.standard_exponential((num_states, num_states + num_symbols)))
        draws.append(random.random((length, 2)))
    weights = np.stack(tables)
    transition, emission = weights[..., :num_states], weights[..., num_states:]
    transition, emission = (table / table.sum(-1, keepdims=True) for table in (transition, emission))
    tokens, beliefs = _drawn(transition, emission, np.stack(draws)), np.empty((num_sequences, length, num_states))
    belief = np.full((num_sequences, num_states), 1 / num_states)
    for t in range(length):
        likelihoods = np.take_along_axis(emission, tokens[:, t, None, None], axis=2)[..., 0]
        belief = np.einsum("bi,bij->bj", belief, transition) * likelihoods
        belief /= belief.sum(-1, keepdims=True)
        beliefs[:, t] = belief
    return InContextHMMs(*map(torch.from_numpy, (transition, emission, tokens, beliefs)))


def _drawn(transition: np.ndarray, emission: np.ndarray, uniforms: Float[np.ndarray, "B L 2"]) -> np.ndarray:
    """Symbols of the HMMs, by inversion of the cumulative distributions."""
    moves, emits = transition.cumsum(-1), emission.cumsum(-1)
    batch, length, _ = uniforms.shape
    rows, tokens = np.arange(batch), np.empty((batch, length), dtype=np.int64)
    ahead = transition.mean(1).cumsum(-1)
    for t in range(length):
        state = _inverted(ahead, uniforms[:, t, 0])
        ahead = moves[rows, state]
        tokens[:, t] = _inverted(emits[rows, state], uniforms[:, t, 1])
    return tokens


def _inverted(cumulative: Float[np.ndarray, "B K"], uniforms: Float[np.ndarray, "B"]) -> Int[np.ndarray, "B"]:
    # The last sum may be below 1 by rounding, and a uniform above it; it means the last value.
    return (uniforms[:, None] >= cumulative[:, :-1]).sum(-1)


class FilterModel(nn.Module):
    """A causal language model that reads the rows of an HMM as vectors, then symbols, and predicts beliefs.

    Args:
        config ([`~transformers.PreTrainedConfig`]): the body; `vocab_size` is at least `H` and `E`.
        num_states (`int`): `H`.
        num_symbols (`int`): `E`.
    """

    def __init__(self, config: PreTrainedConfig, num_states: int = 5, num_symbols: int = 5):
        super().__init__()
        self.num_states = num_states
        self.body = new_model(config)
        self.transition = nn.Linear(num_states, config.hidden_size)
        self.emission = nn.Linear(num_symbols, config.hidden_size)
        # Which row a vector is; a recurrent network and rotary positions do not say it by themselves.
        self.rows = nn.Parameter(torch.randn(2 * num_states, config.hidden_size) * 0.1)

    def forward(
        self, transition: Float[Tensor, "B H H"], emission: Float[Tensor, "B H E"], tokens: Int[Tensor, "B L"]
    ) -> Float[Tensor, "B L H"]:
        """Logarithms of the predicted belief after each symbol."""
        dtype = self.rows.dtype
        header = torch.cat([self.transition(transition.to(dtype)), self.emission(emission.to(dtype))], 1) + self.rows
        symbols = self.body.get_input_embeddings()(tokens)
        logits = self.body(inputs_embeds=torch.cat([header, symbols], 1), use_cache=False).logits
        return logits[:, 2 * self.num_states :, : self.num_states].log_softmax(-1)


def train_filter(
    config: PreTrainedConfig,
    length: int,
    *,
    steps: int,
    batch_size: int,
    learning_rate: float,
    num_states: int = 5,
    num_symbols: int = 5,
    seed: int = 0,
    device: str = "cpu",
) -> FilterModel:
    """A [`FilterModel`] trained on cross-entropy to the exact beliefs, every sequence once.

    AdamW (0.9, 0.999) with weight decay 0.01 and gradients clipped at norm 1, a linear warm-up over a tenth of the
    steps and a cosine to zero. Step `t` trains on sequences `[t G, (t + 1) G)` of the stream `seed`.

    Args:
        config ([`~transformers.PreTrainedConfig`]): the body.
        length (`int`): symbols per sequence.
        steps (`int`), batch_size (`int`): optimizer steps, and sequences of each (`G`).
        learning_rate (`float`): the peak.
        num_states, num_symbols (`int`, *optional*, default to 5): sizes of the HMMs.
        seed (`int`, *optional*, defaults to 0): of the initial weights and of the sequences.
        device (`str`, *optional*, defaults to `"cpu"`): where to train.
    """
    torch.manual_seed(seed)
    model = FilterModel(config, num_states, num_symbols).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), learning_rate, weight_decay=0.01)
    schedule = get_cosine_schedule_with_warmup(optimizer, max(1, steps // 10), steps)
    for step in range(steps):
        sizes = {"num_states": num_states, "num_symbols": num_symbols, "seed": seed, "first": step * batch_size}
        batch = told_sequences(batch_size, length, **sizes)
        log_probs = model(*(tensor.to(device) for tensor in (batch.transition, batch.emission, batch.tokens)))
        loss = -(batch.beliefs.to(log_probs) * log_probs).sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model.eval()
