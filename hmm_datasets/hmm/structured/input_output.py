"""HMMs driven by inputs (Bengio and Frasconi, "An input output HMM architecture", NIPS 7, 1995).

At every step an input `u` is given. The state `i` emits the output `x` and moves to `j` with probability
`edges[u, x, i, j]`, or, if `transition` and `emission` are given, `emission[u, i, x] transition[u, i, j]`. Given the
inputs, the filter is that of an HMM whose symbols are pairs of an input and an output: time is `O(B T H^2)`, with one
table per pair, `U E H^2` numbers.

As a process, the model draws its inputs independently from a stated distribution, and its rows are inputs and outputs
in turn: `u_0, x_0, u_1, x_1, ...`. Token `u < U` is an input, token `U + x` an output. What it predicts is what an HMM
over `(1 + U) H` states predicts, which knows of each step the state, and then the input that has come.
"""

from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from jaxtyping import Float, Int, UInt

from ...errors import InputError
from ..analysis.stationary import cesaro_limit
from ..arrays import as_given, distribution, operators, token_array, token_array_with_gaps
from ..kernels.structured import INPUTS, draw_driven, draw_independent
from ..model import HMM
from ..process import Process, Rows
from ..sampling import AliasTable, checked_draw, derived_seed, fill_in_parallel, smallest_unsigned

if TYPE_CHECKING:
    from ..analysis.entropy import EntropyRate


class InputOutputHMM(Process):
    """An HMM over `H` states and `E` outputs whose tables depend on one of `U` inputs at every step.

    Args:
        transition (`np.ndarray` of shape `(U, H, H)`, *optional*): `P(next state j | state i, input u)`.
        emission (`np.ndarray` of shape `(U, H, E)`, *optional*): `P(output x | state i, input u)`.
        edges (`np.ndarray` of shape `(U, E, H, H)`, *optional*): `P(output x, next state j | state i, input u)`
            instead of `transition` and `emission`.
        start (`np.ndarray` of shape `(H,)`, *optional*): distribution of the first state; by default the stationary
            one under the distribution of the inputs.
        inputs (`np.ndarray` of shape `(U,)`, *optional*): distribution of the inputs of the process; by default
            uniform.

    Raises:
        `InputError`: a table is not a distribution, or shapes disagree; the message names the input and the row.

    ```python
    >>> switch = InputOutputHMM(
    ...     transition=[np.eye(2), [[0, 1], [1, 0]]], emission=[np.eye(2)] * 2, start=[1, 0]
    ... )  # input 1 changes the state, which is shown before it changes
    >>> switch.next_token_probs_given(inputs=[[0, 1, 0]], tokens=[[0, 0]])[0].tolist()
    [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]

    ```
    """

    stored_name: ClassVar[str] = "input_output"
    is_stationary = True

    def __init__(self, *, transition=None, emission=None, edges=None, start=None, inputs=None):
        hmms = _hmms_of_inputs(transition, emission, edges, start)
        if len({(hmm.num_states, hmm.num_symbols) for hmm in hmms}) > 1:
            raise InputError("the tables of the inputs have different shapes; expected the same H and E for each")
        self.edges = np.stack([operators(hmm) for hmm in hmms])
        uniform = np.full(len(hmms), 1 / len(hmms))
        self.inputs = uniform if inputs is None else distribution("inputs", inputs, 1)
        if len(self.inputs) != len(hmms):
            raise InputError(f"inputs has {len(self.inputs)} entries; expected {len(hmms)}, one per input")
        moves = np.einsum("u,uxij->ij", self.inputs, self.edges)
        mean = cesaro_limit(np.full(len(moves), 1 / len(moves)), moves)
        self.start = mean if start is None else hmms[0].start
        self._make_read_only()

    @property
    def num_inputs(self) -> int:
        """`U`."""
        return self.edges.shape[0]

    @property
    def num_outputs(self) -> int:
        """`E`."""
        return self.edges.shape[1]

    @property
    def num_states(self) -> int:
        """`H`."""
        return self.edges.shape[2]

    @property
    def num_symbols(self) -> int:
        """`U + E`: the tokens of the process are inputs, then outputs."""
        return self.num_inputs + self.num_outputs

    max_states = num_states

    @property
    def belief_width(self) -> int:
        """`H + U`: the state, and the input that has come and not had its output."""
        return self.num_states + self.num_inputs

    def belief_parts(self) -> dict[str, slice]:
        """`state` (H) is the filtering distribution, `input` (U) that of the input before an output, else zeros."""
        return {"state": slice(0, self.num_states), "input": slice(self.num_states, self.belief_width)}

    def arrays(self) -> dict[str, np.ndarray]:
        """`edges`, `start` and `inputs`."""
        return {"edges": self.edges, "start": self.start, "inputs": self.inputs}

    def describe(self) -> str:
        """What the process is, in a few words."""
        return (
            f"an input-output HMM of {self.num_states} states, {self.num_inputs} inputs and {self.num_outputs} outputs"
        )

    @cached_property
    def emission(self) -> Float[np.ndarray, "U H E"]:
        """`P(output x | state i, input u)`."""
        return np.ascontiguousarray(self.edges.sum(axis=3).transpose(0, 2, 1))

    @cached_property
    def _edges_with_missing(self) -> Float[np.ndarray, "U_plus_1 E_plus_1 H H"]:
        """`edges`, with a mean over inputs and a sum over outputs for those that were not observed."""
        edges = np.concatenate([self.edges, np.tensordot(self.inputs, self.edges, 1)[None]])
        return np.concatenate([edges, edges.sum(axis=1, keepdims=True)], axis=1)

    def sample_given(
        self, inputs: Int[np.ndarray, "N L"], seed: int = 0, first: int = 0, *, step: int = 1, num_threads=None
    ) -> UInt[np.ndarray, "N L"]:
        """Draw outputs given inputs: row `r` is sequence `first + step r` of the stream `seed`.

        It depends on `(self, seed, index)` and its inputs alone. Draws compare integers, so they are the same on
        every machine.
        """
        input_values = token_array(inputs, self.num_inputs)
        seed, first, step, out = checked_draw(self.num_outputs, *input_values.shape, seed, first, step)

        def fill(origin: int, rows: slice) -> None:
            self._draw_given(input_values[rows], np.uint64(seed), np.uint64(origin), np.uint64(step), out[rows])

        fill_in_parallel(fill, first, step, out, num_threads)
        return out

    def _draw_given(
        self, inputs: Int[np.ndarray, "N S"], seed: np.uint64, first: np.uint64, step: np.uint64, out: Rows
    ) -> None:
        sizes = np.uint64(self.num_outputs), np.uint64(self.num_states)
        draw_driven(*self._start_alias.flat, *self._pair_alias.flat, *sizes, inputs, seed, first, step, out)

    @cached_property
    def _input_alias(self) -> AliasTable:
        return AliasTable.from_probabilities(self.inputs[None])

    @cached_property
    def _start_alias(self) -> AliasTable:
        return AliasTable.from_probabilities(self.start[None])

    @cached_property
    def _pair_alias(self) -> AliasTable:
        # Row `input * H + state`, category `next_state * E + output`.
        rows = self.edges.transpose(0, 2, 3, 1).reshape(self.num_inputs * self.num_states, -1)
        return AliasTable.from_probabilities(rows)

    def _draw(self, seed: np.uint64, first: np.uint64, step: np.uint64, out: UInt[np.ndarray, "N L"]) -> None:
        inputs = np.empty((len(out), (out.shape[1] + 1) // 2), np.int64)
        outputs = np.empty((len(out), out.shape[1] // 2), smallest_unsigned(self.num_outputs))
        draw_independent(*self._input_alias.flat, INPUTS, seed, first, step, inputs)
        self._draw_given(inputs, np.uint64(derived_seed(int(seed), 0)), first, step, outputs)
        out[:, 0::2] = inputs
        out[:, 1::2] = outputs.astype(out.dtype) + out.dtype.type(self.num_inputs)

    @cached_property
    def _of_pairs(self) -> HMM:
        """The HMM of pairs of an input and an output, either of which may be hidden, all by the toss of fair dice.

        Symbol `u * (E + 1) + x` shows input `u` and output `x`; input `U` and output `E` are those that are hidden.
        """
        edges = self._edges_with_missing.reshape(-1, self.num_states, self.num_states)
        return HMM(start=self.start, edges=edges / (2 * (self.num_inputs + 1)))

    def _pairs(self, inputs: Int[np.ndarray, "B S"], tokens: Int[np.ndarray, "B T"]) -> Int[np.ndarray, "B T"]:
        return inputs[:, : tokens.shape[1]] * (self.num_outputs + 1) + tokens

    def beliefs_given(self, inputs: Int[Any, "B T"], tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 H"]:
        """`P(state before output t | inputs and outputs before t)`, for `t = 0 .. T`, zeros if they are impossible."""
        return as_given(tokens, self._of_pairs.beliefs(self._pairs(*self._checked(inputs, tokens))))

    def next_token_probs_given(self, inputs: Int[Any, "B S"], tokens: Int[Any, "B T"]) -> Float[Any, "B S E"]:
        """The distribution of output `t` given inputs `0 .. t` and the outputs before it, for each input.

        Args:
            inputs (array of shape `(B, S)`): inputs; `S` is `T`, or `T + 1` with that of the output to come.
            tokens (array of shape `(B, T)`): outputs, in `0 .. E - 1`. The result for a tensor is a tensor.
        """
        input_values, values = self._checked(inputs, tokens)
        beliefs = self._of_pairs.beliefs(self._pairs(input_values, values))[:, : input_values.shape[1]]
        probs = np.empty((*beliefs.shape[:2], self.num_outputs))
        for u, emission in enumerate([*self.emission, np.tensordot(self.inputs, self.emission, 1)]):
            chosen = input_values == u
            probs[chosen] = beliefs[chosen] @ emission
        return as_given(tokens, probs)

    def log_likelihood_given(self, inputs: Int[Any, "B T"], tokens: Int[Any, "B T"]) -> Float[Any, "B"]:
        """Log-likelihood (nats) of each sequence of outputs given its inputs; -inf if it is impossible."""
        pairs = self._pairs(*self._checked(inputs, tokens))
        of_dice = pairs.shape[1] * np.log(2 * (self.num_inputs + 1))
        return as_given(tokens, self._of_pairs.log_likelihood(pairs) + of_dice)

    def _checked(self, inputs: Any, tokens: Any) -> tuple[np.ndarray, np.ndarray]:
        input_values = token_array_with_gaps(inputs, self.num_inputs)
        values = token_array_with_gaps(tokens, self.num_outputs)
        if len(input_values) != len(values) or input_values.shape[1] - values.shape[1] not in (0, 1):
            raise InputError(
                f"inputs have shape {input_values.shape}, tokens {values.shape}; expected as many rows, and as many "
                "inputs as tokens or one more"
            )
        return input_values, values

    @cached_property
    def _interleaved(self) -> HMM:
        """The HMM of inputs and outputs in turn: `H` states before an input, then for each input `H` after it."""
        inputs, outputs, states, _ = self.edges.shape
        edges = np.zeros((inputs + outputs, (1 + inputs) * states, (1 + inputs) * states))
        for u in range(inputs):
            pending = slice((1 + u) * states, (2 + u) * states)
            edges[u, :states, pending] = self.inputs[u] * np.eye(states)
            edges[inputs:, pending, :states] = self.edges[u]
        return HMM(start=np.append(self.start, np.zeros(inputs * states)), edges=edges)

    def beliefs(self, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 W"]:
        """The belief about the state before each token, and the input that has come and not had its output."""
        joint = np.asarray(self._interleaved.beliefs(tokens))
        by_input = joint.reshape(*joint.shape[:2], 1 + self.num_inputs, self.num_states)
        return np.concatenate([by_input.sum(axis=2), by_input[:, :, 1:].sum(axis=3)], axis=2)

    def next_token_probs(self, tokens: Int[Any, "B T"]) -> Float[Any, "B T+1 E"]:
        """The distribution of each token: of an input at even positions, of an output given its input at odd ones."""
        return self._interleaved.next_token_probs(tokens)

    def log_likelihood(self, tokens: Int[Any, "B T"]) -> Float[Any, "B"]:
        """Log-likelihood (nats) of each sequence of inputs and outputs."""
        return self._interleaved.log_likelihood(tokens)

    def entropy_rate(
        self, *, num_sequences: int = 256, length: int = 2048, burn_in: int = 512, seed: int = 0
    ) -> "EntropyRate":
        """Nats per token, the mean of inputs and outputs; see [`Process.entropy_rate`]."""
        # Whole steps only, so that inputs and outputs have equal weight.
        return super().entropy_rate(
            num_sequences=num_sequences, length=length // 2 * 2, burn_in=burn_in // 2 * 2, seed=seed
        )


def _hmms_of_inputs(transition: Any, emission: Any, edges: Any, start: Any) -> list[HMM]:
    tables_by_name = {"transition": transition, "emission": emission, "edges": edges}
    tables_by_name = {name: tables for name, tables in tables_by_name.items() if tables is not None}
    counts = {len(tables) for tables in tables_by_name.values()}
    if tables_by_name.keys() not in ({"edges"}, {"transition", "emission"}) or len(counts) != 1 or counts == {0}:
        description = ", ".join(f"{name} of {len(tables)} inputs" for name, tables in tables_by_name.items()) or "none"
        raise InputError(
            "an input-output HMM takes either transition= and emission=, with one table per input, or edges= alone; "
            f"found {description}"
        )
    hmms = []
    for u in range(counts.pop()):
        try:
            hmms.append(HMM(start=start, **{name: tables[u] for name, tables in tables_by_name.items()}))
        except InputError as error:
            raise InputError(f"input {u}: {error}") from None
    return hmms
