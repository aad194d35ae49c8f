"""Columns of a data set of sequences: the tokens, and what is known of each because their process is known.

Every column is a function of `(source, seed, index)`, as the sequences are. With `L` symbols per sequence, `E`
symbols, and beliefs of width `W` (for an HMM the number of states `H`), a row has

| column | type and shape | content |
|---|---|---|
| `input_ids` | unsigned, `(L,)` or `(L + 1,)` | the symbols, after a beginning token of id `E` if there is one |
| `labels` | signed, as `input_ids` | the same, which models shift themselves; -100 for the first, never predicted |
| `attention_mask` | int8, as `input_ids` | ones |
| `states` | unsigned, `(L,)` | the state that emits each symbol |
| `beliefs` | float32, `(L + 1, W)` | distribution of the state before each symbol, given the symbols before it |
| `next_token_probs` | float32, `(L + 1, E)` | Bayes-optimal distribution of each symbol given those before it |
| `log_probs` | float32, `(L,)` | its logarithm at the symbol that came (nats) |
| `entropies` | float32, `(L,)` | its entropy (nats) |
| `oracle_log_probs`, `oracle_entropies` | float32, `(L,)` | the same for a predictor that knows the HMM of the row |
| `own_hmm` | lists of float64 | tables of the HMM of the row |
| `text` | string | the names of the symbols, separated by spaces |

A process has the columns that it can compute: `states` if it has hidden states, `beliefs` if it has beliefs, of
whatever width. `own_hmm` is about HMMs and families of them. The `oracle` knows what varies from row to row, such as
the HMM of a family; where nothing varies it predicts like the optimum. Computing a distribution takes `O(L H^2)` per
row for an HMM, about a thousand times as long as drawing the row.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import torch

from ...errors import InputError
from ...hmm.families.family import Family
from ...hmm.model import HMM
from ...hmm.process import Process
from ...hmm.sampling import smallest_unsigned

TOKEN_COLUMNS = ("input_ids", "labels", "attention_mask")
"""Columns that have one entry for each token."""

KNOWN_COLUMNS = (
    *("states", "beliefs", "next_token_probs", "log_probs", "entropies"),
    *("oracle_log_probs", "oracle_entropies", "own_hmm", "text"),
)
"""Columns that only data of a known process have."""

_EXACT = ("next_token_probs", "log_probs", "entropies")
_ORACLE = ("oracle_log_probs", "oracle_entropies")
_TABLES = ("start", "transition", "emission", "edges")


def check_columns(source: Process, columns: Sequence[str]) -> None:
    """Raise an error if a source cannot have these columns.

    Raises:
        `InputError`: no columns, an unknown or repeated name, or a column that the source does not have.
    """
    allowed = (*TOKEN_COLUMNS, *KNOWN_COLUMNS)
    unknown = [name for name in columns if name not in allowed]
    if unknown or not columns or len(set(columns)) < len(columns):
        raise InputError(
            f"columns are {', '.join(columns) or 'empty'}; expected some of {', '.join(allowed)}, each once"
        )
    kind, others = type(source).__name__, [name for name in columns if name not in TOKEN_COLUMNS]
    if source.padding is not None and others:
        raise InputError(f"columns: {kind} has rows that end, without {', '.join(others)}; choose {TOKEN_COLUMNS}")
    if "beliefs" in columns and source.belief_width is None:
        why = ", since its rows are of different HMMs" if isinstance(source, Family) else ""
        raise InputError(f"columns: {kind} has no beliefs{why}; choose others")
    if "states" in columns and not source.has_states:
        raise InputError(f"columns: {kind} has no hidden states; choose others")
    if "own_hmm" in columns and not isinstance(source, HMM | Family):
        raise InputError(f"columns: {kind} has no own_hmm, since its rows are not drawn from HMMs; choose others")
    exact = {*_EXACT, *(() if source.has_oracle else _ORACLE)}
    uncomputed = exact & set(columns) if not source.has_exact_distribution else set()
    if uncomputed and not source.has_oracle:
        raise InputError(f"columns: {kind} cannot compute {', '.join(sorted(uncomputed))}; choose others")
    if uncomputed:
        raise InputError(
            f"columns: {kind} cannot compute {', '.join(sorted(uncomputed))} for so many possible HMMs; choose "
            "oracle_log_probs and oracle_entropies, whose predictor knows the HMM of the row"
        )
    if "text" in columns and vocabulary_of(source) is None:
        raise InputError("columns: no text, since the symbols have no names; give the HMM a vocabulary")


def column_features(source: Process, columns: Iterable[str]) -> dict[str, Any]:
    """The features of the columns that only data of a known process have."""
    numbers = datasets.List(datasets.Value("float32"))
    table = datasets.List(datasets.List(datasets.Value("float64")))
    kinds = {
        "states": datasets.List(datasets.Value(str(smallest_unsigned(source.max_states or 1)))),
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


def bytes_per_row(source: Process, columns: Iterable[str], length: int) -> int:
    """About how much memory a row takes while its columns are computed."""
    is_wide = set(columns) & {*KNOWN_COLUMNS} - {"states", "text"}
    width = (source.belief_width or source.max_states or 0) + source.num_symbols
    return 8 * length * (width if is_wide else 1)


def known_columns(
    source: Process, columns: Iterable[str], length: int, seed: int, first: int, step: int, count: int
) -> dict[str, pa.Array]:
    """Compute columns of `count` sequences `first, first + step, ...`.

    Args:
        source ([`~hmm_datasets.hmm.process.Process`]): the process.
        columns (iterable of `str`): names from `KNOWN_COLUMNS`; others are ignored.
        length (`int`): `L`, symbols per sequence.
        seed, first, step, count (`int`): which sequences; see [`~hmm_datasets.HMM.sample`].

    Returns:
        `dict` of `pyarrow.Array`: the columns by name, each of `count` rows.
    """
    columns = [name for name in columns if name in KNOWN_COLUMNS]
    if not columns:
        return {}
    known: dict[str, pa.Array] = {}
    if "states" in columns:
        tokens, states = source.sample_with_states(count, length, seed, first, step=step)
        known["states"] = _lists(states)
    else:
        tokens = source.sample(count, length, seed, first, step=step)
    if "beliefs" in columns:
        known["beliefs"] = _lists(source.beliefs(tokens).astype(np.float32))
    exact, oracle = {*_EXACT} & set(columns), {*_ORACLE} & set(columns)
    if exact or (oracle and not source.has_oracle):
        probs = source.next_token_probs(tokens)
        if "next_token_probs" in columns:
            known["next_token_probs"] = _lists(probs.astype(np.float32))
        known["log_probs"], known["entropies"] = _scores(probs, tokens)
    if oracle and not source.has_oracle:  # nothing more to know
        known["oracle_log_probs"], known["oracle_entropies"] = known["log_probs"], known["entropies"]
    elif oracle:
        probs = source.oracle_next_token_probs(tokens, seed, first, step=step)
        known["oracle_log_probs"], known["oracle_entropies"] = _scores(probs, tokens)
    if "own_hmm" in columns and isinstance(source, HMM | Family):
        known["own_hmm"] = pa.array([_tables(source, seed, (first + step * row) % (1 << 64)) for row in range(count)])
    if "text" in columns:
        names = np.array(vocabulary_of(source), dtype=object)
        known["text"] = pa.array([" ".join(row) for row in names[tokens]], pa.string())
    return {name: known[name] for name in columns}


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


def _tables(source: HMM | Family, seed: int, index: int) -> dict[str, Any]:
    tables = (source if isinstance(source, HMM) else source.hmm_at(seed, index)).tables()
    return {name: tables[name].tolist() if name in tables else None for name in _TABLES}


def vocabulary_of(source: Process) -> Sequence[str] | None:
    """The names of the symbols of a source, or None if they have none or not the same in all HMMs."""
    if not isinstance(source, Family):
        return source.vocabulary
    vocabularies = {part.vocabulary for part in source.parts()}
    return vocabularies.pop() if len(vocabularies) == 1 else None
