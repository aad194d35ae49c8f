"""Any process whose next-token distribution is exact, as a transformers causal language model.

So a grammar, a mixture, a family of HMMs (the Bayes-optimal learner in context) or an HMM of blocks can be generated
from, distilled, and scored by whatever takes a causal language model. What is remembered of a sequence are its tokens,
which the process reads again at every call: `O(T)` calls for `T` tokens one by one, a single one for a whole row. The
last of them can be taken back, so that such a model may be the target or the draft of assisted generation. The logits
are those of [`~hmm_datasets.hmm.causal_lm.HMMForCausalLM`], which is faster for an HMM.

Importing this module registers the classes: afterwards `AutoModelForCausalLM.from_pretrained` loads any folder that
[`ProcessForCausalLM.save_pretrained`] wrote. A program that does not import it loads the folder with
`trust_remote_code=True`, as that of an HMM.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from ..compat.transformers_caches import positions_kept
from ..errors import InputError
from ..files import write_digests
from .causal_lm import BeliefCache, ExactCausalLM, HMMConfig
from .loading import load_source
from .model import HMM
from .process import Process
from .storage import ModelType, files


class ProcessConfig(HMMConfig):
    """The number of symbols of a process, their names, and its beginning-of-sequence token; see [`HMMConfig`]."""

    model_type = "process"


class HistoryCache(BeliefCache):
    """The tokens read so far; the last ones can be taken back, so that a draft model may propose some."""

    is_croppable = True

    def crop(self, max_length: int, *_: Any) -> None:
        """Take back the last positions, as the installed transformers means it: see [`positions_kept`]."""
        taken = self.length - positions_kept(max_length, self.length)
        self.length -= taken
        self.belief = self.belief[:, : 1 + self.length].clone()
        self.belief[:, 0] -= taken


@dataclass(frozen=True)
class HistoryFilter:
    """The filter of any process: it remembers how many positions there were, and what each of them was.

    A position has the number of the symbol that was read there, or `E` if there was none; and `E + 1` more if another
    sequence began there. So a position can be taken back whatever it was.
    """

    process: Process
    start: Float[Tensor, "1"]

    def step(self, memory: Tensor, symbol: Tensor, begins: Tensor, moves: Tensor) -> Tensor:
        """What is remembered after one more position."""
        memory, none = memory.clone(), self.process.num_symbols
        read = torch.where(moves, symbol, none) + begins * (none + 1)
        memory.scatter_(1, 1 + memory[:, :1].long(), read[:, None].to(memory))
        memory[:, 0] += 1
        return memory

    def log_probs(self, memories: Float[Tensor, "B T M"]) -> Float[Tensor, "B T E"]:
        """Log-probabilities of the next token."""
        rows = memories.flatten(0, 1)
        if len(rows) == 0:
            return memories.new_empty(*memories.shape[:2], self.process.num_symbols)
        tokens, lengths = self._tokens(rows)
        is_read, read_by = _readings(tokens, lengths)
        longest = torch.arange(int(lengths.max()), device=rows.device)
        sequences = tokens[is_read, : len(longest)].masked_fill(longest >= lengths[is_read, None], 0)
        probs = self.process.next_token_probs(sequences)[read_by, lengths].to(memories)
        return probs.log().unflatten(0, memories.shape[:2])

    def _tokens(self, rows: Float[Tensor, "N M"]) -> tuple[Int[Tensor, "N P"], Int[Tensor, "N"]]:
        # The symbols that were read since the last beginning of each row, first in it, and how many they are.
        none, codes = self.process.num_symbols, rows[:, 1:].long()
        positions = torch.arange(codes.shape[1], device=rows.device)
        is_past = positions < rows[:, :1]
        began = torch.where(is_past & (codes > none), positions, 0).amax(1, keepdim=True)
        symbols = codes % (none + 1)
        is_read = is_past & (symbols < none) & (positions >= began)
        order = (~is_read).long().argsort(dim=1, stable=True)
        return symbols.gather(1, order), is_read.sum(1)


def _readings(tokens: Int[Tensor, "N P"], lengths: Int[Tensor, "N"]) -> tuple[Bool[Tensor, "N"], Int[Tensor, "N"]]:
    """Which rows the process reads, and the number of the reading that has the distribution of each row.

    Rows that stand one after the other and of which each begins as the one before need one reading, that of the last.
    """
    positions = torch.arange(tokens.shape[1], device=tokens.device)
    agrees = ((tokens[1:] == tokens[:-1]) | (positions >= lengths[:-1, None])).all(1)
    is_continued = agrees & (lengths[1:] >= lengths[:-1])
    is_read = torch.nn.functional.pad(~is_continued, (0, 1), value=True)
    return is_read, torch.nn.functional.pad(is_read.cumsum(0)[:-1], (1, 0))


class ProcessForCausalLM(ExactCausalLM):
    """A process behind the interface of a causal language model; made by [`from_process`] or `from_pretrained`.

    ```python
    >>> from hmm_datasets.hmm.families import PermutedSymbols
    >>> from hmm_datasets.hmm import processes
    >>> model = ProcessForCausalLM.from_process(PermutedSymbols(processes.golden_mean()), bos_token_id=2)
    >>> model(torch.tensor([[2, 0, 0]])).logits.softmax(-1)[0, :, 0].round(decimals=3).tolist()
    [0.5, 0.333, 0.5]

    ```
    """

    config_class = ProcessConfig
    model_type: ClassVar[ModelType] = "process"
    cache_class: ClassVar[type[BeliefCache]] = HistoryCache
    _is_stateful = False

    def __init__(self, config: ProcessConfig, process: Process | None = None):
        if process is None:
            raise InputError("a config has no process; use ProcessForCausalLM.from_process, or from_pretrained")
        if not process.has_exact_distribution:
            raise InputError(f"the distribution of the next token is not known for {process!r}, so it is no model")
        super().__init__(config)
        self.process = process
        self.start = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64), requires_grad=False)
        self.post_init()

    @classmethod
    def from_process(cls, process: Process, bos_token_id: int | None = None) -> Self:
        """The causal language model of `process`.

        Args:
            process ([`~hmm_datasets.hmm.process.Process`]): one whose `next_token_probs` are exact.
            bos_token_id (`int`, *optional*): `process.num_symbols`, or `None` for rows without such a token.

        Raises:
            `InputError`: its next-token distribution is not known.
        """
        return cls(cls._configured(process, bos_token_id, fingerprint=process.fingerprint()), process)

    def to_process(self) -> Process:
        """The process."""
        return self.process

    @classmethod
    def from_pretrained(cls, name_or_path: Any, *, revision: str | None = None, **kwargs: Any):
        """As in transformers, of a folder that [`save_pretrained`] wrote, or of one on the Hub.

        Raises:
            `InputError`: there is no process, or a keyword says where files are that transformers alone would find.
        """
        elsewhere = [name for name in ("subfolder", "cache_dir", "token", "proxies") if kwargs.get(name)]
        if elsewhere:
            raise InputError(f"{elsewhere[0]} is given; expected the folder of the process itself, or USER/NAME")
        process = load_source(name_or_path, revision=revision)
        return super().from_pretrained(name_or_path, process, revision=revision or "main", **kwargs)

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """As in transformers; [`~hmm_datasets.hmm.loading.load_source`] reads the folder too.

        Raises:
            `InputError`: the process is an HMM, whose folder would have the same files.
        """
        if isinstance(self.process, HMM):
            raise InputError(f"{self.process!r} has a model of its own; save HMMForCausalLM.from_hmm(hmm)")
        super().save_pretrained(save_directory, *args, **kwargs)

    def _write_process(self, folder: Path) -> None:
        self.process.save_pretrained(folder)
        write_digests(folder, files(self.model_type), into=folder)  # beside those of the process

    def _filter(self) -> HistoryFilter:
        return HistoryFilter(self.process, self.start)

    def _memory_size(self, start: Tensor, positions: int) -> int:
        return 1 + positions

    def _beliefs_in(self, memories: Tensor) -> NoReturn:
        raise InputError(f"{self.process!r} has no hidden states here; its beliefs are those of the process itself")


AutoConfig.register("process", ProcessConfig, exist_ok=True)
AutoModelForCausalLM.register(ProcessConfig, ProcessForCausalLM, exist_ok=True)
