"""A policy that can be any distribution of short sequences: a causal language model whose logits are a table.

A tree has a node for every beginning of a sequence after which there is a choice, and a node has a logit for each
symbol. So the policy starts in an HMM's own distribution, every optimum is within its reach, and the probability of
every sequence is known. What is left between a trainer's result and an optimum is due to objective, implementation and
noise, not to the model.

Symbols are `0 .. E-1`. The last ends a sequence, and must come after `L - 1` letters; the others are letters. `E` is
the beginning token, and pads.
"""

import itertools
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutput, SequenceClassifierOutput

from hmm_datasets import HMM

NEVER = -30.0
"""The logit of the beginning token, of which a policy has a share of 1e-13."""


def beginnings(num_symbols: int, length: int) -> list[tuple[int, ...]]:
    """What may stand before a choice: up to `L - 2` letters, in the order of the nodes."""
    return [word for n in range(length - 1) for word in itertools.product(range(num_symbols - 1), repeat=n)]


def sequences(num_symbols: int, length: int) -> list[tuple[int, ...]]:
    """Every sequence: up to `L - 1` letters, and the end."""
    longest = itertools.product(range(num_symbols - 1), repeat=length - 1)
    return [(*word, num_symbols - 1) for word in (*beginnings(num_symbols, length), *longest)]


def ending_hmm(transition: Any, emission: Any, ends: Any, start: Any, length: int) -> HMM:
    """An HMM whose sequences end.

    Args:
        transition (`np.ndarray` of shape `(H, H)`): of the states that emit letters.
        emission (`np.ndarray` of shape `(H, E - 1)`): of letters.
        ends (`np.ndarray` of shape `(H,)`): `P(the sequence ends after a letter | state)`.
        start (`np.ndarray` of shape `(H + 1,)`): the last is the probability of no letter at all.
        length (`int`): `L`; the end comes after `L - 1` letters at the latest.

    Returns:
        [`~hmm_datasets.hmm.model.HMM`]: `(L - 1) H + 1` states, since a state knows how many letters there were.
    """
    (states, num_letters), moves = np.shape(emission), (1 - np.asarray(ends))[:, None] * transition
    last, total = (length - 1) * states, (length - 1) * states + 1
    table, emits, first = np.zeros((total, total)), np.zeros((total, num_letters + 1)), np.zeros(total)
    first[:states], first[last] = start[:-1], start[-1]
    for place in range(0, last, states):
        here = slice(place, place + states)
        emits[here, :-1] = emission
        if place + states < last:
            table[here, place + states : place + 2 * states], table[here, last] = moves, ends
        else:
            table[here, last] = 1
    table[last, last] = emits[last, -1] = 1
    return HMM(transition=table, emission=emits, start=first)


def next_symbol_logits(hmm: HMM, length: int) -> Float[Tensor, "N E"]:
    """`log P(next symbol | beginning)` of an HMM at every node, float64."""
    words = beginnings(hmm.num_symbols, length)
    padded = np.array([[*word, *[0] * (length - 2 - len(word))] for word in words])
    probs = hmm.next_token_probs(padded)[np.arange(len(words)), [len(word) for word in words]]
    return torch.from_numpy(probs).log()


class TableConfig(PreTrainedConfig):
    """Number of symbols `E`, and the most symbols of a sequence."""

    model_type = "next_symbol_table"
    auto_map = {}  # noqa: RUF012 - TRL asks for it

    num_symbols: int = 3
    length: int = 5
    vocab_size: int = 4
    hidden_size: int = 4
    num_hidden_layers: int = 1  # `generate` asks, for a cache that is not used
    bos_token_id: int | None = 3
    pad_token_id: int | None = 3
    eos_token_id: int | None = 2
    tie_word_embeddings: bool = False


def _nodes(input_ids: Int[Tensor, "B T"], end: int) -> Int[Tensor, "B T"]:
    # The node that each position has reached. The children of a node follow each other. After an end, and before a
    # beginning, stands the first node.
    node, nodes = torch.zeros_like(input_ids[:, 0]), []
    for symbol in input_ids.T:
        node = torch.where(symbol < end, end * node + 1 + symbol, 0)
        nodes.append(node)
    return torch.stack(nodes, dim=1)


class _Nodes(nn.Module):
    # The logits at the node that each position has reached, as hidden states.
    def __init__(self, config: TableConfig):
        super().__init__()
        self.end = config.num_symbols - 1
        self.table = nn.Embedding(len(beginnings(config.num_symbols, config.length)), config.num_symbols)

    def forward(self, input_ids: Int[Tensor, "B T"], **_: Any) -> BaseModelOutput:
        no_choice = nn.functional.pad(self.table.weight.new_full((1, self.end), NEVER), (0, 1))
        rows = _nodes(input_ids, self.end).clamp(max=self.table.num_embeddings)
        logits = nn.functional.embedding(rows, torch.cat([self.table.weight, no_choice]))
        return BaseModelOutput(nn.functional.pad(logits, (0, 1), value=NEVER))


class _TableModel(PreTrainedModel):
    config_class = TableConfig
    base_model_prefix = "model"
    _tied_weights_keys: ClassVar[dict[str, str]] = {}

    def _init_weights(self, module: nn.Module) -> None:
        pass


class TableForCausalLM(_TableModel, GenerationMixin):
    """The policy; made by [`from_logits`]."""

    def __init__(self, config: TableConfig):
        super().__init__(config)
        self.model = _Nodes(config)
        self.post_init()

    @classmethod
    def from_logits(cls, logits: Float[Tensor, "N E"], length: int) -> "TableForCausalLM":
        """The policy with these logits at the nodes of a tree of this depth."""
        symbols = logits.shape[1]
        tokens = {"bos_token_id": symbols, "pad_token_id": symbols, "eos_token_id": symbols - 1}
        sizes = {"num_symbols": symbols, "length": length, "vocab_size": symbols + 1, "hidden_size": symbols + 1}
        model = cls(TableConfig(**sizes, **tokens))
        model.model.table.weight.data.copy_(logits)
        return model.eval()

    def get_input_embeddings(self) -> nn.Module:
        return self.model.table

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *_: Any) -> nn.Module:
        # Some trainers ask for the size that there is.
        if new_num_tokens != self.config.vocab_size:
            raise ValueError(f"{new_num_tokens} tokens; the table has {self.config.vocab_size}")
        return self.get_input_embeddings()

    def get_output_embeddings(self) -> nn.Module:
        # One that changes nothing, for trainers that multiply by it in pieces.
        layer = nn.Linear(self.config.vocab_size, self.config.vocab_size, bias=False)
        layer.weight = nn.Parameter(torch.eye(self.config.vocab_size), requires_grad=False)
        return layer

    def prepare_inputs_for_generation(self, input_ids: Tensor, **kwargs: Any) -> dict[str, Any]:
        return {"input_ids": input_ids}

    def forward(
        self,
        input_ids: Int[Tensor, "B T"],
        attention_mask: Int[Tensor, "B T"] | None = None,
        labels: Int[Tensor, "B T"] | None = None,
        **_: Any,
    ) -> CausalLMOutput:
        """Logits `(B, T, E + 1)`, and the mean loss in nats if there are labels; a beginning token begins anew."""
        logits = self.model(input_ids).last_hidden_state
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, self.config.vocab_size)
        return CausalLMOutput(loss, logits)

    def logits_of_nodes(self) -> Float[Tensor, "N E"]:
        """The table, float64."""
        return self.model.table.weight.detach().double().cpu()


class TableForSequenceClassification(_TableModel):
    """A reward model that can be any reward: a number for each sequence, in the order of [`sequences`], 0 at first."""

    def __init__(self, config: TableConfig):
        super().__init__(config)
        self.rewards = nn.Parameter(torch.zeros(len(sequences(config.num_symbols, config.length))))
        self.post_init()

    def forward(self, input_ids: Int[Tensor, "B T"], **_: Any) -> SequenceClassifierOutput:
        """Rewards `(B, 1)`."""
        # The last letter of a sequence is at the last node in it; padding and end are at the first.
        return SequenceClassifierOutput(
            logits=self.rewards[_nodes(input_ids, self.config.num_symbols - 1).amax(1), None]
        )


AutoConfig.register("next_symbol_table", TableConfig, exist_ok=True)
AutoModelForCausalLM.register(TableConfig, TableForCausalLM, exist_ok=True)
