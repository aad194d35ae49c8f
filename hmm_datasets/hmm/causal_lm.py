"""An HMM as a transformers causal language model, which is the optimal model of the HMM's sequences.

The forward pass is the scaled filter of `inference`. The cache is the belief: `H` numbers per sequence,
whatever its length. The logits are the log-probabilities of the next token. So everything that takes a causal model
(generation, evaluation harnesses, the Trainer's evaluation) also takes the optimal one. A pass costs `O(B T H^2)` time
in `T` sequential steps, and `O(B T V)` memory for the logits.

Importing this module registers the classes: afterwards `AutoModelForCausalLM.from_pretrained` loads any folder
written by [`~hmm_datasets.hmm.model.HMM.save_pretrained`]. A program that does not import it (an evaluation harness)
loads the same folder with `trust_remote_code=True`. The code it then runs is this package, which must be installed.

Token ids: symbols are `0 .. E-1`; a beginning-of-sequence token, where there is one, is `E`. That token resets the
belief to `start` at any position, and is never predicted. Logits at position `p` are the distribution of the token at
`p + 1`. A row without the token starts from `start` too, but no logits then give the distribution of its first token.

The tables and the logits are always float64. In bfloat16 the rows would no longer sum to one, and the model would
silently be another HMM. Casts leave the tables as they are, and loading refuses tables that do not match the
fingerprint in `config.json`.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Cache,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutputWithPast

from ..compat.torch import KeepDtype
from ..compat.transformers_caches import CACHE_NAME, cache_among
from ..errors import InputError
from ..files import write_digests
from .arrays import as_tokens
from .filters import BeliefFilter, Filter
from .inference import Parameters
from .model import HMM
from .process import Process
from .storage import FORMAT_VERSION, TABLES, ModelType, auto_map, files, write_loader
from .tokenizer import check_symbols, reads_symbols, write_tokenizer

LOGIT_OF_ZERO = torch.finfo(torch.float32).min
"""The logit of a token of probability zero.

It is finite so that `p log p` is 0 rather than NaN (in entropies, divergences and label smoothing), and so that beam
search and logits processors can add to it. It is finite in float32 too, to which generation casts. `softmax` maps it
to exactly 0.
"""

# Keywords of `push_to_hub`, which `save_pretrained` takes too.
_OF_HUB = {"repo_id", "commit_message", "commit_description", "private", "token", "revision", "create_pr", "tags"}


class HMMConfig(PreTrainedConfig):
    """Sizes of an HMM, and its beginning-of-sequence token.

    Args:
        num_states (`int`, *optional*, defaults to 1): `H`.
        num_symbols (`int`, *optional*, defaults to 2): `E`.
        edge_emitting (`bool`, *optional*, defaults to `False`): whether symbols are emitted on edges.
        vocabulary (`list[str]`, *optional*): a name for every symbol.
        fingerprint (`str`, *optional*): fingerprint of the tables; checked on loading.
        bos_token_id (`int`, *optional*): `num_symbols`, or `None` for no such token.
        pad_token_id (`int`, *optional*): any id; tokens that `attention_mask` hides are never read.

    Raises:
        `InputError`: `bos_token_id` is another number, or the folder was written in another version of the format.

    ```python
    >>> HMMConfig(num_states=3, num_symbols=4, bos_token_id=4).vocab_size
    5

    ```
    """

    model_type = "hmm"
    # Some tools read `hidden_size` from the config of any language model.
    attribute_map = {"hidden_size": "num_states"}  # noqa: RUF012
    # No layer has keys and values, so transformers makes an empty cache, which `forward` accepts. It is no field.
    num_hidden_layers = 0

    num_states: int = 1
    num_symbols: int = 2
    edge_emitting: bool = False
    vocabulary: list[str] | None = None
    fingerprint: str | None = None
    format_version: int = FORMAT_VERSION
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    pad_token_id: int | None = None
    use_cache: bool = True
    tie_word_embeddings: bool = False

    def __post_init__(self, **kwargs: Any):
        super().__post_init__(**kwargs)
        if self.format_version != FORMAT_VERSION:
            raise InputError(f"format_version is {self.format_version}; this package reads {FORMAT_VERSION}")
        self.check_bos_token_id()

    def check_bos_token_id(self) -> None:
        """Raise [`InputError`] unless it is the id after the symbols; transformers sets one given by keyword later."""
        if self.bos_token_id not in (None, self.num_symbols):
            raise InputError(
                f"bos_token_id is {self.bos_token_id}; expected {self.num_symbols}, the id after the symbols, or None"
            )

    @classmethod
    def register_for_auto_class(cls, *_: Any) -> None:
        """Do nothing: a saved folder names the code of this package and contains no copy of it."""

    @property
    def vocab_size(self) -> int:
        """`V`: the symbols, and the beginning-of-sequence token where there is one."""
        return self.num_symbols + (self.bos_token_id is not None)


class StateCache(Cache):
    """A cache whose size does not depend on the number of tokens read.

    Args:
        length (`int`): positions read so far, including padding.
    """

    is_compileable = False
    is_croppable = False

    def __init__(self, length: int):
        super().__init__(layers=[])
        self.length = length

    @property
    def is_linear(self) -> list[bool]:
        """One layer that is not linear: where all are, `generate` reads what the cache has read once more."""
        return [False]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.length

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1

    get_max_cache_shape = get_max_length  # its name in transformers 5.12


class BeliefCache(StateCache):
    """The belief after the tokens read so far, which is the whole memory of an HMM.

    Args:
        belief (`torch.Tensor` of shape `(B, H)`): `P(state before the next token | tokens so far)`. For a tilted HMM
            of shape `(B, H+2)`: the logarithms, the number of tokens, and the context of the reward.
        length (`int`): positions read so far, including padding.
    """

    def __init__(self, belief: Float[Tensor, "B H"], length: int):
        super().__init__(length)
        self.belief = belief

    def reorder_cache(self, beam_idx: Int[Tensor, "B"]) -> None:
        self.belief = self.belief.index_select(0, beam_idx.to(self.belief.device))

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.belief = self.belief.repeat_interleave(repeats, dim=0)

    def batch_select_indices(self, indices: Tensor) -> None:
        self.belief = self.belief[indices]

    def crop(self, max_length: int, *_: Any) -> None:
        raise InputError("the belief of an HMM cannot be rolled back; run the model again without the cache")


class SymbolsAtEnd(StoppingCriteria):
    """Stops a sequence that ends with some symbols, as `stop_strings` stop the models of text.

    Without an EOS token, as there, rows continue until all have stopped.

    Args:
        endings (`str` or list of `str`): symbols by name, separated by spaces.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): that of the HMM.

    Raises:
        `InputError`: an ending is empty, or has a word that is no symbol.
    """

    def __init__(self, endings: str | Sequence[str], tokenizer: PreTrainedTokenizerBase):
        endings = [endings] if isinstance(endings, str) else endings
        for ending in endings:
            check_symbols(tokenizer, ending, "stop_strings: ")
            if not ending.strip():
                raise InputError("stop_strings has an empty text; expected names of symbols, or leave it out")
        self.endings = [tokenizer(ending, add_special_tokens=False)["input_ids"] for ending in endings]

    def __call__(self, input_ids: Int[Tensor, "B T"], scores: Any, **_: Any) -> Bool[Tensor, "B"]:
        """Which sequences end so."""
        stops = torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
        for ending in self.endings:
            if len(ending) <= input_ids.shape[1]:
                stops |= (input_ids[:, -len(ending) :] == input_ids.new_tensor(ending)).all(1)
        return stops


class ExactCausalLM(KeepDtype, PreTrainedModel, GenerationMixin):
    """The interface of a causal language model around the filter of a process; see its subclasses.

    A subclass gives `from_process` and `to_process`, the parameter `start`, and `_filter`.
    """

    model_type: ClassVar[ModelType]
    cache_class: ClassVar[type[BeliefCache]] = BeliefCache
    # A belief cannot be rolled back, so assisted generation must refuse this model, as it does recurrent ones.
    _is_stateful = True
    _no_split_modules = []  # noqa: RUF012

    def __init__(self, config: HMMConfig):
        config.check_bos_token_id()
        config.dtype = torch.float64
        super().__init__(config)

    @classmethod
    def from_process(cls, process: Any, bos_token_id: int | None = None) -> Self:
        """The model of a process; `bos_token_id` is the number of its symbols, or `None`."""
        raise NotImplementedError

    @classmethod
    def _configured(cls, process: Process, bos_token_id: int | None, **settings: Any) -> Any:
        """The config of a model with the sizes and names of a process, and other settings."""
        return cls.config_class(
            num_states=process.max_states or 1,
            num_symbols=process.num_symbols,
            vocabulary=None if process.vocabulary is None else list(process.vocabulary),
            bos_token_id=bos_token_id,
            **settings,
        )

    def to_process(self) -> Any:
        """The process, which `load_source` reads from the folder of this model."""
        raise NotImplementedError

    @classmethod
    def register_for_auto_class(cls, *_: Any) -> None:
        """Do nothing: a saved folder names the code of this package and contains no copy of it."""

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any):
        """As in transformers, but the tables stay float64 whatever `dtype` is.

        Raises:
            `InputError`: a table is not a distribution, or the tables do not match `config.json`.
        """
        result = super().from_pretrained(*args, **kwargs)
        model = result[0] if isinstance(result, tuple) else result
        model.requires_grad_(False)
        model.config.dtype = torch.float64
        # transformers does not copy a bos_token_id given by keyword into the generation config.
        if model.generation_config.bos_token_id is None:
            model.generation_config.bos_token_id = model.config.bos_token_id
        fingerprint, expected = model.to_process().fingerprint(), model.config.fingerprint
        if expected is not None and fingerprint != expected:
            raise InputError(
                f"{model.config.name_or_path}: tables have fingerprint {fingerprint}, config.json expects {expected}; "
                "the two files belong to different HMMs, or the tables were stored in lower precision"
            )
        return result

    def save_pretrained(
        self, save_directory: Any, is_main_process: bool = True, *, push_to_hub: bool = False, **kwargs: Any
    ) -> None:
        """As in transformers; [`~hmm_datasets.hmm.loading.load_source`] reads the folder too.

        The tokenizer is written as well; it has a beginning-of-sequence token if the model has one.
        """
        config, folder = self.config, Path(save_directory)
        of_hub = {name: kwargs.pop(name) for name in _OF_HUB & kwargs.keys()}
        config.fingerprint = self.to_process().fingerprint()
        config.auto_map = auto_map(self.model_type)
        super().save_pretrained(folder, is_main_process, **kwargs)
        if not is_main_process:
            return
        write_loader(folder, self.model_type)
        write_tokenizer(folder, config.vocabulary, config.num_symbols, bos=config.bos_token_id is not None)
        self._write_process(folder)
        if push_to_hub:
            # transformers would push before the files above are written.
            self.push_to_hub(of_hub.pop("repo_id", folder.name), **of_hub)

    def _write_process(self, folder: Path) -> None:
        # What `load_source` reads beside the files of transformers, and the digests of all.
        write_digests(folder, files(self.model_type))

    @property
    def base_model(self) -> Callable[..., BaseModelOutput]:
        """The model without its output layer, as libraries take it apart that score tokens in pieces (TRL).

        The hidden states are the logits, and [`get_output_embeddings`] has the identity matrix.
        """

        def logits(*args: Any, **kwargs: Any) -> BaseModelOutput:
            return BaseModelOutput(ExactCausalLM.forward(self, *args, **kwargs).logits)

        return logits

    def get_output_embeddings(self) -> nn.Module:
        """An output layer that changes nothing; see [`base_model`]."""
        size = self.config.vocab_size
        layer = nn.Linear(size, size, bias=False, device=self.start.device, dtype=torch.float64)
        layer.weight = nn.Parameter(torch.eye(size).to(layer.weight), requires_grad=False)
        return layer

    def generate(self, inputs: Tensor | None = None, generation_config: Any = None, *args: Any, **kwargs: Any) -> Any:
        """As in transformers, but sampling considers all tokens unless `top_k` is given, not the 50 most likely.

        Raises:
            `InputError`: `stop_strings` with a word that is no symbol of the tokenizer, or the `cache_implementation`
                `"paged"`, which needs keys and values; others are not needed, and change nothing.
        """
        settings = generation_config or self.generation_config
        if kwargs.get("cache_implementation") == "paged":
            raise InputError("cache_implementation is 'paged', but an HMM has no keys and values; leave it out")
        endings, tokenizer = kwargs.get("stop_strings", settings.stop_strings), kwargs.get("tokenizer")
        if endings and tokenizer is not None and reads_symbols(tokenizer):
            # transformers would look for them in texts, for which it encodes words that are no symbols.
            others = kwargs.get("stopping_criteria") or ()
            kwargs["stopping_criteria"] = StoppingCriteriaList([*others, SymbolsAtEnd(endings, tokenizer)])
            kwargs["stop_strings"] = None
        if settings.top_k is None and kwargs.get("do_sample", settings.do_sample):
            kwargs.setdefault("top_k", 0)
        cache = cache_among(kwargs.pop("cache", None), kwargs.pop("past_key_values", None), kwargs)
        if cache is not None:
            kwargs[CACHE_NAME] = cache
        return super().generate(inputs, generation_config, *args, **kwargs)

    def forward(
        self,
        input_ids: Int[Tensor, "B T"],
        attention_mask: Int[Tensor, "B S"] | None = None,
        position_ids: Int[Tensor, "B T"] | None = None,
        past_key_values: Cache | None = None,
        labels: Int[Tensor, "B T"] | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: int | Tensor | None = None,
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast | tuple:
        """Read tokens and predict the next one at every position.

        Args:
            input_ids (`torch.Tensor` of shape `(B, T)`): tokens in `[0, V)`; masked tokens may be anything.
            attention_mask (`torch.Tensor` of shape `(B, S)`, *optional*):
                0 for padding, which leaves the belief unchanged, also between tokens; to sum over a token that was not
                observed, use the methods of the HMM. Of the `S >= T` columns only the last `T` are used.
            position_ids (`torch.Tensor` of shape `(B, T)`, *optional*):
                A 0 after the first column begins another sequence in the row, from `start`.
            cache, past_key_values ([`BeliefCache`], *optional*):
                The cache returned by an earlier call, under either name: transformers 5.24 renamed it.
            labels (`torch.Tensor` of shape `(B, T)`, *optional*):
                Tokens as in `input_ids`; they are shifted here. Positions with -100 are ignored.
            use_cache (`bool`, *optional*): whether to return the belief.
            output_hidden_states (`bool`, *optional*): whether to return the beliefs at all positions.
            logits_to_keep (`int` or `torch.Tensor`, *optional*, defaults to 0): how many of the last positions to
                return logits for, or the indices of those positions; 0 for all.
            num_items_in_batch (`int`, *optional*): divide the summed loss by this instead of the number of labels.

        Returns:
            `CausalLMOutputWithPast`: `logits` (B, T, V), float64 log-probabilities ([`LOGIT_OF_ZERO`] for probability
            zero, and for all tokens after an impossible one); `loss`, the mean in nats per label, infinite where a
            label is impossible; the cache; `hidden_states`, one tensor (B, T, H) with the belief after each
            token.

        Raises:
            `InputError`: a token outside the vocabulary, or a mask or cache that does not fit.
        """
        config = self.config
        batch, length = input_ids.shape
        reads = _reads(attention_mask, input_ids)
        begins = torch.zeros_like(reads)
        if position_ids is not None:
            begins[:, 1:] = position_ids.expand(batch, -1)[:, 1:] == 0
        if config.bos_token_id is not None:
            is_bos = input_ids == config.bos_token_id
            begins = begins | is_bos
        else:
            is_bos = torch.zeros_like(reads)
        begins, moves = begins & reads, reads & ~is_bos
        symbols = as_tokens(input_ids.masked_fill(~moves, 0), config.num_symbols)
        process = self._filter()
        start = process.start
        memory, past = self._memory(cache_among(cache, past_key_values, kwargs), batch, start)
        size = self._memory_size(start, past + length)
        memory = nn.functional.pad(memory, (0, size - memory.shape[1]))

        memories = memory.new_empty(batch, length, memory.shape[1])
        for t in range(length):
            memory = process.step(memory, symbols[:, t], begins[:, t], moves[:, t])
            memories[:, t] = memory

        keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        loss = None
        if labels is not None:
            loss = _loss(process.log_probs(memories[:, :-1]), labels[:, 1:], num_items_in_batch)
        log_probs = process.log_probs(memories[:, keep])
        # The added column is the beginning-of-sequence token, which is never predicted.
        logits = nn.functional.pad(log_probs, (0, config.vocab_size - config.num_symbols), value=-torch.inf)
        wanted = config.output_hidden_states if output_hidden_states is None else output_hidden_states
        output = CausalLMOutputWithPast(
            loss=loss,
            logits=logits.clamp(min=LOGIT_OF_ZERO),
            hidden_states=(self._beliefs_in(memories),) if wanted else None,
            **{CACHE_NAME: self.cache_class(memory, past + length) if use_cache or use_cache is None else None},
        )
        return output.to_tuple() if return_dict is False else output

    def _filter(self) -> Filter:
        raise NotImplementedError

    def _beliefs_in(self, memories: Tensor) -> Tensor:
        return memories

    def _memory(self, cache: Cache | None, batch: int, start: Tensor) -> tuple[Tensor, int]:
        # What is remembered of each row, and how many positions have been read.
        if cache is None or (not isinstance(cache, BeliefCache) and cache.get_seq_length() == 0):
            return start.expand(batch, -1), 0
        expected = batch, self._memory_size(start, cache.get_seq_length())
        if not isinstance(cache, BeliefCache) or cache.belief.shape != expected:
            state = tuple(cache.belief.shape) if isinstance(cache, BeliefCache) else type(cache).__name__
            raise InputError(f"the cache holds {state}; expected a BeliefCache of shape {expected}")
        return cache.belief, cache.length

    def _memory_size(self, start: Tensor, positions: int) -> int:
        # Numbers in the cache for each row, of which so many positions were read.
        return len(start)

    def _init_weights(self, module: nn.Module) -> None:
        # `__init__` makes the tables. transformers must not fill tables missing from a file with noise.
        pass


class HMMForCausalLM(ExactCausalLM):
    """The filter of an HMM behind the interface of a causal language model.

    Make one from an [`~hmm_datasets.hmm.model.HMM`] with [`from_hmm`], or load one with `from_pretrained`. One made
    from a config alone has uniform distributions only. The tables take no gradient, because an optimizer step would
    leave rows that are not distributions. Use [`~hmm_datasets.hmm.fitting.fit.fit_hmm`] to learn them.

    ```python
    >>> from hmm_datasets.hmm import processes
    >>> model = HMMForCausalLM.from_hmm(processes.golden_mean(), bos_token_id=2)
    >>> model(torch.tensor([[2, 0]])).logits.softmax(-1)[0, 1].tolist()
    [0.0, 1.0, 0.0]

    ```
    """

    config_class = HMMConfig
    main_input_name = "input_ids"
    model_type: ClassVar[ModelType] = "hmm"

    def __init__(self, config: HMMConfig):
        super().__init__(config)
        states, symbols = config.num_states, config.num_symbols
        self.start = _uniform(states)
        if config.edge_emitting:
            self.edges = _uniform(symbols, states, states, ways=symbols * states)
        else:
            self.transition = _uniform(states, states)
            self.emission = _uniform(states, symbols)
        self.post_init()

    @classmethod
    def from_hmm(cls, hmm: HMM, bos_token_id: int | None = None) -> "HMMForCausalLM":
        """The causal language model of `hmm`.

        Args:
            hmm ([`~hmm_datasets.hmm.model.HMM`]): the distribution.
            bos_token_id (`int`, *optional*): `hmm.num_symbols`, or `None` for rows without such a token.
        """
        return cls._with_tables(hmm.tables(), hmm, bos_token_id, fingerprint=hmm.fingerprint())

    @classmethod
    def _with_tables(cls, tables: dict[str, Any], hmm: HMM, bos_token_id: int | None, **settings: Any) -> Self:
        """The model with these tables, the sizes of an HMM, and other settings of its configuration."""
        model = cls(cls._configured(hmm, bos_token_id, edge_emitting=hmm.edges is not None, **settings))
        for name, table in tables.items():
            getattr(model, name).data.copy_(torch.tensor(table))
        return model

    def to_hmm(self) -> HMM:
        """The HMM whose filter this is; raises `InputError` if a table is not a distribution."""
        tables = {name: table.detach().cpu().numpy() for name, table in self.named_parameters()}
        return HMM(**{name: tables[name] for name in TABLES & tables.keys()}, vocabulary=self.config.vocabulary)

    @classmethod
    def from_process(cls, process: Any, bos_token_id: int | None = None) -> Self:
        return cls.from_hmm(process, bos_token_id)

    def to_process(self) -> Any:
        return self.to_hmm()

    def _filter(self) -> Filter:
        if not self.config.edge_emitting:
            return BeliefFilter(Parameters(self.start, self.transition, self.emission))
        return BeliefFilter(Parameters(self.start, self.edges.sum(0), self.edges.sum(2).T, self.edges))


def _uniform(*shape: int, ways: int | None = None) -> nn.Parameter:
    return nn.Parameter(torch.full(shape, 1 / (ways or shape[-1]), dtype=torch.float64), requires_grad=False)


def _reads(attention_mask: Tensor | None, input_ids: Tensor) -> Tensor:
    if attention_mask is None:
        return torch.ones_like(input_ids, dtype=torch.bool)
    batch, length = input_ids.shape
    if attention_mask.ndim != 2 or attention_mask.shape[0] != batch or attention_mask.shape[1] < length:
        raise InputError(
            f"attention_mask has shape {tuple(attention_mask.shape)}; expected ({batch}, {length}) or more columns"
        )
    return attention_mask[:, attention_mask.shape[1] - length :] != 0


def _loss(
    log_probs: Float[Tensor, "B T E"], labels: Int[Tensor, "B T"], count: int | Tensor | None
) -> Float[Tensor, ""]:
    counts = labels != -100
    wrong = counts & ((labels < 0) | (labels > log_probs.shape[-1]))
    if bool(wrong.any()):
        raise InputError(f"labels contain {labels[wrong][0].item()}; expected tokens in the vocabulary, or -100")
    # The added column of probability zero is the beginning-of-sequence token.
    padded = nn.functional.pad(log_probs, (0, 1), value=-torch.inf)
    nats = -torch.where(counts, padded.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1), 0.0).sum()
    return nats / (counts.sum() if count is None else count)


AutoConfig.register("hmm", HMMConfig, exist_ok=True)
AutoModelForCausalLM.register(HMMConfig, HMMForCausalLM, exist_ok=True)
