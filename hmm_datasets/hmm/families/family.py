"""What all families of HMMs can do, and where their random numbers come from.

What varies from group to group (a permutation, a component, a table) comes from the same Philox4x32-10 generator as
the tokens, keyed by the seed, and never shares a block with them. The counter of a block is

    (group number, low 32 bits; high 32 bits; draw; FAMILY_STREAM | purpose << 8 | part << 16)

where the group number is `i // group`, `draw` counts blocks within one choice, `purpose` is one number for each kind
of choice, and `part` counts tries of rejection sampling, or rows. Tokens have stream 0, and are those of
sequence `i`.

Permutations are Fisher and Yates's, inside out (Durstenfeld 1964), each choice by 16 random bits, drawn again where
they would favour some (Lemire, ACM Trans. Model. Comput. Simul. 29, 2019): uniform, of at most `2^16` things. Tables
are those of `dirichlet`.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float, Int, UInt

from ...digests import write_digests
from ...errors import InputError
from ...files import write_json
from ..checks import as_tokens, integer
from ..format import FORMAT_VERSION
from ..model import HMM
from ..sampling.kernels import (
    FAMILY_STREAM,
    MOST_SHUFFLED,
    shuffle,
    shuffle_room,
)
from ..sampling.sequences import checked_draw, fill_in_parallel, philox

FAMILY_NAME = "family.json"

# Purpose 1 is EMISSIONS_STREAM, of the kernels.
SYMBOLS, CHAINS, MIXTURE, LENGTHS, NUM_STATES, SUBSET, ZIPF, HIDDEN = (
    FAMILY_STREAM | np.uint64(purpose << 8) for purpose in (0, 2, 3, 4, 5, 6, 7, 8)
)

MOST_ENUMERATED = 7
"""Things whose every permutation a distribution goes through: 5040 of them."""


class Family:
    """What families have in common; made by its subclasses alone, all of them frozen dataclasses.

    Attributes:
        num_symbols (`int`): `E`.
        group (`int`): consecutive sequences that share an HMM: `i` and `j` do where `i // group == j // group`.
    """

    stored_name: ClassVar[str]
    """What `family.json` calls the family: part of the format, and of the fingerprint."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def num_symbols(self) -> int:
        raise NotImplementedError

    @property
    def group(self) -> int:
        raise NotImplementedError

    @property
    def has_exact_distribution(self) -> bool:
        """Whether `next_token_probs` gives the Bayes-optimal distribution; otherwise it refuses, and says why."""
        raise NotImplementedError

    def parts(self) -> tuple[HMM, ...]:
        """The HMMs it is made of; none of random chains."""
        return ()

    def settings(self) -> dict[str, Any]:
        """Everything but the HMMs: numbers and names, as JSON holds them."""
        fields = [field.name for field in dataclasses.fields(self) if field.name not in ("hmm", "hmms")]
        return {name: getattr(self, name) for name in fields}

    def fingerprint(self) -> str:
        """SHA-256 of settings and HMMs (32 hexadecimal digits): equal families, equal streams."""
        content = [self.stored_name, self.settings(), [hmm.fingerprint() for hmm in self.parts()]]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]

    def save_pretrained(self, folder: str | os.PathLike) -> None:
        """Write a folder that [`~hmm_datasets.hmm.families.load_source`] reads.

        `family.json`, which makes it a family's, comes last but for its digest.
        """
        folder, parts = Path(folder), self.parts()
        for place, hmm in enumerate(parts):
            hmm.save_pretrained(folder / f"hmm-{place}")
        write_json(
            folder / FAMILY_NAME,
            {
                "family": self.stored_name,
                "format_version": FORMAT_VERSION,
                "settings": self.settings(),
                "num_hmms": len(parts),
                "fingerprint": self.fingerprint(),
            },
        )
        write_digests(folder, [FAMILY_NAME])

    def hmm_at(self, seed: int, index: int) -> HMM:
        """The HMM of sequence `index` of the stream `seed`."""
        raise NotImplementedError

    def sample(
        self,
        num_sequences: int,
        length: int,
        seed: int = 0,
        first: int = 0,
        *,
        step: int = 1,
        out: UInt[np.ndarray, "N L"] | None = None,
        num_threads: int | None = None,
    ) -> UInt[np.ndarray, "N L"]:
        """Draw sequences `first .. first + num_sequences - 1` of the stream named by `seed`, each from its own HMM.

        Args:
            num_sequences (`int`): `N`.
            length (`int`): `L`, tokens per sequence.
            seed (`int`, *optional*, defaults to 0): which stream, in `[0, 2**64)`.
            first (`int`, *optional*, defaults to 0): index of the first sequence, in `[0, 2**64)`; indices wrap there.
            step (`int`, *optional*, defaults to 1): from one index to the next.
            out (`np.ndarray` of shape `(N, L)`, *optional*): unsigned array to fill instead of a new one.
            num_threads (`int`, *optional*): defaults to all usable cores for large draws.

        Returns:
            `np.ndarray` of shape `(N, L)`: symbols, in the smallest unsigned type that holds `E - 1`.
        """
        seed, first, step, out = checked_draw(self.num_symbols, num_sequences, length, seed, first, step, out)
        fill_in_parallel(lambda origin, rows: self._fill(rows, seed, origin, step), first, step, out, num_threads)
        return out

    def _fill(self, rows: np.ndarray, seed: int, first: int, step: int) -> None:
        length = rows.shape[1]
        for begin, end, index in group_runs(self.group, first, step, len(rows)):
            out = rows[begin:end]
            self.hmm_at(seed, index).sample(end - begin, length, seed, index, step=step, out=out, num_threads=1)

    def next_token_probs(self, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 E"]:
        """The Bayes-optimal distribution of token `t` given those before it, the HMM unknown, for `t = 0 .. T`."""
        raise NotImplementedError

    def log_likelihood(self, tokens: Int[Any, "B T"]) -> Float[Any, "B"]:
        """Log-likelihood (nats) of each sequence, its HMM unknown; -inf of one that no HMM of the family can emit.

        Args:
            tokens (array of shape `(B, T)`): symbols; a tensor gives a tensor, anything else NumPy.

        Raises:
            `InputError`: the family has no exact next-token distribution.

        ```python
        >>> from hmm_datasets import RandomChains
        >>> RandomChains(2, alpha=1.0).log_likelihood([[0, 1]]).round(4)
        array([-1.3863])

        ```
        """
        import torch

        values, _ = as_tokens(tokens, self.num_symbols)
        distribution = self.next_token_probs(values)[:, :-1]
        # Position by position: what follows an impossible token has no distribution, and the first zero decides.
        found = distribution.gather(-1, values.long().unsqueeze(-1)).squeeze(-1)
        impossible = (found <= 0).any(-1)
        likelihood = torch.where(impossible, -torch.inf, found.clamp(min=1e-300).log().sum(-1))
        return likelihood if isinstance(tokens, torch.Tensor) else likelihood.numpy()

    def oracle_next_token_probs(
        self, tokens: Int[Any, "B T"], seed: int = 0, first: int = 0, *, step: int = 1
    ) -> Float[Any, "B T+1 E"]:
        """The distribution of token `t` given those before it and the HMM that drew the row, for `t = 0 .. T`.

        Who knows the HMM predicts no worse on average: the cross-entropy of these distributions is a lower bound on
        that of any predictor which sees the tokens alone.

        Args:
            tokens (array of shape `(B, T)`): symbols; a tensor gives a tensor, anything else NumPy.
            seed (`int`, *optional*, defaults to 0): the stream they were drawn from.
            first (`int`, *optional*, defaults to 0): index of row 0.
            step (`int`, *optional*, defaults to 1): from the index of one row to the next.
        """
        import torch

        from ..inference import forward_backward as inference

        values, _ = as_tokens(tokens, self.num_symbols)
        seed, first, step = (integer(*of, 64) for of in (("seed", seed, 0), ("first", first, 0), ("step", step, 1)))
        batch, length = values.shape
        distribution = torch.empty(batch, length + 1, self.num_symbols, dtype=torch.float64, device=values.device)
        for begin, end, index in group_runs(self.group, first, step, batch):
            parameters = self.hmm_at(seed, index).parameters(device=values.device)
            beliefs = inference.forward_filter(parameters, values[begin:end]).beliefs
            distribution[begin:end] = inference.next_token_probs(parameters, beliefs)
        return distribution if isinstance(tokens, torch.Tensor) else distribution.numpy()

    def _check_group(self) -> None:
        if self.group < 1:
            raise InputError(f"group is {self.group}; expected 1 or more sequences to an HMM")


def group_runs(group: int, first: int, step: int, count: int) -> Iterator[tuple[int, int, int]]:
    """Cut rows into runs of one group each: first row, row after the last, index of the first."""
    begin = 0
    while begin < count:
        index = (first + step * begin) % (1 << 64)
        # What is left of this group; the last one before indices wrap may be a short one.
        left = min(group - index % group, (1 << 64) - index)
        end = min(begin - (-left // step), count)
        yield begin, end, index
        begin = end


def group_number(family: Family, seed: int, index: int) -> tuple[np.uint64, np.uint64]:
    """The number of the group that `index` is in, and the seed, as the kernels take them."""
    seed, index = integer("seed", seed, 0, 64), integer("first", index, 0, 64)
    return np.uint64(index // family.group), np.uint64(seed)


def check_permutable(name: str, size: int) -> None:
    """Raise `InputError` where there are more things than a permutation here can be of."""
    if size > MOST_SHUFFLED:
        raise InputError(f"the HMM has {size:,} {name}; expected at most {MOST_SHUFFLED:,} to permute")


def permutation_of(stream: np.uint64, size: int, number: np.uint64, seed: np.uint64) -> Int[np.ndarray, "N"]:
    """The permutation of `0 .. size - 1` of group `number`."""
    permutation = np.empty(size, dtype=np.uint32)
    shuffle(permutation, shuffle_room(size), number, stream, seed)
    return permutation.astype(np.int64)


def first_words(stream: np.uint64, numbers: UInt[np.ndarray, "N"], seed: np.uint64) -> UInt[np.ndarray, "N 4"]:
    """The first block of each number (of a group, or of a sequence) for one purpose: four words of 32 bits."""
    mask, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    counter = np.zeros((len(numbers), 4), dtype=np.uint64)
    counter[:, 0], counter[:, 1], counter[:, 3] = numbers & mask, numbers >> shift, stream
    key = np.empty((len(numbers), 2), dtype=np.uint64)
    key[:] = seed & mask, seed >> shift
    return philox(counter, key)
