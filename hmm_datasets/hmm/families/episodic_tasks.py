"""Tasks whose optimum is a closed form: bijections learned in context, copying, and associative recall.

A row holds episodes of equal length, one after the other, and is cut off after `L` tokens. Episodes are independent,
so that position 0 of each begins anew. At every position of an episode the next token is uniform over a set that the
episode so far determines, and whose size depends on the position alone. So the minimum loss at position `t` is the
logarithm of this size, without an estimate, and the distribution is known exactly.

Some positions are scored: those whose token an observer can predict better by what it has seen in the episode (see
`EpisodicTask.scored`). A model that has learned the task reaches the minimum loss there.

`kernels.episodic_tasks` has the random numbers. Laws take `O(B T E)` time and memory.
"""

import inspect
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Bool, Float, Int

from ...errors import InputError
from ..analysis.entropy import OptimalLoss
from ..arrays import as_given, token_array
from ..integers import integer
from ..kernels.episodic_tasks import draw_bijections, draw_copies, draw_recalls
from ..process import Process


class EpisodicTask(Process):
    """Base class of the tasks.

    A subclass gives the number of equally likely tokens at every position of an episode, which of them are scored,
    the draws, and which tokens are possible.
    """

    def settings(self) -> dict[str, Any]:
        """The arguments of the constructor, which have the names of attributes."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    @property
    def choices(self) -> Int[np.ndarray, "P"]:
        """The number of equally likely tokens at every position of an episode of `P` tokens."""
        raise NotImplementedError

    def _scored(self) -> Bool[np.ndarray, "P"]:
        raise NotImplementedError

    def _mark_possible(self, place: int, episode: Int[np.ndarray, "B t"], possible: Bool[np.ndarray, "B E"]) -> None:
        """Set in `possible`, which is false, what may come next at position `place` of episodes that have begun so."""
        raise NotImplementedError

    @property
    def episode_length(self) -> int:
        """`P`, the number of tokens of an episode."""
        return len(self.choices)

    def scored(self, length: int) -> Bool[np.ndarray, "L"]:
        """Which tokens of a row of `length` tokens can be predicted from the episode, in part or fully."""
        return np.resize(self._scored(), integer("length", length, 0, 31))

    def next_token_probs(self, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 E"]:
        """The exact distribution of token `t` given those before it, for `t = 0 .. T`; zeros after impossible tokens.

        Args:
            tokens (array of shape `(B, T)`): symbols, of rows that begin with an episode. The result for a tensor is
                a tensor, else a NumPy array.
        """
        rows = token_array(tokens, self.num_symbols)
        batch, length = rows.shape
        probs = np.zeros((batch, length + 1, self.num_symbols))
        alive = np.ones(batch, dtype=bool)
        for t in range(length + 1):
            place = t % self.episode_length
            possible = np.zeros((batch, self.num_symbols), dtype=bool)
            self._mark_possible(place, rows[:, t - place : t], possible)
            possible &= alive[:, None]
            probs[:, t] = possible / self.choices[place]
            if t < length:
                alive &= possible[np.arange(batch), rows[:, t]]
        return as_given(tokens, probs)

    def optimal_loss(self, length: int, *, num_sequences: int = 1024, seed: int = 0) -> "OptimalLoss":
        """The minimum expected loss at each of `length` positions: a closed form, whose standard error is 0.

        Nothing is sampled: `num_sequences` and `seed` change nothing.
        """
        length = integer("length", length, 0, 31)
        return OptimalLoss(np.resize(np.log(self.choices), length), np.zeros(length))

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value}" for name, value in self.settings().items())
        return f"{type(self).__name__}({arguments})"


class Bijection(EpisodicTask):
    """A random bijection of `V` symbols, learned from pairs `x, f(x)` (Agarwal, Dalal and Misra, "The Bayesian
    geometry of transformer attention", arXiv 2512.22471).

    An episode is `x_1, f(x_1), x_2, f(x_2), ..., x_K, f(x_K)`, with a new uniform bijection for every episode, and
    inputs drawn uniformly without repetition. Input `x` is symbol `x`, and output `y` symbol `V + y`. Before output
    `k` the outputs not seen yet are equally likely: `ln(V - k + 1)` nats. So are the inputs. The outputs are scored.

    Args:
        num_values (`int`): `V`; `E` is `2 V`.
        num_pairs (`int`, *optional*): `K`, the pairs of an episode; by default `V`, after which all is known.

    ```python
    >>> task = Bijection(20)
    >>> bool((task.optimal_loss(4).nats == np.log([20, 20, 19, 19])).all())
    True

    ```
    """

    stored_name: ClassVar[str] = "bijection"

    def __init__(self, num_values: int, num_pairs: int | None = None):
        self.num_values = integer("num_values", num_values, 1, 31)
        self.num_pairs = self.num_values if num_pairs is None else integer("num_pairs", num_pairs, 1, 31)
        if self.num_pairs > self.num_values:
            raise InputError(f"num_pairs is {num_pairs}; expected at most num_values, {num_values}")

    @property
    def num_symbols(self) -> int:
        """`E`, inputs and outputs."""
        return 2 * self.num_values

    def describe(self) -> str:
        return f"random bijections of {self.num_values:,} symbols, {self.num_pairs:,} pairs at a time"

    @property
    def choices(self) -> Int[np.ndarray, "P"]:
        return np.repeat(self.num_values - np.arange(self.num_pairs), 2)

    def _scored(self) -> Bool[np.ndarray, "P"]:
        return np.tile([False, True], self.num_pairs)

    def _draw(self, seed: np.uint64, first: np.uint64, step: np.uint64, out: np.ndarray) -> None:
        draw_bijections(self.num_values, self.num_pairs, seed, first, step, out)

    def _mark_possible(self, place: int, episode: Int[np.ndarray, "B t"], possible: Bool[np.ndarray, "B E"]) -> None:
        begin = place % 2 * self.num_values
        possible[:, begin : begin + self.num_values] = True
        np.put_along_axis(possible, episode[:, place % 2 :: 2], False, axis=1)


class Copying(EpisodicTask):
    """A random string, a separator, and the string once more (the task of Jelassi et al., "Repeat after me:
    transformers are better than state space models at copying", arXiv 2402.01032, with strings of one length).

    An episode has `n` symbols, uniform and independent; the separator, which is symbol `V`; and the `n` symbols again.
    The minimum loss is `ln V` nats for each of the first, and 0 for the separator and the copy. The copy is scored.

    Args:
        num_letters (`int`): `V`; `E` is `V + 1`.
        string_length (`int`): `n`.

    ```python
    >>> Copying(4, 3).sample(1, 9, seed=1).tolist()
    [[3, 3, 0, 4, 3, 3, 0, 0, 2]]

    ```
    """

    stored_name: ClassVar[str] = "copying"

    def __init__(self, num_letters: int, string_length: int):
        self.num_letters = integer("num_letters", num_letters, 1, 31)
        self.string_length = integer("string_length", string_length, 1, 31)

    @property
    def num_symbols(self) -> int:
        """`E`, letters and the separator."""
        return self.num_letters + 1

    def describe(self) -> str:
        return f"copies of random strings of {self.string_length:,} of {self.num_letters:,} letters"

    @property
    def choices(self) -> Int[np.ndarray, "P"]:
        return np.array([self.num_letters] * self.string_length + [1] * (self.string_length + 1))

    def _scored(self) -> Bool[np.ndarray, "P"]:
        return np.arange(self.episode_length) > self.string_length

    def _draw(self, seed: np.uint64, first: np.uint64, step: np.uint64, out: np.ndarray) -> None:
        draw_copies(self.num_letters, self.string_length, seed, first, step, out)

    def _mark_possible(self, place: int, episode: Int[np.ndarray, "B t"], possible: Bool[np.ndarray, "B E"]) -> None:
        if place < self.string_length:
            possible[:, : self.num_letters] = True
        elif place == self.string_length:
            possible[:, self.num_letters] = True
        else:
            np.put_along_axis(possible, episode[:, place - self.string_length - 1, None], True, axis=1)


class AssociativeRecall(EpisodicTask):
    """Pairs of a key and a value, and then queries: keys again, each followed by its value (multi-query associative
    recall, MQAR; Arora et al., "Zoology: measuring and improving recall in efficient language models", arXiv
    2312.04927).

    An episode is `k_1 v_1 ... k_N v_N q_1 v(q_1) ... q_Q v(q_Q)`. The keys are drawn uniformly without repetition from
    `K`, values uniformly and independently from `M`, and queries uniformly without repetition from the keys of the
    episode. Key `k` is symbol `k`, and value `v` symbol `K + v`. In nats, the minimum loss is `ln(K - i + 1)` for key
    `i`, `ln M` for its value, `ln(N - j + 1)` for query `j`, and 0 for what is recalled. What is recalled is scored.

    The paper spreads queries over the sequence with distances from a power law, fills the rest with noise, and gives
    the value as a label only. Here queries follow at once, and their values are tokens, so that every token has a
    distribution.

    Args:
        num_keys (`int`): `K`; `E` is `K + M`.
        num_values (`int`): `M`.
        num_pairs (`int`): `N`, at most `K`.
        num_queries (`int`, *optional*): `Q`, at most `N`, and `N` by default.

    ```python
    >>> task = AssociativeRecall(64, 64, num_pairs=2)
    >>> task.choices.tolist(), task.scored(8).nonzero()[0].tolist()
    ([64, 64, 63, 64, 2, 1, 1, 1], [5, 7])

    ```
    """

    stored_name: ClassVar[str] = "associative_recall"

    def __init__(self, num_keys: int, num_values: int, num_pairs: int, num_queries: int | None = None):
        self.num_keys = integer("num_keys", num_keys, 1, 31)
        self.num_values = integer("num_values", num_values, 1, 31)
        self.num_pairs = integer("num_pairs", num_pairs, 1, 31)
        self.num_queries = self.num_pairs if num_queries is None else integer("num_queries", num_queries, 0, 31)
        if not self.num_queries <= self.num_pairs <= self.num_keys:
            raise InputError(
                f"num_queries is {self.num_queries}, num_pairs {num_pairs}, num_keys {num_keys}; expected no more "
                "queries than pairs, and no more pairs than keys"
            )

    @property
    def num_symbols(self) -> int:
        """`E`, keys and values."""
        return self.num_keys + self.num_values

    def describe(self) -> str:
        return (
            f"associative recall: {self.num_pairs:,} pairs of {self.num_keys:,} keys and {self.num_values:,} values, "
            f"then {self.num_queries:,} queries"
        )

    @property
    def choices(self) -> Int[np.ndarray, "P"]:
        pairs = [(self.num_keys - i, self.num_values) for i in range(self.num_pairs)]
        return np.array(pairs + [(self.num_pairs - j, 1) for j in range(self.num_queries)]).reshape(-1)

    def _scored(self) -> Bool[np.ndarray, "P"]:
        places = np.arange(self.episode_length)
        return (places >= 2 * self.num_pairs) & (places % 2 == 1)

    def _draw(self, seed: np.uint64, first: np.uint64, step: np.uint64, out: np.ndarray) -> None:
        sizes = (self.num_keys, self.num_values, self.num_pairs, self.num_queries)
        draw_recalls(*sizes, seed, first, step, out)

    def _mark_possible(self, place: int, episode: Int[np.ndarray, "B t"], possible: Bool[np.ndarray, "B E"]) -> None:
        keys = episode[:, : 2 * self.num_pairs : 2]
        if place < 2 * self.num_pairs:
            begin, size = ((0, self.num_keys), (self.num_keys, self.num_values))[place % 2]
            possible[:, begin : begin + size] = True
            if place % 2 == 0:
                np.put_along_axis(possible, keys, False, axis=1)
        elif place % 2 == 0:
            np.put_along_axis(possible, keys, True, axis=1)
            np.put_along_axis(possible, episode[:, 2 * self.num_pairs :: 2], False, axis=1)
        else:
            # Impossible rows may lack the key; their distribution is zeros anyway.
            which = (keys == episode[:, -1:]).argmax(axis=1)
            values = episode[np.arange(len(episode)), 2 * which + 1]
            possible[np.arange(len(episode)), values] = True
