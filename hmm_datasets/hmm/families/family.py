"""The base class of families of HMMs, and their random numbers.

What varies from group to group (a permutation, a component, a table) is drawn with the same Philox4x32-10 generator as
the tokens, keyed by the seed, and never shares a block with them. The counter of a block is

    (group number, low 32 bits; high 32 bits; draw; FAMILY_STREAM | purpose << 8 | part << 16)

Here the group number of sequence `i` is `i // group`, `draw` counts blocks within one choice, `purpose` is a number
for each kind of choice, and `part` counts attempts of rejection sampling, rows, or levels of a tree, whose nodes
`draw` counts. Tokens use stream 0 and the counter of sequence `i`.

Permutations are drawn by the inside-out Fisher-Yates shuffle (Durstenfeld 1964). Each choice takes 16 random bits,
which are drawn again where they would make some choices more likely (Lemire, ACM Trans. Model. Comput. Simul. 29,
2019). So permutations of up to `2^16` elements are exactly uniform. Tables are drawn by `dirichlet`.
"""

import dataclasses
import typing
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float, Int

from ...errors import InputError
from .. import inference
from ..arrays import as_tokens
from ..integers import integer
from ..kernels.draws import shuffle, shuffle_buffer
from ..model import HMM
from ..process import Process, Rows
from ..sampling import AliasTable, checked_indices, draw_tokens

MAX_ENUMERATED = 7
"""Maximum number of elements for which exact distributions sum over all permutations, of which there are then 5040."""


class Family(Process):
    """Base class of families; its subclasses are frozen dataclasses.

    Attributes:
        num_symbols (`int`): `E`.
        group (`int`): number of consecutive sequences that share an HMM: `i` and `j` do if `i // group == j // group`.
    """

    stored_in = "family.json"
    has_oracle = computes_on_devices = True
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def group(self) -> int:
        raise NotImplementedError

    def describe(self) -> str:
        """What the family is, in a few words, for cards and tables."""
        rows = "every sequence" if self.group == 1 else f"every {self.group:,} sequences"
        return f"a family of HMMs ({self.stored_name}), with a new HMM for {rows}"

    def parts(self) -> tuple[HMM, ...]:
        """The HMMs that the family is made of; random chains have none."""
        return ()

    @property
    def max_states(self) -> int:
        """Maximum number of states of an HMM of the family."""
        return max(hmm.num_states for hmm in self.parts())

    def settings(self) -> dict[str, Any]:
        """All fields except the HMMs, as values for JSON."""
        fields = [field.name for field in dataclasses.fields(self) if field.name not in ("hmm", "hmms")]
        return {name: getattr(self, name) for name in fields}

    @classmethod
    def setting_types(cls, names: Iterable[str]) -> dict[str, Any]:
        hints = typing.get_type_hints(cls)
        return {name: hints.get(name, Any) for name in names}

    @classmethod
    def from_parts(cls, settings: dict[str, Any], arrays: dict[str, np.ndarray], parts: tuple[Process, ...]) -> Self:
        names = {field.name for field in dataclasses.fields(cls)}
        if "hmm" in names and len(parts) != 1:
            raise InputError(f"num_hmms is {len(parts)}; expected 1 for {cls.__name__}")
        components = {"hmms": parts} if "hmms" in names else {"hmm": parts[0]} if "hmm" in names else {}
        if set(settings) | set(components) != names:
            odd = ", ".join(sorted((set(settings) | set(components)) ^ names))[:200]
            raise InputError(f"settings: {odd} missing or unknown; expected those of {cls.__name__}")
        # JSON has lists where the settings have tuples.
        return cls(**components, **{name: tuple(v) if isinstance(v, list) else v for name, v in settings.items()})

    def hmm_at(self, seed: int, index: int) -> HMM:
        """The HMM of sequence `index` of the stream `seed`."""
        raise NotImplementedError

    def _draw_states(self, seed: np.uint64, first: np.uint64, step: np.uint64, out: Rows, states: Rows | None) -> None:
        for begin, end, index in group_runs(self.group, int(first), int(step), len(out)):
            tables, own_states = self._own_tables(int(seed), index), None if states is None else states[begin:end]
            draw_tokens(*tables, self.num_symbols, seed, np.uint64(index), step, out[begin:end], own_states)

    def _own_tables(self, seed: int, index: int) -> tuple[AliasTable, AliasTable, AliasTable | None]:
        """The alias tables of the HMM of sequence `index`."""
        return self.hmm_at(seed, index)._alias_tables

    def oracle_next_token_probs(
        self, tokens: Int[Any, "B T"], seed: int = 0, first: int = 0, *, step: int = 1
    ) -> Float[Any, "B T+1 E"]:
        """The distribution of token `t` given those before it and the HMM of the row, for `t = 0 .. T`.

        A predictor that knows the HMM is on average at least as good as one that sees the tokens alone. So the
        cross-entropy of these distributions is a lower bound for every predictor.

        Args:
            tokens (array of shape `(B, T)`): symbols. The result for a tensor is a tensor, else a NumPy array.
            seed (`int`, *optional*, defaults to 0): stream that the tokens were drawn from.
            first (`int`, *optional*, defaults to 0): index of row 0.
            step (`int`, *optional*, defaults to 1): difference between the indices of consecutive rows.
        """
        values = as_tokens(tokens, self.num_symbols)
        seed, first, step = checked_indices(seed, first, step)
        batch, length = values.shape
        distribution = torch.empty(batch, length + 1, self.num_symbols, dtype=torch.float64, device=values.device)
        for begin, end, index in group_runs(self.group, first, step, batch):
            parameters = self.hmm_at(seed, index).parameters(device=values.device)
            distribution[begin:end] = inference.predictions(parameters, values[begin:end])
        return distribution

    def _check_group(self) -> None:
        object.__setattr__(self, "group", integer("group", self.group, 1, 64))


def group_runs(group: int, first: int, step: int, count: int) -> Iterator[tuple[int, int, int]]:
    """Cut rows into runs of one group each: yields first row, row after the last, and index of the first row."""
    begin = 0
    while begin < count:
        index = (first + step * begin) % (1 << 64)
        # Indices left in this group. The last group before indices wrap may be shorter.
        left = min(group - index % group, (1 << 64) - index)
        end = min(begin - (-left // step), count)
        yield begin, end, index
        begin = end


def group_number(family: Family, seed: int, index: int) -> tuple[np.uint64, np.uint64]:
    """The number of the group of `index`, and the seed, both as uint64 for the kernels."""
    seed, index = integer("seed", seed, 0, 64), integer("first", index, 0, 64)
    return np.uint64(index // family.group), np.uint64(seed)


def least_and_most(value: int | tuple[int, int]) -> tuple[int, int]:
    """A number that families draw, given as one value or as a minimum and a maximum."""
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def uniform_integer(bounds: tuple[int, int], high: int, low: int) -> int:
    """An integer from a minimum to a maximum, uniform up to 2^-64, from two words of 32 bits."""
    minimum, maximum = bounds
    return minimum + ((high << 32 | low) * (maximum - minimum + 1) >> 64)


def check_hmm(name: str, value: Any) -> None:
    """Raise `InputError` if an argument of a family is not an HMM, such as a generalized one."""
    if not isinstance(value, HMM):
        raise InputError(
            f"{name} is a {type(value).__name__}; expected an HMM, of which a family draws sequences and states; "
            "ProcessMixture mixes processes of any kind"
        )


def permutation_of(stream: np.uint64, size: int, number: np.uint64, seed: np.uint64) -> Int[np.ndarray, "N"]:
    """The permutation of `0 .. size - 1` of group `number`."""
    permutation = np.empty(size, dtype=np.uint32)
    shuffle(permutation, shuffle_buffer(size), number, stream, seed)
    return permutation.astype(np.int64)
