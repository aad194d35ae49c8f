"""LSTM and GRU language models, which transformers does not have, to be compared with the architectures it has.

A model is an embedding, `num_hidden_layers` recurrent layers of `hidden_size` units, each reading the outputs of the
one before, and a linear output layer: Hochreiter and Schmidhuber, "Long short-term memory", 1997; Cho et al.,
"Learning phrase representations using RNN encoder-decoder", 2014, arXiv 1406.1078. There is no dropout and there are
no residual connections. A pass takes `O(B T L D^2)` time in `T` sequential steps, and the memory of a sequence is `L`
vectors of `D` numbers, two for each layer of an LSTM.

Importing this module registers the classes, so that `AutoModelForCausalLM` loads a saved folder, whose configuration
has `"model_type": "recurrent"`.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    Cache,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
    initialization,
)
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from hmm_datasets.compat.transformers_caches import CACHE_NAME, cache_among, output_cache
from hmm_datasets.errors import InputError
from hmm_datasets.hmm.causal_lm import StateCache

CELLS: dict[str, type[nn.LSTM] | type[nn.GRU]] = {"lstm": nn.LSTM, "gru": nn.GRU}
"""The recurrent layers, by the name that a configuration gives."""


class RecurrentConfig(PreTrainedConfig):
    """Sizes of an LSTM or a GRU language model.

    Args:
        vocab_size (`int`, *optional*, defaults to 32): `V`.
        cell (`str`, *optional*, defaults to `"lstm"`): `"lstm"` or `"gru"`.
        hidden_size (`int`, *optional*, defaults to 128): `D`, the width of the embedding and of every layer.
        num_hidden_layers (`int`, *optional*, defaults to 2): `L`.
        initializer_range (`float`, *optional*, defaults to 0.1): standard deviation of the initial embedding.

    Raises:
        `InputError`: an unknown cell.

    ```python
    >>> RecurrentConfig(cell="gru", hidden_size=16).model_type
    'recurrent'

    ```
    """

    model_type = "recurrent"

    vocab_size: int = 32
    cell: str = "lstm"
    hidden_size: int = 128
    num_hidden_layers: int = 2
    initializer_range: float = 0.1
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    pad_token_id: int | None = None
    use_cache: bool = True
    tie_word_embeddings: bool = False

    def __post_init__(self, **kwargs: Any):
        super().__post_init__(**kwargs)
        if self.cell not in CELLS:
            raise InputError(f"cell is {self.cell!r}; expected one of {', '.join(CELLS)}")


class RecurrentCache(StateCache):
    """The states of all layers after the tokens read so far.

    Args:
        states (list): for every layer the tensor (1, B, D) of a GRU, or the pair of such tensors of an LSTM.
        length (`int`): positions read so far.
    """

    def __init__(self, states: list[Any], length: int):
        super().__init__(length)
        self.states = states

    def reorder_cache(self, beam_idx: Int[Tensor, "B"]) -> None:
        self._change(lambda state: state.index_select(1, beam_idx.to(state.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._change(lambda state: state.repeat_interleave(repeats, dim=1))

    def batch_select_indices(self, indices: Tensor) -> None:
        self._change(lambda state: state[:, indices])

    def crop(self, *_: Any) -> None:
        raise InputError("a recurrent state cannot be rolled back; run the model again without the cache")

    def _change(self, change: Any) -> None:
        self.states = [
            tuple(map(change, state)) if isinstance(state, tuple) else change(state) for state in self.states
        ]


class RecurrentPreTrainedModel(PreTrainedModel):
    """What the classes below have in common."""

    config_class = RecurrentConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    _is_stateful = True
    _no_split_modules = ["LSTM", "GRU"]  # noqa: RUF012

    def _init_weights(self, module: nn.Module) -> None:
        # Layers as torch makes them, but an LSTM begins by remembering: the bias of its forget gate is 1.
        if isinstance(module, nn.Embedding):
            initialization.normal_(module.weight, std=self.config.initializer_range)
            return
        if not isinstance(module, nn.RNNBase | nn.Linear):
            return
        bound = self.config.hidden_size**-0.5
        for name, weight in module.named_parameters(recurse=False):
            if name.startswith("bias"):
                initialization.zeros_(weight)
            else:
                initialization.uniform_(weight, -bound, bound)
            if (
                isinstance(module, nn.LSTM)
                and name == "bias_ih_l0"
                and not getattr(weight, "_is_hf_initialized", False)
            ):
                with torch.no_grad():
                    weight[module.hidden_size : 2 * module.hidden_size] = 1.0


class RecurrentModel(RecurrentPreTrainedModel):
    """The embedding and the recurrent layers; see [`RecurrentForCausalLM`]."""

    def __init__(self, config: RecurrentConfig):
        super().__init__(config)
        width = config.hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, width)
        self.layers = nn.ModuleList(
            CELLS[config.cell](width, width, batch_first=True) for _ in range(config.num_hidden_layers)
        )
        self.post_init()

    def forward(
        self,
        input_ids: Int[Tensor, "B T"] | None = None,
        attention_mask: Int[Tensor, "B S"] | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Float[Tensor, "B T D"] | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast | tuple:
        """Read tokens; `hidden_states` are the embeddings and then the outputs of each layer, (B, T, D)."""
        if (input_ids is None) == (inputs_embeds is None):
            raise InputError("expected exactly one of input_ids and inputs_embeds")
        _check_padding(attention_mask)
        hidden = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        before, past = _states(cache_among(cache, past_key_values, kwargs), len(self.layers))
        wanted = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        kept, after = [hidden], []
        for layer, state in zip(self.layers, before, strict=True):
            hidden, state = layer(hidden, state)
            kept.append(hidden)
            after.append(state)
        caches = self.config.use_cache if use_cache is None else use_cache
        output = BaseModelOutputWithPast(
            last_hidden_state=hidden,
            hidden_states=tuple(kept) if wanted else None,
            **{CACHE_NAME: RecurrentCache(after, past + hidden.shape[1]) if caches else None},
        )
        return output.to_tuple() if return_dict is False else output


class RecurrentForCausalLM(RecurrentPreTrainedModel, GenerationMixin):
    """An LSTM or GRU as a causal language model of transformers.

    ```python
    >>> model = RecurrentForCausalLM(RecurrentConfig(vocab_size=5, hidden_size=8))
    >>> output = model(torch.tensor([[0, 1, 4]]), output_hidden_states=True)
    >>> output.logits.shape, len(output.hidden_states)
    (torch.Size([1, 3, 5]), 3)

    ```
    """

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: RecurrentConfig):
        super().__init__(config)
        self.model = RecurrentModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.loss_type = "ForCausalLM"
        self.post_init()

    def forward(
        self,
        input_ids: Int[Tensor, "B T"] | None = None,
        attention_mask: Int[Tensor, "B S"] | None = None,
        position_ids: Int[Tensor, "B T"] | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Float[Tensor, "B T D"] | None = None,
        labels: Int[Tensor, "B T"] | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast | tuple:
        """Read tokens and predict the next one at every position.

        Args:
            input_ids (`torch.Tensor` of shape `(B, T)`): tokens in `[0, V)`.
            attention_mask (`torch.Tensor` of shape `(B, S)`, *optional*): 0 for padding, at the end of rows only.
            position_ids (`torch.Tensor`, *optional*): unused, since a state has no positions.
            cache, past_key_values ([`RecurrentCache`], *optional*):
                The states to continue from, under either name: transformers 5.24 renamed it.
            inputs_embeds (`torch.Tensor` of shape `(B, T, D)`, *optional*): vectors instead of tokens.
            labels (`torch.Tensor` of shape `(B, T)`, *optional*): tokens, shifted here; -100 is ignored.
            use_cache, output_hidden_states (`bool`, *optional*): whether to return the states, and all layers.
            logits_to_keep (`int` or `torch.Tensor`, *optional*, defaults to 0): how many of the last positions to
                return logits for, or their indices; 0 for all.

        Raises:
            `InputError`: padding before a token, or a cache of another model.
        """
        output = self.model(
            input_ids,
            attention_mask=attention_mask,
            cache=cache_among(cache, past_key_values, kwargs),
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            output_hidden_states=output_hidden_states,
        )
        keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(output.last_hidden_state[:, keep])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        result = CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            hidden_states=output.hidden_states,
            **{CACHE_NAME: output_cache(output)},
        )
        return result.to_tuple() if return_dict is False else result


def _check_padding(mask: Tensor | None) -> None:
    if mask is not None and mask.shape[1] > 1 and bool(((mask[:, 1:] != 0) & (mask[:, :-1] == 0)).any()):
        raise InputError(
            "attention_mask has padding before a token, which a recurrent model would read; pad at the end of rows"
        )


def _states(cache: Cache | None, layers: int) -> tuple[list[Any], int]:
    """The states to begin from, None for zeros, and the positions read before."""
    if cache is None or (not isinstance(cache, RecurrentCache) and cache.get_seq_length() == 0):
        return [None] * layers, 0
    if not isinstance(cache, RecurrentCache) or len(cache.states) != layers:
        raise InputError(f"the cache is a {type(cache).__name__}; expected a RecurrentCache of {layers} layers")
    return cache.states, cache.length


AutoConfig.register("recurrent", RecurrentConfig, exist_ok=True)
AutoModel.register(RecurrentConfig, RecurrentModel, exist_ok=True)
AutoModelForCausalLM.register(RecurrentConfig, RecurrentForCausalLM, exist_ok=True)
