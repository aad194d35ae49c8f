"""Columns of a data set of sequences: the tokens, and what is known of each because their process is known.

Every column is a function of `(source, seed, index)`, as the sequences are. With `L` symbols per sequence, `H` states
and `E` symbols, a row has

| column | type and shape | content |
|---|---|---|
| `input_ids` | unsigned, `(L,)` or `(L + 1,)` | the symbols, after a beginning token of id `E` if there is one |
| `labels` | as `input_ids` | the same again; models of transformers shift them themselves |
| `attention_mask` | int8, as `input_ids` | ones |
| `states` | unsigned, `(L,)` | the state that emits each symbol |
| `beliefs` | float32, `(L + 1, H)` | distribution of the state before each symbol, given the symbols before it |
| `next_token_probs` | float32, `(L + 1, E)` | Bayes-optimal distribution of each symbol given those before it |
| `log_probs` | float32, `(L,)` | its logarithm at the symbol that came (nats) |
| `entropies` | float32, `(L,)` | its entropy (nats) |
| `oracle_log_probs`, `oracle_entropies` | float32, `(L,)` | the same for a predictor that knows the HMM of the row |
| `own_hmm` | lists of float64 | tables of the HMM of the row |
| `text` | string | the names of the symbols, separated by spaces |

The last three are about families, which draw a new HMM for every row; for an HMM they are allowed too. Computing a
distribution takes `O(L H^2)` per row for an HMM, about a thousand times as long as drawing the row.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import datasets
import numpy as np
import pyarrow as pa
import torch

from ..errors import InputError
from ..hmm.model import HMM
from ..hmm.sampling.sequences import smallest_unsigned

if TYPE_CHECKING:
    from ..hmm.families import Family

TOKEN_COLUMNS = ("input_ids", "labels", "attention_mask")
"""Columns that have one entry for each token."""

KNOWN_COLUMNS = (
    *("states", "beliefs", "next_token_probs", "log_probs", "entropies"),
    *("oracle_log_probs", "oracle_entropies", "own_hmm", "text"),
)
"""Columns that only data of a known process have."""

_TABLES = ("start", "transition", "emission", "edges")


def check_columns(source: "HMM | Family", columns: Sequence[str]) -> None:
    """Raise an error if a source cannot have these columns.

    Raises:
        `InputError`: no columns, an unknown or repeated name, or a column that the source does not have.
    """
    allowed = (*TOKEN_COLUMNS, *KNOWN_COLUMNS)
    unknown = [name for name in columns if name not in allowed]
    if unknown or not columns or len(set(columns)) < len(columns):
        raise InputError(
            f"columns are {', '.join(columns) or 'empty'}; expected different ones of {', '.join(allowed)}"
        )
    kind = type(source).__name__
    if "beliefs" in columns and not isinstance(source, HMM):
        raise InputError(f"columns: {kind} has no beliefs, since its rows are of different HMMs; choose others")
    uncomputed = {"next_token_probs", "log_probs", "entropies"} & set(columns)
    if uncomputed and not isinstance(source, HMM) and not source.has_exact_distribution:
        raise InputError(
            f"columns: {kind} cannot compute {', '.join(sorted(uncomputed))} for so many possible HMMs; choose "
            "oracle_log_probs and oracle_entropies, whose predictor knows the HMM of the row"
        )
    if "text" in columns and vocabulary_of(source) is None:
        raise InputError("columns: no text, since the symbols have no names; give the HMM a vocabulary")


def column_features(source: "HMM | Family", columns: Iterable[str]) -> dict[str, Any]:
    """The features of the columns that only data of a known process have."""
    numbers = datasets.List(datasets.Value("float32"))
    table = datasets.List(datasets.List(datasets.Value("float64")))
    kinds = {
        "states": datasets.List(datasets.Value(str(smallest_unsigned(_num_states(source))))),
        "beliefs": datasets.List(numbers),
        "next_token_probs": datasets.List(numbers),
        "own_hmm": {
            "start": datasets.List(datasets.Value("float64")),
            "transition": table,
            "emission": table,
            "edges": datasets.List(table),
        },
        "text": datasets.Value("string"),
    }
    return {name: kinds.get(name, numbers) for name in columns if name in KNOWN_COLUMNS}


def bytes_per_row(source: "HMM | Family", columns: Iterable[str], length: int) -> int:
    """About how much memory a row takes while its columns are computed."""
    is_wide = set(columns) & {*KNOWN_COLUMNS} - {"states", "text"}
    return 8 * length * (_num_states(source) + source.num_symbols if is_wide else 1)


def known_columns(
    source: "HMM | Family", columns: Iterable[str], length: int, seed: int, first: int, step: int, count: int
) -> dict[str, pa.Array]:
    """Compute columns of `count` sequences `first, first + step, ...`.

    Args:
        source ([`~hmm_datasets.HMM`] or family): the process.
        columns (iterable of `str`): names from `KNOWN_COLUMNS`; others are ignored.
        length (`int`): `L`, symbols per sequence.
        seed, first, step, count (`int`): which sequences; see [`~hmm_datasets.HMM.sample`].

    Returns:
        `dict` of `pyarrow.Array`: the columns by name, each of `count` rows.
    """
    columns = [name for name in columns if name in KNOWN_COLUMNS]
    if not columns:
        return {}
    tokens, states = source.sample_with_states(count, length, seed, first, step=step)
    found: dict[str, pa.Array] = {}
    if "states" in columns:
        found["states"] = _lists(states)
    if "beliefs" in columns and isinstance(source, HMM):
        found["beliefs"] = _lists(source.beliefs(tokens).astype(np.float32))
    exact = {"next_token_probs", "log_probs", "entropies"} & set(columns)
    oracle = {"oracle_log_probs", "oracle_entropies"} & set(columns)
    if exact or (oracle and isinstance(source, HMM)):
        probs = source.next_token_probs(tokens)
        if "next_token_probs" in columns:
            found["next_token_probs"] = _lists(probs.astype(np.float32))
        found["log_probs"], found["entropies"] = _scores(probs, tokens)
    if isinstance(source, HMM):
        if oracle:  # it knows no more
            found["oracle_log_probs"], found["oracle_entropies"] = found["log_probs"], found["entropies"]
    elif oracle:
        probs = source.oracle_next_token_probs(tokens, seed, first, step=step)
        found["oracle_log_probs"], found["oracle_entropies"] = _scores(probs, tokens)
    if "own_hmm" in columns:
        found["own_hmm"] = pa.array([_tables(source, seed, (first + step * row) % (1 << 64)) for row in range(count)])
    if "text" in columns:
        names = np.array(vocabulary_of(source), dtype=object)
        found["text"] = pa.array([" ".join(row) for row in names[tokens]], pa.string())
    return {name: found[name] for name in columns}


def _scores(probs: np.ndarray, tokens: np.ndarray) -> tuple[pa.Array, pa.Array]:
    """Log-probabilities of the symbols, and entropies, in nats."""
    probs = probs[:, :-1]
    chosen = np.take_along_axis(probs, tokens[..., None].astype(np.int64), axis=-1)[..., 0]
    with np.errstate(divide="ignore"):
        log_probs = np.log(chosen)
    entropies = torch.special.entr(torch.from_numpy(probs)).sum(-1).numpy()
    return _lists(log_probs.astype(np.float32)), _lists(entropies.astype(np.float32))


def _lists(values: np.ndarray) -> pa.Array:
    """An array of shape `(N, ...)` as a column of `N` nested lists."""
    array = pa.array(np.ascontiguousarray(values).ravel())
    for axis in range(values.ndim - 1, 0, -1):
        size = values.shape[axis]
        count = int(np.prod(values.shape[:axis]))
        array = pa.ListArray.from_arrays(np.arange(0, count * size + 1, size, dtype=np.int32), array)
    return array


def _num_states(source: "HMM | Family") -> int:
    return source.num_states if isinstance(source, HMM) else source.max_states


def _tables(source: "HMM | Family", seed: int, index: int) -> dict[str, Any]:
    tables = (source if isinstance(source, HMM) else source.hmm_at(seed, index)).tables()
    return {name: tables[name].tolist() if name in tables else None for name in _TABLES}


def vocabulary_of(source: "HMM | Family") -> Sequence[str] | None:
    """The names of the symbols of a source, or None if they have none or not the same in all HMMs."""
    if isinstance(source, HMM):
        return source.vocabulary
    found = {part.vocabulary for part in source.parts()}
    return found.pop() if len(found) == 1 else None
