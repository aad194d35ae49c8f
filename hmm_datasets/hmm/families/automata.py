"""Random probabilistic finite automata, a new one for every group of sequences, as in RegBench.

Blocks of random numbers have the counters of `family`, with purposes 16, 17 and 18: sizes, symbols and edges. Choices
are exactly uniform, and tables are quotients of integers, so that they are the same on every machine.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float, Int

from ...errors import InputError
from ..integers import integer, integer_range
from ..kernels.draws import FAMILY_STREAM, MAX_SHUFFLED
from ..model import HMM
from ..sampling import random_words
from .family import Family, group_number, least_and_most, permutation_of, uniform_integer

AUTOMATON_SIZES, AUTOMATON_SYMBOLS, AUTOMATON_EDGES = (FAMILY_STREAM | np.uint64(x << 8) for x in (16, 17, 18))

Range = int | tuple[int, int]


@dataclass(frozen=True)
class RandomAutomata(Family):
    """Random probabilistic finite automata (Akyürek, Wang, Kim and Andreas, "In-context language learning:
    architectures and algorithms", arXiv 2401.12973, section 3, the benchmark RegBench).

    An automaton has a number of states, drawn from `num_states`, and an alphabet, a uniform random subset of the
    letters whose size is drawn from `alphabet`. Each state has a number of edges, drawn from `edges`, to different
    other states and with different letters of the alphabet, and takes each with the same probability. The first state
    is state 0. With `stop`, a sequence has several strings: instead of any letter but the first of a string, the
    separator `E - 1` comes with this probability, and the next string begins in state 0. The HMM then has one state
    more, state 0 at the beginning of a string, which is its first.

    The paper has 4 to 12 states, 4 to 18 of 18 letters and up to 4 edges, of which its program draws 1 to 3, since the
    bound of 4 is exclusive there. It also minimizes the automaton, which
    merges states and changes no distribution, and gives strings a uniform length of 1 to 50. Here lengths are
    geometric, so that the automaton with its separator is an HMM.

    The Bayes-optimal distribution given the tokens alone is a sum over all automata, and is not computed.
    `oracle_next_token_probs`, which knows the automaton, is exact.

    Args:
        num_states (`int` or pair of `int`): number of states, or its minimum and maximum.
        num_letters (`int`): number of symbols that alphabets are drawn from; `E`, or `E - 1` with `stop`.
        edges (`int` or pair of `int`, *optional*, defaults to `(1, 3)`): edges per state.
        alphabet (`int` or pair of `int`, *optional*): size of the alphabet; by default `num_letters`.
        stop (`float`, *optional*): probability of the separator instead of a letter; by default there is one string.
        group (`int`, *optional*, defaults to 1): number of consecutive sequences that share an automaton.

    ```python
    >>> family = RandomAutomata((4, 12), 18, alphabet=(4, 18), stop=0.04)
    >>> family.num_symbols, family.hmm_at(seed=0, index=3).is_unifilar()
    (19, True)

    ```
    """

    stored_name: ClassVar[str] = "RandomAutomata"

    num_states: Range
    num_letters: int
    edges: Range = (1, 3)
    alphabet: Range | None = None
    stop: float | None = None
    group: int = 1

    def __post_init__(self):
        self._check_group()
        object.__setattr__(self, "num_letters", integer("num_letters", self.num_letters, 1, 31))
        for name in ("num_states", "edges", *["alphabet"] * (self.alphabet is not None)):
            object.__setattr__(self, name, integer_range(name, getattr(self, name), 1, 31))
        if not self.num_letters < MAX_SHUFFLED:
            raise InputError(f"num_letters is {self.num_letters}; expected 1 .. {MAX_SHUFFLED - 1}")
        for name, value, largest in (
            ("num_states", least_and_most(self.num_states), 1 << 12),
            ("alphabet", self._alphabet_sizes, self.num_letters),
            ("edges", least_and_most(self.edges), 1 << 12),
        ):
            if not 1 <= value[0] <= value[1] <= largest:
                raise InputError(f"{name} is {getattr(self, name)}; expected numbers in 1 .. {largest}, in order")
        most = min(least_and_most(self.num_states)[0] - 1, self._alphabet_sizes[0])
        if least_and_most(self.edges)[1] > most:
            raise InputError(
                f"edges is {self.edges}; expected at most {most}, since edges of a state have different letters and "
                "lead to different other states"
            )
        if self.stop is not None and not 0 < self.stop <= 1:
            raise InputError(f"stop is {self.stop}; expected a probability above 0, or None for one string")

    @property
    def _alphabet_sizes(self) -> tuple[int, int]:
        return least_and_most(self.num_letters if self.alphabet is None else self.alphabet)

    @property
    def num_symbols(self) -> int:
        """`E`, the letters, and the separator if there is one."""
        return self.num_letters + (self.stop is not None)

    @property
    def max_states(self) -> int:
        """Maximum number of states of the HMM of a sequence."""
        return least_and_most(self.num_states)[1] + (self.stop is not None)

    @property
    def has_exact_distribution(self) -> bool:
        """False: the automaton is not given, and a sum over all automata is not computed."""
        return False

    def next_token_probs(self, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 E"]:
        """Raises `InputError`: use [`~Family.oracle_next_token_probs`], a lower bound on every predictor's loss."""
        raise InputError(
            "random automata have no next-token distribution in closed form; oracle_next_token_probs gives a lower "
            "bound on every predictor's loss"
        )

    def hmm_at(self, seed: int, index: int) -> HMM:
        """The automaton of sequence `index` of the stream `seed`, as an HMM that emits from its edges."""
        number, key = group_number(self, seed, index)
        states, letters = self._sizes(number, key)
        edges = np.zeros((self.num_symbols, states, states))
        for state in range(states):
            part = np.uint64((state + 1) << 16)
            words = random_words(AUTOMATON_SIZES | part, np.array([number]), key)[0].tolist()
            count = uniform_integer(least_and_most(self.edges), *words[:2])
            symbols = letters[permutation_of(AUTOMATON_SYMBOLS | part, len(letters), number, key)[:count]]
            others = permutation_of(AUTOMATON_EDGES | part, states - 1, number, key)[:count]
            edges[symbols, state, others + (others >= state)] = 1 / count
        return HMM(start=np.eye(states + (self.stop is not None))[0], edges=self._with_separator(edges))

    def _sizes(self, number: np.uint64, key: np.uint64) -> tuple[int, Int[np.ndarray, "M"]]:
        words = random_words(AUTOMATON_SIZES, np.array([number]), key)[0].tolist()
        size = uniform_integer(self._alphabet_sizes, *words[2:])
        letters = np.sort(permutation_of(AUTOMATON_SYMBOLS, self.num_letters, number, key)[:size])
        return uniform_integer(least_and_most(self.num_states), *words[:2]), letters

    def _with_separator(self, edges: Float[np.ndarray, "E H H"]) -> Float[np.ndarray, "E K K"]:
        if self.stop is None:
            return edges
        symbols, states, _ = edges.shape
        result = np.zeros((symbols, states + 1, states + 1))
        result[:, 0, 1:] = edges[:, 0]
        result[:, 1:, 1:] = edges * (1 - self.stop)
        result[-1, 1:, 0] = self.stop
        return result
