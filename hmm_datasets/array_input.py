"""The one gate for arrays of users: what was observed passes as a plain array, what is missing is named.

`numpy.asarray` reads a masked entry as if it had been observed, `bool` counts as an integer, and a float is cut off
where it becomes one. Here a masked array, a nullable column of pandas, an Arrow array or a list with `None` become an
array and the places that are missing. Integers of every type are integers, in object arrays too. Booleans and floats
are none, whatever their value, as for NumPy's indices and hmmlearn's symbols: a float may have been rounded, and a
boolean is a mask as often as a number. Only where entries may be missing, and some are, are whole floats beside them
integers: NaN makes floats of a column of integers.

An array of numbers of NumPy or torch passes as it is, without a pass over it.
"""

import operator
import sys
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .errors import InputError

if TYPE_CHECKING:
    import torch

FILL_IN = "give every entry a value"
LEAVE_OUT = "leave these rows out, or cut them off there"


class Ragged(InputError):
    """Rows of unequal length."""


class Observed(NamedTuple):
    """A plain array or a tensor, and where its entries are missing, of the same shape; None if nowhere."""

    values: Any
    missing: np.ndarray | None = None

    def refuse_missing(self, name: str, remedy: str) -> Any:
        """The values, of which none may be missing."""
        if self.missing is not None and self.missing.any():
            raise _is_missing(name, self.missing, remedy)
        return self.values


def observed(name: str, values: Any) -> Observed:
    """The entries of an array, a tensor, a table of another library, or nested lists.

    Args:
        name (`str`): what the array is called in errors.
        values: a NumPy array, masked or not; a torch tensor, which stays one; a pandas, Arrow or other object that
            NumPy can read; or nested lists of numbers and arrays.

    Raises:
        `InputError`: lists of unequal length, booleans beside numbers, or entries that are no numbers.
    """
    if _is_tensor(values):
        return _of_tensor(name, values)
    if isinstance(values, np.ma.MaskedArray):
        mask = np.ma.getmaskarray(values)
        if not mask.any():
            return observed(name, values.data)
        return Observed(observed(name, values.filled(0) if values.dtype.kind == "O" else values.data).values, mask)
    if isinstance(values, list | tuple):
        return _of_lists(name, values)
    return _of_array(name, values if isinstance(values, np.ndarray) else _as_array(name, values))


def _of_lists(name: str, rows: Any) -> Observed:
    """The entries of nested lists, one by one if some are no numbers or NumPy would round them."""
    kinds = _kinds_of_entries(rows)
    if any(kind is bool or not issubclass(kind, int | float | np.integer | np.floating) for kind in kinds):
        return _of_entries(name, rows)
    values = _as_array(name, rows)
    has_floats = any(issubclass(kind, float | np.floating) for kind in kinds)
    if values.dtype.kind == "f" and values.size > 0 and not has_floats:
        return _of_entries(name, rows)  # NumPy makes floats of integers above 2**63
    return _of_array(name, values)


def _of_array(name: str, values: np.ndarray) -> Observed:
    """The entries of a NumPy array without a mask."""
    if values.dtype.kind == "O":
        return _of_entries(name, values)
    if values.dtype.kind in "mM" and np.isnat(values).any():
        return Observed(values, np.isnat(values))
    return Observed(values)


def integers(name: str, observed_values: Observed, expected: str = "integers") -> Any:
    """The values, which must be integers of any type; entries that are missing may have any value.

    Raises:
        `InputError`: they are booleans, floats, or no numbers.
    """
    values = observed_values.values
    if _is_tensor(values):
        is_integer = not (values.is_floating_point() or values.is_complex() or str(values.dtype) == "torch.bool")
        if is_integer:
            return values
        kind, size = "b" if str(values.dtype) == "torch.bool" else "f", values.numel()
    else:
        kind, size = values.dtype.kind, values.size
        if kind in "iu":
            return values
    if size == 0:
        return values.long() if _is_tensor(values) else values.astype(np.int64)
    remedy = ""
    if kind == "b":
        remedy = "; give the symbols or numbers themselves, since a boolean may be a mask"
    elif kind == "f":
        array = values.detach().cpu().double().numpy() if _is_tensor(values) else values
        array = array if observed_values.missing is None else np.where(observed_values.missing, 0, array)
        remedy = f"; {_why_no_integers(name, array)}"
    raise InputError(f"{name} have type {str(values.dtype).removeprefix('torch.')}; expected {expected}{remedy}")


def integers_with_gaps(name: str, values: Any) -> Observed:
    """Integers of any type, and where they are missing; beside missing entries whole floats are integers too.

    Raises:
        `InputError`: they are booleans, floats none of which is missing, fractions, or no numbers.
    """
    plain, missing = observed(name, values)
    floats = plain.is_floating_point() if _is_tensor(plain) else plain.dtype.kind == "f"
    if floats:
        array = plain.detach().cpu().double().numpy() if _is_tensor(plain) else plain
        missing = np.isnan(array) if missing is None else missing | np.isnan(array)
        array = np.where(missing, 0, array)
        # From there on a float may have been rounded from another integer: 2**53 of float64, 2**24 of float32.
        limit = 2 / (sys.modules["torch"] if _is_tensor(plain) else np).finfo(plain.dtype).eps
        if missing.any() and (np.abs(array) < limit).all() and (array == np.floor(array)).all():
            whole = array.astype(np.int64)
            plain = plain.new_tensor(whole, dtype=sys.modules["torch"].int64) if _is_tensor(plain) else whole
    return Observed(integers(name, Observed(plain, missing)), missing)


def _why_no_integers(name: str, array: np.ndarray) -> str:
    lost, odd = np.isnan(array), np.argwhere(~np.isfinite(array) | (array != np.floor(array)))
    if lost.any():
        return str(_is_missing(name, lost, LEAVE_OUT))
    if len(odd) > 0:
        return f"{_entry(name, odd[0])} is {array[tuple(odd[0])]}"
    return "convert them with .astype(int)"


def integer_array(name: str, values: Any, remedy: str = LEAVE_OUT) -> np.ndarray:
    """An array of integers in memory, of any integer type, none missing.

    Raises:
        `InputError`: an entry is missing, or they are booleans, floats, or no numbers.
    """
    plain = integers(name, Observed(observed(name, values).refuse_missing(name, remedy)))
    return plain.detach().cpu().numpy() if _is_tensor(plain) else plain


def indices(name: str, values: Any) -> np.ndarray:
    """[`integer_array`] for the indices of a sequence, which raises `TypeError` as sequences do."""
    try:
        return integer_array(name, values)
    except InputError as error:
        raise TypeError(str(error)) from None


def numbers(name: str, values: Any, ragged: str | None = None) -> np.ndarray:
    """An array of float64, none missing, of integers, floats or booleans; it may be that which was given.

    `ragged` is the error of rows of unequal length.

    Raises:
        `InputError`: an entry is missing, or no real number.
    """
    try:
        plain = observed(name, values).refuse_missing(name, FILL_IN)
    except Ragged:
        message = f"{name} is not an array of numbers, since its rows have unequal lengths"
        raise InputError(ragged or message) from None
    if plain.is_complex() if _is_tensor(plain) else plain.size > 0 and plain.dtype.kind not in "biuf":
        kind = str(plain.dtype).removeprefix("torch.")
        raise InputError(f"{name} is not an array of numbers, but {kind}; expected real numbers")
    return plain.detach().cpu().double().numpy() if _is_tensor(plain) else plain.astype(np.float64, copy=False)


def finite(name: str, table: np.ndarray) -> np.ndarray:
    """The array, all of whose entries have to be finite numbers.

    Raises:
        `InputError`: one is infinite, or NaN.
    """
    return checked_entries(name, table, np.isfinite(table), "a finite number")


def checked_entries(name: str, table: np.ndarray, good: np.ndarray, expected: str) -> np.ndarray:
    """The array, all of whose entries have to be good.

    Raises:
        `InputError`: one is not.
    """
    bad = np.argwhere(~good)
    if len(bad) > 0:
        raise InputError(f"{_entry(name, bad[0])} is {table[tuple(bad[0])]}; expected {expected}")
    return table


def refuse_masked(name: str, values: Any) -> None:
    """Refuse masked entries of an array, or of arrays in a list, before another library drops the mask."""
    parts = values if isinstance(values, list | tuple) else [values]
    if any(isinstance(part, np.ma.MaskedArray) or type(part).__name__ == "MaskedTensor" for part in parts):
        observed(name, values).refuse_missing(name, FILL_IN)


def _of_tensor(name: str, tensor: "torch.Tensor") -> Observed:
    if type(tensor).__name__ == "MaskedTensor":
        lost = ~tensor.get_mask().cpu().numpy()
        return Observed(tensor.get_data(), lost if lost.any() else None)
    if tensor.is_nested or tensor.is_sparse or "sparse" in str(tensor.layout):
        raise InputError(f"{name} is a nested or sparse tensor; expected a dense one")
    return Observed(tensor)


def _is_tensor(values: Any) -> bool:
    # Without importing torch, which takes seconds: there is no tensor where nobody has.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(values, torch.Tensor)


def _kinds_of_entries(values: Sequence[Any]) -> set[type]:
    """The types of all entries of nested lists."""
    kinds = set(map(type, values))
    if kinds & {list, tuple}:
        kinds -= {list, tuple}
        for value in values:
            if isinstance(value, list | tuple):
                kinds |= _kinds_of_entries(value)
    return kinds


def _as_array(name: str, values: Any, dtype: Any = None) -> np.ndarray:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a masked entry as a scalar, which is read here
            return np.asarray(values, dtype)
    except (TypeError, ValueError):
        raise Ragged(f"{name} are ragged; expected rows of equal length") from None


def _of_entries(name: str, values: Any) -> Observed:
    """The array of nested lists, or of an array of objects."""
    if not isinstance(values, np.ndarray) or values.ndim == 1:
        parts = list(values)
        if any(_is_array(part) for part in parts) and all(_is_array(part) or _is_list(part) for part in parts):
            return _stacked(name, [observed(f"{name}[{row}]", part) for row, part in enumerate(parts)])
        if isinstance(values, np.ndarray) and any(map(_is_list, parts)):
            return observed(name, parts)
    entries = values if isinstance(values, np.ndarray) else _objects(name, values)
    kinds = set(map(type, entries.flat))
    if kinds <= {float, np.float64, np.float32}:
        return Observed(_as_array(name, values, np.float64))
    if kinds <= {str, np.str_}:
        return Observed(_as_array(name, values, np.str_))
    missing = np.fromiter((is_missing(entry) for entry in entries.flat), bool, entries.size).reshape(entries.shape)
    filled = np.where(missing, 0, entries)
    flat = [_as_number(name, entries.shape, index, entry) for index, entry in enumerate(filled.flat)]
    kept = {type(number) for number, lost in zip(flat, missing.flat, strict=True) if not lost}
    if bool in kept and len(kept) > 1:
        raise InputError(f"{name} have booleans beside numbers; expected only one of them")
    if float in kept or complex in kept:
        table = np.array(flat)
    elif kept == {bool}:
        table = np.array(flat, bool)
    else:
        wide = next((index for index, number in enumerate(flat) if not -(1 << 63) <= number < 1 << 64), None)
        if wide is not None:
            where = np.unravel_index(wide, entries.shape)
            raise InputError(f"{_entry(name, where)} is {flat[wide]}; expected an integer of at most 64 bits")
        table = np.array(flat, np.uint64 if max(flat, default=0) >= 1 << 63 and min(flat) >= 0 else np.int64)
    return Observed(table.reshape(entries.shape), missing if missing.any() else None)


def _objects(name: str, values: Any) -> np.ndarray:
    entries = _as_array(name, values, object)
    if any(isinstance(entry, list | tuple) for entry in entries.flat):
        raise Ragged(f"{name} are ragged; expected rows of equal length")
    return entries


def _stacked(name: str, rows: list[Observed]) -> Observed:
    tables = [row.values.detach().cpu().numpy() if _is_tensor(row.values) else row.values for row in rows]
    if len({table.shape for table in tables}) > 1:
        raise Ragged(f"{name} are ragged; expected rows of equal length")
    if len({table.dtype.kind == "b" for table in tables}) > 1:
        raise InputError(f"{name} have booleans beside numbers; expected only one of them")
    missing = None
    if any(row.missing is not None for row in rows):
        places = zip(tables, rows, strict=True)
        missing = np.stack([np.zeros(t.shape, bool) if row.missing is None else row.missing for t, row in places])
    return Observed(np.stack(tables), missing)


def _is_list(part: Any) -> bool:
    return isinstance(part, list | tuple)


def _is_array(part: Any) -> bool:
    return hasattr(part, "__array__") and len(np.shape(part)) > 0 and not isinstance(part, np.generic)


def is_missing(entry: Any) -> bool:
    """Whether an entry stands for a value that was not observed: None, NaN, NA, NaT, or one that is masked."""
    if entry is None or entry is np.ma.masked:
        return True
    if isinstance(entry, np.ma.MaskedArray):
        return bool(np.ma.getmaskarray(entry).any())
    if type(entry).__name__ in ("NAType", "NaTType"):
        return True
    # Only what is no number differs from itself.
    return isinstance(entry, float | np.floating) and bool(entry != entry)


def _as_number(name: str, shape: tuple[int, ...], index: int, entry: Any) -> bool | int | float | complex:
    if isinstance(entry, bool | np.bool_) or str(getattr(entry, "dtype", "")) in ("bool", "torch.bool"):
        return bool(entry)
    try:
        return operator.index(entry)
    except TypeError:
        pass
    if isinstance(entry, complex | np.complexfloating):
        return complex(entry)
    if not isinstance(entry, str | bytes):
        try:
            return float(entry)
        except (TypeError, ValueError, OverflowError):
            pass
    raise InputError(f"{_entry(name, np.unravel_index(index, shape))} is {entry!r}; expected a number")


def _entry(name: str, index: Any) -> str:
    return f"{name}[{', '.join(str(int(part)) for part in index)}]"


def _is_missing(name: str, missing: np.ndarray, remedy: str) -> InputError:
    first, count = np.argwhere(missing)[0], int(missing.sum())
    more = f" ({count - 1:,} more)" if count > 1 else ""
    return InputError(f"{_entry(name, first)} is missing{more}: masked, NaN, NA or None; {remedy}")
