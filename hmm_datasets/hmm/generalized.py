"""The generalized HMM: a process whose probabilities are products of matrices that may have negative entries.

The probability of a word `x1 .. xn` is `initial @ T[x1] @ .. @ T[xn] @ final`, for a matrix `T[x]` (H, H) per symbol,
a row vector `initial` (H,) and a column vector `final` (H,). An HMM is the case of non-negative `T` and `final` all
ones. Without signs, `H` dimensions can hold processes that no HMM of any finite size has: repeated measurements of a
quantum system, and what goes beyond them (Upper 1997, "Theory and algorithms for hidden Markov models and generalized
hidden Markov models"; Jaeger, Neural Computation 12, 2000, who calls them observable operator models; Fanizza,
Lumbreras and Winter, Commun. Math. Phys. 405, 2024; Riechers, Elliott and Shai, arXiv 2507.07432, section II).

What is known of the past is the predictive vector `initial @ T[x1] @ .. @ T[xn]`, divided so that its product with
`final` is one. It replaces the belief of an HMM, in the same recurrence: `O(E H + H^2)` per token.
"""

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int, UInt

from ..array_input import finite
from ..errors import InputError
from .analysis.mixed_states import MixedStates, grown_states
from .analysis.stationary import cesaro_limit, eliminate
from .arrays import REFUSE, RESCALE, array, as_given, checked_names, operators, token_array_with_gaps
from .model import HMM
from .process import Process, possible_belief

if TYPE_CHECKING:
    from .analysis.entropy import EntropyRate, EntropyRateBounds, OptimalLoss

_SWEEPS = 100


class GeneralizedHMM(Process):
    """A generalized hidden Markov model over `E` symbols, in `H` dimensions.

    Args:
        operators (`np.ndarray` of shape `(E, H, H)`):
            A matrix per symbol; their sum has `final` as a fixed point. Those of an edge-emitting HMM are its `edges`.
        initial (`np.ndarray` of shape `(H,)`, *optional*):
            Row vector with `initial @ final = 1`; by default the fixed point of the sum of `operators`, which makes
            the process stationary.
        final (`np.ndarray` of shape `(H,)`, *optional*):
            Column vector that the sum of `operators` leaves as it is; by default that fixed point.
        vocabulary (sequence of `str`, *optional*):
            A name for every symbol.

    Attributes:
        checked_length (`int`, *optional*): length of the longest words whose probabilities were all checked not to be
            negative (breadth first, up to 64 tokens or 4,096 predictive vectors). None where no word of any length has
            one: without negative entries, or with finitely many predictive vectors. A longer word with a negative
            probability raises an error where it is met.
        precision (`float`): probabilities of symbols up to this are rounding, and count as 0: the operators determine
            them no better, as after a change to a basis of large condition number. 0 without negative entries.

    Raises:
        `InputError`: shapes disagree, `final` is no fixed point, a word has a negative probability (the message gives
            a shortest such word), or the operators determine probabilities no better than to 1e-3.

    ```python
    >>> process = GeneralizedHMM([[[0.5, 0.2], [0.2, 0.1]], [[0.5, -0.2], [-0.2, 0.1]]], initial=[1, 0], final=[1, 0])
    >>> process.next_token_probs([[0, 0]])[0].round(3).tolist()
    [[0.5, 0.5], [0.58, 0.42], [0.583, 0.417]]

    ```
    """

    stored_name = "generalized"

    def __init__(self, operators: Any, initial: Any = None, final: Any = None, vocabulary: Any = None):
        self.operators = np.ascontiguousarray(finite("operators", array("operators", operators, 3)))
        if self.operators.shape[1] != self.operators.shape[2]:
            raise InputError(f"operators has shape {self.operators.shape}; expected (E, H, H)")
        total = self.operators.sum(axis=0)
        self.final = _fixed_vector("final", total) if final is None else self._vector("final", final)
        self._check_final(total)
        self.initial = self._stationary(total) if initial is None else self._vector("initial", initial)
        self._normalize_initial(is_given=initial is not None)
        self.vocabulary = checked_names(vocabulary, self.num_symbols)
        self._make_read_only()
        self.checked_length, self.precision = self._check_words()

    @classmethod
    def from_hmm(cls, hmm: HMM) -> "GeneralizedHMM":
        """The same process as `hmm`; a predictive vector is then a belief.

        ```python
        >>> from hmm_datasets import processes
        >>> GeneralizedHMM.from_hmm(processes.even())
        GeneralizedHMM(2 dimensions, 2 symbols)

        ```
        """
        if not isinstance(hmm, HMM):
            raise InputError(f"hmm is a {type(hmm).__name__}; expected an HMM")
        return cls(operators(hmm), hmm.start, np.ones(hmm.num_states), hmm.vocabulary)

    @property
    def num_symbols(self) -> int:
        """`E`."""
        return len(self.operators)

    @property
    def num_states(self) -> int:
        """`H`, the dimensions of a predictive vector. They are no states that the process is in."""
        return self.operators.shape[1]

    belief_width = num_states

    @cached_property
    def is_stationary(self) -> bool:
        """Whether `initial` is a fixed point of the sum of the operators, to `1e-9` of its largest entry."""
        total = self.operators.sum(axis=0)
        after = self.initial @ total
        if _is_chain(total, self.final) and (self.initial >= 0).all():
            # A chain may move away from it so slowly that one step changes nothing.
            after = cesaro_limit(self.initial, total)
        return bool(np.abs(after - self.initial).max() <= RESCALE * np.abs(self.initial).max())

    @cached_property
    def columns(self) -> Float[np.ndarray, "E H"]:
        """`T[x] @ final`: the probability of symbol `x` is the product of a predictive vector with row `x`."""
        # Sums in a fixed order, since a product of NumPy's depends on the machine.
        columns = np.zeros(self.operators.shape[:2])
        for state in range(self.num_states):
            columns += self.operators[:, :, state] * self.final[state]
        return columns

    @cached_property
    def scales(self) -> Float[np.ndarray, "H"]:
        """Scales of the coordinates: with `operators * scales / scales[:, None]` rows and columns have like sizes.

        They are ones where a predictive vector is a distribution of states.
        """
        if all((table >= 0).all() for table in self.arrays().values()) and (self.final == 1).all():
            return np.ones(self.num_states)
        return _balanced(np.abs(self.operators).sum(axis=0))

    def settings(self) -> dict[str, Any]:
        return {} if self.vocabulary is None else {"vocabulary": list(self.vocabulary)}

    def arrays(self) -> dict[str, np.ndarray]:
        return {"operators": self.operators, "initial": self.initial, "final": self.final}

    def describe(self) -> str:
        return f"a generalized HMM of {self.num_states:,} dimensions over {self.num_symbols:,} symbols"

    def __repr__(self) -> str:
        return f"GeneralizedHMM({self.num_states} dimensions, {self.num_symbols} symbols)"

    def _draw(self, seed: np.uint64, first: np.uint64, step: np.uint64, out: UInt[np.ndarray, "N L"]) -> None:
        # `kernels.linear` says why the draws are the same on every machine.
        from .kernels.linear import draw_words

        if draw_words(*self._tables, seed, first, step, out) >= 0:
            raise self._negative("a sampled sequence")

    def _after(self, prefix: Int[np.ndarray, "P"]) -> "GeneralizedHMM":
        return GeneralizedHMM(self.operators, possible_belief(self, prefix), self.final, self.vocabulary)

    def next_token_probs(self, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 E"]:
        """The Bayes-optimal distribution of token `t` given the tokens before it, for `t = 0 .. T`.

        Zeros after tokens that the process cannot emit.

        Args:
            tokens (array of shape `(B, T)`): symbols. The result for a tensor is a tensor, else a NumPy array.

        Raises:
            `InputError`: a token is not a symbol, or one has a negative probability.
        """
        return self._filtered(tokens, "distributions")

    def beliefs(self, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 H"]:
        """The predictive vector before token `t`, whose product with `final` is one, for `t = 0 .. T`.

        Zeros after tokens that the process cannot emit.

        Args:
            tokens (array of shape `(B, T)`): symbols. The result for a tensor is a tensor, else a NumPy array.
        """
        return self._filtered(tokens, "vectors")

    def log_likelihood(self, tokens: Int[Any, "B T"]) -> Float[Any, "B"]:
        """Log-likelihood (nats) of each sequence; -inf if the process cannot emit it.

        Args:
            tokens (array of shape `(B, T)`): symbols. The result for a tensor is a tensor, else a NumPy array.
        """
        return self._filtered(tokens, "logs")

    def entropy_rate(
        self, *, num_sequences: int = 256, length: int = 2048, burn_in: int = 512, seed: int = 0
    ) -> "EntropyRate":
        """The entropy rate in nats per token, and its standard error.

        It is exact, with an error of 0, for a process with at most 1,024 predictive vectors, and for one with a symbol
        after which it starts anew if the bounds of `entropy_rate_bounds` differ by less than 1e-9. Otherwise it is
        estimated as in [`Process.entropy_rate`].

        Raises:
            `InputError`: the process is not stationary.
        """
        from .analysis.predictive_vectors import entropy_rate

        return entropy_rate(self, num_sequences, length, burn_in, seed)

    def entropy_rate_bounds(self) -> "EntropyRateBounds":
        """Lower and upper bounds on the entropy rate in nats per token, of a process that starts anew after a symbol.

        Raises:
            `InputError`: the process is not stationary, or no operator is of rank one. The lower bound of an HMM is
                then missing, since there is no hidden state that could be given.

        ```python
        >>> from hmm_datasets import processes
        >>> lower, upper, *_ = processes.moon().entropy_rate_bounds()
        >>> round(lower, 6), round(upper, 6)
        (0.699046, 0.699046)

        ```
        """
        from .analysis.predictive_vectors import reset_bounds

        bounds = reset_bounds(self) if self.is_stationary else None
        if bounds is None:
            raise InputError(
                f"{self!r} is not stationary, or no operator has rank one, and no bounds are known; entropy_rate "
                "estimates the rate of a stationary process, and optimal_loss is an upper bound"
            )
        return bounds

    def optimal_loss(self, length: int, *, num_sequences: int = 1024, seed: int = 0) -> "OptimalLoss":
        """The expected cross-entropy of the Bayes-optimal predictor at each of `length` positions.

        Values are exact, with errors of 0, for as many positions as the number of predictive vectors stays small. From
        there on they are means over sampled sequences.

        Returns:
            [`~hmm_datasets.hmm.analysis.entropy.OptimalLoss`]: `nats` (L,) and `standard_error` (L,).
        """
        from .analysis.predictive_vectors import optimal_loss

        return optimal_loss(self, length, num_sequences, seed)

    def mixed_states(self, depth: int, *, max_states: int = 1_000_000) -> MixedStates:
        """The distinct predictive vectors after at most `depth` tokens, as beliefs.

        Raises:
            `InputError`: there are more than `max_states`.

        ```python
        >>> from hmm_datasets import processes
        >>> processes.bloch_walk().mixed_states(2)
        MixedStates(17 beliefs up to depth 2, more at greater depth)

        ```
        """
        from .analysis.predictive_vectors import PredictiveTree

        return grown_states(PredictiveTree(self, self.initial[None]), depth, max_states)

    @property
    def _tables(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, float]:
        return self.operators.reshape(-1), self.columns.reshape(-1), self.initial, self.final, self.precision

    @property
    def _tables_with_missing(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, float]:
        """Those of the process that shows each token or, as a further symbol, hides it, by the toss of a fair coin."""
        operators = np.concatenate([self.operators, self.operators.sum(axis=0, keepdims=True)]) / 2
        columns = np.concatenate([self.columns, self.final[None]]) / 2
        return operators.reshape(-1), columns.reshape(-1), self.initial, self.final, self.precision / 2

    def _filtered(self, tokens: Any, wanted: str) -> Any:
        from .kernels.linear import filter_words
        from .sampling import fill_in_parallel

        rows = token_array_with_gaps(tokens, self.num_symbols)
        has_missing = bool((rows == self.num_symbols).any())
        tables, symbols = self._tables_with_missing if has_missing else self._tables, self.num_symbols + has_missing
        batch, length = rows.shape
        shapes = {
            "vectors": (batch, length + 1, self.num_states),
            "distributions": (batch, length + 1, symbols),
            "logs": (batch,),
        }
        result = np.empty(shapes[wanted])

        def fill(origin: int, part: slice) -> None:
            outputs = (result[part] if name == wanted else None for name in shapes)
            row = filter_words(*tables, rows[part], *outputs)
            if row >= 0:
                raise self._negative(f"tokens[{origin + row}] or one of the rows after it")

        fill_in_parallel(fill, 0, 1, rows)
        if has_missing and wanted == "logs":
            result += length * np.log(2)
        elif has_missing and wanted == "distributions":
            result = 2 * result[:, :, :-1]
        return as_given(tokens, result)

    def _negative(self, where: str) -> InputError:
        return InputError(
            f"{where}: a token has a negative probability, so that the operators define no process; words of up to "
            f"{self.checked_length} tokens were checked when it was made"
        )

    def _vector(self, name: str, values: Any) -> Float[np.ndarray, "H"]:
        vector = np.ascontiguousarray(finite(name, array(name, values, 1)))
        if len(vector) != self.num_states:
            raise InputError(f"{name} has shape {vector.shape}; expected ({self.num_states},), as the operators have")
        return vector

    def _stationary(self, total: Float[np.ndarray, "H H"]) -> Float[np.ndarray, "H"]:
        start = np.full(len(total), 1 / len(total))
        shares, closed = eliminate(start, total) if _is_chain(total, self.final) else (start, ())
        try:
            # The vector has rounding where states are transient.
            return np.where(shares > 0, _fixed_vector("initial", total.T), 0.0)
        except InputError:
            # An SVD has too few digits to tell the fixed point of a chain from those of its almost closed parts.
            if len(closed) != 1:
                raise
            return cesaro_limit(start, total)

    def _check_final(self, total: Float[np.ndarray, "H H"]) -> None:
        change = np.abs(total @ self.final - self.final)
        if change.max() > REFUSE * np.abs(self.final).max():
            row = int(change.argmax())
            raise InputError(
                f"operators.sum(0) @ final is {(total @ self.final)[row]:.6g} in row {row}, where final is "
                f"{self.final[row]:.6g}; expected a fixed point, so that probabilities sum to one"
            )

    def _normalize_initial(self, is_given: bool) -> None:
        norm = float(self.initial @ self.final)
        if is_given and abs(norm - 1) > REFUSE:
            raise InputError(f"initial @ final is {norm:.6g}, not 1; divide initial by it")
        if not is_given and abs(norm) <= RESCALE * (np.abs(self.initial) @ np.abs(self.final)):
            raise InputError("operators.sum(0) has no stationary vector with initial @ final = 1; give initial=")
        if not is_given or abs(norm - 1) > RESCALE:
            self.initial = self.initial / norm

    def _check_words(self) -> tuple[int | None, float]:
        if all((table >= 0).all() for table in self.arrays().values()):
            return None, 0.0
        from .analysis.predictive_vectors import check_words

        return check_words(self)


def _balanced(table: Float[np.ndarray, "H H"]) -> Float[np.ndarray, "H"]:
    """Powers of two that balance rows and columns (Osborne, J. ACM 7, 1960)."""
    table, scales = table - np.diag(np.diag(table)), np.ones(len(table))
    for _ in range(_SWEEPS):
        before = scales.copy()
        for index in range(len(table)):
            rows, columns = table[index].sum(), table[:, index].sum()
            if rows > 0 and columns > 0:
                factor = 2.0 ** np.round(np.log2(rows / columns) / 2)
                table[index] /= factor
                table[:, index] *= factor
                scales[index] *= factor
        if (scales == before).all():
            break
    return scales


def _is_chain(total: Float[np.ndarray, "H H"], final: Float[np.ndarray, "H"]) -> bool:
    """Whether the sum of the operators is the transition table of a Markov chain."""
    return bool((total >= 0).all() and (final == 1).all())


def _fixed_vector(name: str, matrix: Float[np.ndarray, "H H"]) -> Float[np.ndarray, "H"]:
    """The vector `v` with `matrix @ v = v`, all ones where they are one; its largest entry is one."""
    ones = np.ones(len(matrix))
    if name == "final" and np.abs(matrix @ ones - ones).max() <= REFUSE:
        return ones
    _, values, right = np.linalg.svd(matrix - np.eye(len(matrix)))
    limit = REFUSE * max(1.0, values[0])
    if values[-1] <= limit and (len(values) == 1 or values[-2] > limit):
        vector = right[-1]
    else:
        # Singular values depend on the basis, eigenvalues do not.
        eigenvalues, vectors = np.linalg.eig(matrix)
        (near,) = np.nonzero(np.abs(eigenvalues - 1) <= REFUSE)
        if len(near) != 1:
            how_many = "more than one" if len(near) else "no"
            raise InputError(
                f"operators.sum(0) has {how_many} fixed point that could be {name}, to {REFUSE:g}; give {name}="
            )
        vector = vectors[:, near[0]].real
    return vector / vector[np.abs(vector).argmax()]
