"""Arrays in and out of an HMM: tables must be distributions, tokens must be symbols.

Each check raises [`~hmm_datasets.errors.InputError`] with the name and index of the wrong value. Tokens become
tensors, or NumPy arrays for compiled loops, and results have the kind of array that the tokens came in.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from ..array_input import (
    FILL_IN,
    LEAVE_OUT,
    Observed,
    Ragged,
    checked_entries,
    integer_array,
    integers,
    integers_with_gaps,
    numbers,
    observed,
)
from ..errors import InputError, check_distinct
from .analysis.stationary import cesaro_limit
from .kernels.threads import in_parallel

if TYPE_CHECKING:
    import torch

    from .model import HMM

MISSING = -1
"""What stands for a token that was not observed in checked tokens; kernels read it as symbol `E`, after the last."""

REFUSE = 1e-5
"""Distance of a sum of probabilities from one that is refused: above the rounding error of 500 of float32."""

RESCALE = 1e-9
"""Rows whose sum is nearer to one are kept bit for bit, so that saving and loading change nothing."""

ONE_COLUMN = (
    ", since tokens of shape (N, 1) are N sequences of one symbol here; of sequences that follow each other in one "
    "column, as hmmlearn has them, `rows_of_column(tokens, lengths)` of hmm_datasets.hmm.arrays makes rows"
)
_LEAVE_OUT_ROWS = f"{LEAVE_OUT}; of padding at the end of rows give lengths="
_RAGGED = "tokens are ragged; expected a (B, T) array, padded, with lengths="
_MOST_SYMBOLS = 1 << 63
_MAX_DENSE = 1 << 13  # states of a dense transition table, which takes 512 MB then
_OPERATIONS_PER_THREAD = 1 << 20
_LITTLE = 1 << 20  # tokens that may be padded whatever their lengths
_MOST_PADDING = 64


def check_dense(states: int) -> None:
    """Refuse to make a dense HMM of a process that does without its tables, if they would fill the memory."""
    if states > _MAX_DENSE:
        raise InputError(f"a dense HMM of {states:,} states; expected at most {_MAX_DENSE:,}; use the process itself")


def as_tables(
    start: Any, transition: Any, emission: Any, edges: Any, normalize: bool | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
    """Check the tables of an HMM, and add missing ones: the marginals of `edges`, and the stationary distribution as
    `start`."""
    named = [name for name, table in (("transition", transition), ("emission", emission)) if table is not None]
    if len(named) != (2 if edges is None else 0):
        description = " and ".join([*named, *(["edges"] if edges is not None else [])]) or "none of them"
        raise InputError(f"an HMM takes either transition= and emission=, or edges= alone; found {description}")
    if edges is None:
        transition = distribution("transition", transition, 2, normalize)
        emission = distribution("emission", emission, 2, normalize)
    else:
        edges = probabilities("edges", edges, 3)
        if edges.shape[1] != edges.shape[2]:
            raise InputError(f"edges has shape {edges.shape}; expected (E, H, H)")
        # One row per state, with all the ways to leave it.
        rows = distribution("edges", edges.transpose(1, 0, 2).reshape(edges.shape[1], -1), 2, normalize)
        edges = np.ascontiguousarray(rows.reshape(edges.shape[1], edges.shape[0], -1).transpose(1, 0, 2))
        transition = edges.sum(axis=0)
        emission = np.ascontiguousarray(edges.sum(axis=2).T)
    states = len(transition)
    if transition.shape != (states, states) or len(emission) != states:
        raise InputError(
            f"transition has shape {transition.shape} and emission {emission.shape}; "
            "expected (H, H) and (H, E) with the same H"
        )
    if start is None:
        start = cesaro_limit(np.full(states, 1 / states), transition)
    start = distribution("start", start, 1, normalize)
    if start.shape != (states,):
        raise InputError(f"start has shape {start.shape}; expected ({states},), one entry per state")
    return start, transition, emission, edges


class CheckedTokens(NamedTuple):
    """Checked tokens (B, T), `MISSING` where not observed, their lengths (B,), and whether any of them is missing."""

    tokens: "torch.Tensor"
    lengths: "torch.Tensor | None"
    has_missing: bool


def as_tokens(tokens: Any, num_symbols: int | None) -> "torch.Tensor":
    """Check an array of tokens of shape `(B, T)`, all of which were observed; return them as an int64 tensor.

    Without `num_symbols` every integer of 0 or more is a symbol.
    """
    return checked_tokens(_read(observed, tokens), num_symbols, None, lowest=0).tokens


def tokens_with_gaps(tokens: Any, num_symbols: int | None, lengths: Any = None) -> CheckedTokens:
    """As [`as_tokens`], of tokens that need not have been observed: masked, NaN, NA or None, or the integer -1.

    Tokens beyond the length of a row may be anything, missing too; they are returned as 0.
    """
    return checked_tokens(_read(integers_with_gaps, tokens), num_symbols, lengths)


def _read(reader: Callable[[str, Any], Observed], tokens: Any) -> Observed:
    try:
        return reader("tokens", tokens)
    except Ragged:
        raise InputError(_RAGGED) from None


def checked_tokens(readings: Observed, num_symbols: int | None, lengths: Any, lowest: int = MISSING) -> CheckedTokens:
    """The tokens of an array that was read; those that are missing or -1 are refused if `lowest` is 0."""
    import torch

    values, missing = readings
    if values.ndim != 2:
        raise InputError(f"tokens have shape {tuple(values.shape)}; expected (B, T)")
    device = values.device if torch.is_tensor(values) else None
    beyond = None
    if lengths is not None:
        lengths = _as_lengths(lengths, tuple(values.shape)).to(device)
        beyond = torch.arange(values.shape[1], device=device) >= lengths.unsqueeze(-1)
        missing = None if missing is None else missing & ~beyond.cpu().numpy()
    if lowest == 0:
        Observed(values, missing).refuse_missing("tokens", _LEAVE_OUT_ROWS)
    values = integers("tokens", Observed(values, missing))
    tokens = values.long() if torch.is_tensor(values) else torch.from_numpy(values.astype(np.int64))
    if beyond is not None:
        tokens = tokens.masked_fill(beyond, 0)
    lost = None if missing is None or not missing.any() else torch.from_numpy(missing).to(device)
    if lost is not None:
        tokens = tokens.masked_fill(lost, 0)
    if tokens.numel() == 0:
        return CheckedTokens(tokens, lengths, has_missing=False)
    # On a CPU by NumPy: the threads of torch would keep a core busy for milliseconds that the work to come could use.
    # Bytes as they were given are compared many at a time.
    if torch.is_tensor(values) or lengths is not None or lost is not None:
        compared = tokens.numpy() if tokens.device.type == "cpu" else tokens
    else:
        compared = values
    least, most = compared.min(), compared.max()
    # An unsigned integer of 64 bits may become -1 as a signed one.
    lowest = 0 if str(values.dtype).endswith("uint64") else lowest
    if least < lowest or most >= (_MOST_SYMBOLS if num_symbols is None else num_symbols):
        begins_at_1 = not ((tokens == 0) if beyond is None else (tokens == 0) & ~beyond).any()
        raise _no_symbol(tokens, values, num_symbols, lowest, begins_at_1=begins_at_1)
    if least < 0:
        lost = tokens < 0 if lost is None else lost | (tokens < 0)
    return CheckedTokens(tokens if lost is None else tokens.masked_fill(lost, MISSING), lengths, lost is not None)


def _no_symbol(
    tokens: "torch.Tensor", values: Any, num_symbols: int | None, lowest: int, *, begins_at_1: bool
) -> InputError:
    wrong = tokens < lowest if num_symbols is None else (tokens < lowest) | (tokens >= num_symbols)
    row, position = wrong.nonzero()[0].tolist()
    symbols = "0 or more" if num_symbols is None else f"0..{num_symbols - 1}"
    # As it was given, since an unsigned integer of 64 bits may not be one of 63.
    value, kind = values[row, position].item(), str(values.dtype).removeprefix("torch.")
    remedy = "" if lowest == 0 else ", and -1 stands for a missing token"
    if kind.startswith("uint") and value == np.iinfo(kind).max:
        remedy = f"; -1 becomes {value} in the type {kind}, so convert tokens with .astype(int) before setting it"
    elif value == num_symbols and begins_at_1:
        remedy += "; subtract 1 from labels that begin with 1"
    return InputError(f"tokens[{row}, {position}] is {value}; the symbols of this HMM are {symbols}{remedy}")


def _as_lengths(lengths: Any, shape: tuple[int, int]) -> "torch.Tensor":
    """The number of tokens in each of the rows, int64."""
    import torch

    expected = f"integers, one for each of the {shape[0]} rows{ONE_COLUMN if shape[1] == 1 else ''}"
    observed_lengths = observed("lengths", lengths)
    if tuple(observed_lengths.values.shape) != shape[:1]:
        raise InputError(f"lengths have shape {tuple(observed_lengths.values.shape)}; expected {expected}")
    values = integers("lengths", Observed(observed_lengths.refuse_missing("lengths", FILL_IN)), expected)
    table = values.long() if torch.is_tensor(values) else torch.from_numpy(values.astype(np.int64))
    wrong = ((table < 0) | (table > shape[1])).nonzero()
    if len(wrong) > 0:
        row = int(wrong[0])
        raise InputError(f"lengths[{row}] is {int(values[row])}; expected 0..{shape[1]}")
    return table


def token_table(tokens: Any) -> Any:
    """Tokens of shape `(N, T)` as an array or tensor of any integer type, none masked; no token is looked at.

    For what reads them part by part, and checks each with [`as_tokens`].
    """
    symbols = integers("tokens", Observed(observed("tokens", tokens).refuse_missing("tokens", _LEAVE_OUT_ROWS)))
    if symbols.ndim != 2:
        raise InputError(f"tokens have shape {tuple(symbols.shape)}; expected (N, T)")
    return symbols


def rows_of_column(tokens: Any, lengths: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """Sequences that follow each other in one column, as hmmlearn has them, as padded rows.

    Args:
        tokens (array of shape `(N, 1)` or `(N,)`): the sequences, one after the other.
        lengths (array of shape `(B,)`, *optional*): the number of tokens of each, which sum to `N`; by default there
            is one sequence.

    Returns:
        tuple of arrays: the tokens, of shape `(B, T)`, zero beyond the end of a row and -1 where they are missing; and
            `lengths`.

    Raises:
        `InputError`: the tokens are not one column, or the lengths do not sum to `N`.

    ```python
    >>> rows_of_column([[3], [1], [2]], [2, 1])
    (array([[3, 1],
           [2, 0]]), array([2, 1]))

    ```
    """
    column, lengths = checked_column(tokens, lengths)
    if are_uneven(lengths) and len(lengths) * int(lengths.max()) > _MOST_PADDING * len(column):
        raise InputError(
            f"rows of {lengths.max():,} tokens for each of {len(lengths):,} sequences would be over {_MOST_PADDING} "
            "times the column; give sequences of similar lengths at a time"
        )
    return rows_from(column, np.cumsum(lengths) - lengths, lengths), lengths


def checked_column(tokens: Any, lengths: Any = None) -> tuple[Int[np.ndarray, "N"], Int[np.ndarray, "B"]]:
    """The integers in one column, -1 where missing, and the lengths of its sequences; see [`rows_of_column`]."""
    values, missing = integers_with_gaps("tokens", tokens)
    column = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    if missing is not None and missing.any():
        column = np.where(missing, MISSING, column.astype(np.int64))
    if column.ndim not in (1, 2) or column.size != len(column):
        raise InputError(f"tokens have shape {column.shape}; expected (N, 1) or (N,), sequences one after the other")
    lengths = integer_array("lengths", [len(column)] if lengths is None else lengths).astype(np.int64)
    if lengths.ndim != 1 or (lengths < 0).any() or lengths.sum() != len(column):
        raise InputError(f"lengths sum to {lengths.sum()}; expected {len(column)}, the number of tokens")
    return column.ravel(), lengths


def is_column(tokens: Any, lengths: Any) -> bool:
    """Whether tokens are one column of sequences with these lengths, and not rows of one token at most."""
    shape = np.shape(tokens)
    return len(shape) > 0 and shape[1:] in ((), (1,)) and int(np.sum(lengths)) == shape[0] != len(lengths)


def are_uneven(lengths: Int[np.ndarray, "B"]) -> bool:
    """Whether rows padded to the longest would be more than twice as large as the tokens, and not small."""
    return len(lengths) * int(lengths.max(initial=0)) > max(2 * int(lengths.sum()), _LITTLE)


def rows_from(
    column: Int[np.ndarray, "N"], starts: Int[np.ndarray, "B"], lengths: Int[np.ndarray, "B"], width: int | None = None
) -> Int[np.ndarray, "B T"]:
    """Sequences of a column as rows, 0 beyond their ends, of the longest length or `width`."""
    rows = np.zeros((len(lengths), lengths.max(initial=0) if width is None else width), column.dtype)
    for row, start, length in zip(rows, starts, lengths, strict=True):
        row[:length] = column[start : start + length]
    return rows


def in_similar_lengths(lengths: Int[np.ndarray, "B"], entries: int, width: int = 1) -> Iterator[Int[np.ndarray, "R"]]:
    """Numbers of sequences in groups, of which padding is less than half; each has `entries` at most, or one row.

    A row counts as `width` entries at least.
    """
    scale = np.frexp(lengths)[1] if are_uneven(lengths) else np.zeros(len(lengths))
    for value in np.unique(scale):
        group = np.flatnonzero(scale == value)
        size = max(1, entries // max(width, int(lengths[group].max())))
        yield from (group[first : first + size] for first in range(0, len(group), size))


def counts_in_rows(chosen: Bool[np.ndarray, "N"], lengths: Int[np.ndarray, "B"]) -> Int[np.ndarray, "B"]:
    """How many of some tokens of a column are in each of its sequences."""
    rows = np.searchsorted(np.cumsum(lengths), np.flatnonzero(chosen), "right")
    return np.bincount(rows, minlength=len(lengths))


def place_in_rows(index: int, lengths: Int[np.ndarray, "B"]) -> str:
    """The sequence that a token of a column is in, and its position there, as a subscript."""
    row = int(np.searchsorted(np.cumsum(lengths), index, "right"))
    return f"[{row}, {index - int(lengths[:row].sum())}]"


def array(name: str, values: Any, ndim: int) -> np.ndarray:
    """`values` as a float64 array with `ndim` axes, none of them empty."""
    table = np.array(numbers(name, values))
    if table.ndim != ndim or 0 in table.shape:
        raise InputError(f"{name} has shape {table.shape}; expected {ndim} axes, none empty")
    return table


def probabilities(name: str, values: Any, ndim: int) -> np.ndarray:
    """`values` as an array of finite numbers, 0 or more."""
    table = array(name, values, ndim)
    return checked_entries(name, table, np.isfinite(table) & (table >= 0), "a probability")


def distribution(name: str, values: Any, ndim: int, normalize: bool | None = None) -> np.ndarray:
    """`values` as distributions over the last axis; rescaled if `normalize`, or if wrong by rounding alone.

    The error names `normalize` as a remedy unless it is None, for what has no such argument.
    """
    table = probabilities(name, values, ndim)
    with np.errstate(over="ignore"):
        totals = table.sum(axis=-1, keepdims=True)
    if normalize and np.isinf(totals).any():
        # Finite entries whose sum is not.
        table = np.where(np.isinf(totals), table / np.maximum(table.max(axis=-1, keepdims=True), 1.0), table)
        totals = table.sum(axis=-1, keepdims=True)
    off = np.abs(totals - 1)
    if (normalize and (totals == 0).any()) or (not normalize and (off > REFUSE).any()):
        row = int(np.argmax(totals == 0 if normalize else off > REFUSE))
        # The rows of edges are its slices by the state left.
        subscript = "" if ndim == 1 else f"[:, {row}]" if name == "edges" else f"[{row}]"
        remedy = "give it a positive entry"
        if not normalize and totals.ravel()[row] > 0:
            remedy = "divide it by its sum" if normalize is None else "pass normalize=True to rescale rows"
        raise InputError(f"{name}{subscript} sums to {totals.ravel()[row]:.6g}, not 1; {remedy}")
    return np.where(off > RESCALE, table / totals, table)


def normalized(table: Float[np.ndarray, "... N"]) -> Float[np.ndarray, "... N"]:
    """The table with rows, along its last axis, divided by their sums; rows of zeros stay what they are."""
    totals = table.sum(axis=-1, keepdims=True)
    return table / np.where(totals > 0, totals, 1.0)


def checked_names(vocabulary: Any, num_symbols: int, note: str = "") -> tuple[str, ...] | None:
    """The names of symbols, one each, or None; the error of another number ends with `note`."""
    names = None if vocabulary is None else tuple(map(str, vocabulary))
    if names is not None and len(names) != num_symbols:
        raise InputError(f"vocabulary has {len(names)} names; expected {num_symbols}, one per symbol{note}")
    check_distinct("vocabulary", names or ())
    return names


def token_array(tokens: Int[Any, "B T"], num_symbols: int) -> Int[np.ndarray, "B T"]:
    """The checked tokens in memory; raises the errors of [`~hmm_datasets.hmm.arrays.as_tokens`]."""
    return as_tokens(tokens, num_symbols).cpu().numpy()


def token_array_with_gaps(tokens: Int[Any, "B T"], num_symbols: int) -> Int[np.ndarray, "B T"]:
    """The checked tokens in memory, with symbol `E` where they are missing."""
    values, _, has_missing = tokens_with_gaps(tokens, num_symbols)
    return (values.masked_fill(values < 0, num_symbols) if has_missing else values).cpu().numpy()


def as_given(tokens: Any, result: "np.ndarray | torch.Tensor") -> Any:
    """`result` as a tensor on the device of `tokens` if those are a tensor, else as a NumPy array."""
    import torch

    if isinstance(tokens, torch.Tensor):
        return torch.as_tensor(result, device=tokens.device)
    return result.cpu().numpy() if isinstance(result, torch.Tensor) else np.asarray(result)


def over_rows(work: Callable[[slice], None], rows: int, operations: int) -> None:
    """Call `work(rows)` for parts of `rows` sequences, side by side where all `operations` are worth the threads."""
    import torch

    threads = max(1, min(torch.get_num_threads(), rows, operations // _OPERATIONS_PER_THREAD))
    bounds = [rows * part // threads for part in range(threads + 1)]
    in_parallel(lambda part: work(slice(bounds[part], bounds[part + 1])), range(threads), threads)


def operators(hmm: "HMM") -> Float[np.ndarray, "E H H"]:
    """`P(emit x, go to j | in i)` at `[x, i, j]`, for both kinds of HMM."""
    return hmm.emission.T[:, :, None] * hmm.transition if hmm.edges is None else hmm.edges
