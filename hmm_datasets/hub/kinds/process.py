"""Data sets of processes as folders for the Hub, which load there by their name without this package.

`load_dataset("USER/NAME")` gives the sequences, and its config `oracle` what is known of each token because the
process is known. The process lies beside them: with this package row `i` of the endless stream is row `i` of the
Parquet files.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ...data.builders.columns import vocabulary_of
from ...data.builders.hmm import HMMExamples
from ...data.sequences import TEST_FIRST
from ...display import format_bytes
from ...errors import InputError
from ...files import atomic_folder, write_json
from ...hmm.families.family import Family
from ...hmm.loading import load_source
from ...hmm.model import HMM
from ...hmm.process import Process
from ...hmm.storage import FORMAT_VERSION
from ...records import Finite, read_record
from ...report.process_description import describe_process
from ...report.tables import predictor_titles
from ...runtime.progress import progress_bar
from ...runtime.run_records import read_run_record
from ..cards import is_own_card, write_card
from ..parquet import MAX_SHARD_BYTES, write_split
from ..redaction import Redaction

SETTINGS_NAME = "hmm_dataset.json"
"""File that marks the folder of a data set of an HMM; it has the settings of the stream."""

PLOT_NAME = "optimal_loss.png"

_MAX_BELIEFS = 16  # numbers in a belief up to which beliefs are stored
_MAX_TABLES = 256  # numbers in the tables of a row's own HMM up to which they are stored
_MEASURED = 2048  # sequences on which predictors are measured
_WORK = 1 << 33  # multiplications that measuring may take: some seconds


_MEASURED_TOKENS = 64
"""Tokens of a sequence over which the optimal loss of a process without an entropy rate is averaged."""


def write_hmm_dataset(
    source: Process,
    folder: str | os.PathLike,
    *,
    num_sequences: int = 10_000,
    num_test_sequences: int = 1_000,
    length: int = 100,
    seed: int = 0,
    bos: bool = True,
    name: str | None = None,
    description: str | None = None,
    licence: str | None = None,
    repo_id: str | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
    show_progress: bool = True,
) -> Path:
    """Write sequences of a process as a data set for the Hub; the folder is written atomically.

    It has Parquet files of the splits `train` and `test` in `data/`, the same rows with more columns in `oracle/`, the
    process itself, a plot of the optimal loss, and a card. The config `oracle` has what the process has of these: the
    states, the log-probability of each token under the exact next-token distribution, the entropy of that
    distribution, and beliefs of at most 16 numbers; see [`~hmm_datasets.data.builders.columns`] for shapes and units.

    Args:
        source ([`~hmm_datasets.hmm.process.Process`]):
            The process.
        folder (path):
            Output folder; must be new or empty.
        num_sequences (`int`, *optional*, defaults to 10,000):
            Rows of `train`: sequences 0, 1, ... of the stream.
        num_test_sequences (`int`, *optional*, defaults to 1,000):
            Rows of `test`: sequences `2**63`, `2**63 + 1`, ..., which no training reaches.
        length (`int`, *optional*, defaults to 100):
            Symbols per sequence.
        seed (`int`, *optional*, defaults to 0):
            Seed of the stream.
        bos (`bool`, *optional*, defaults to `True`):
            Put a beginning token of id `E`, the number of symbols, in front.
        name (`str`, *optional*), description (`str`, *optional*):
            Title of the card, and what the process is.
        licence (`str`, *optional*):
            Licence of the data, an identifier of the Hub; by default none is stated.
        repo_id (`str`, *optional*):
            Name on the Hub, for the commands in the card.
        max_shard_bytes (`int`, *optional*):
            Maximum size of a Parquet file before compression.
        show_progress (`bool`, *optional*, defaults to `True`):
            Show a progress bar.

    Returns:
        `Path`: the folder.

    Raises:
        [`InputError`]: the folder is not empty, or a number is out of range.

    ```python
    >>> import tempfile
    >>> from datasets import load_dataset
    >>> from hmm_datasets import processes
    >>> with tempfile.TemporaryDirectory() as parent:
    ...     sizes = {"num_sequences": 8, "num_test_sequences": 4, "length": 16}
    ...     folder = write_hmm_dataset(processes.mess3(), parent + "/mess3", **sizes, show_progress=False)
    ...     oracle = load_dataset(str(folder), "oracle", cache_dir=parent + "/cache")
    >>> oracle["train"].num_rows, oracle["test"].column_names
    (8, ['input_ids', 'states', 'log_probs', 'entropies', 'beliefs'])

    ```
    """
    for what, value, least in (("num_sequences", num_sequences, 1), ("num_test_sequences", num_test_sequences, 1)):
        if value < least:
            raise InputError(f"{what} is {value}; expected {least} or more")
    if length < 1:
        raise InputError(f"length is {length}; expected 1 or more")
    if not 0 <= seed < 1 << 64:
        raise InputError(f"seed is {seed}; expected an integer in [0, 2**64)")
    folder = Path(folder)
    _check_new(folder)
    named = ["text"] if vocabulary_of(source) is not None and source.padding is None else []
    columns = {"data": ["input_ids", *named], "oracle": ["input_ids", *named, *oracle_columns(source)]}
    splits = {"train": (0, num_sequences), "test": (TEST_FIRST, num_test_sequences)}
    total = len(columns) * (num_sequences + num_test_sequences)
    files: dict[str, dict[str, list[str]]] = {}
    with atomic_folder(folder, replace=False) as temporary:
        source.save_pretrained(temporary)
        with progress_bar(total, " rows", shown=show_progress, desc="Parquet") as bar:
            for prefix, names in columns.items():
                files[prefix] = {}
                for split, (first, count) in splits.items():
                    rows = HMMExamples(source, length, seed, first, count, 1, bos, 1, columns=names)
                    files[prefix][split] = write_split(
                        temporary,
                        split,
                        _tables(rows),
                        rows.features,
                        prefix=prefix,
                        max_shard_bytes=max_shard_bytes,
                        on_rows=bar.update,
                    )
        settings = {
            "format_version": FORMAT_VERSION,
            "fingerprint": source.fingerprint(),
            "length": length,
            "seed": seed,
            "bos": bos,
            "num_sequences": num_sequences,
            "num_test_sequences": num_test_sequences,
        }
        write_json(temporary / SETTINGS_NAME, settings)
        _write_card(source, temporary, settings, columns, name or folder.name, description, licence, repo_id)
    return folder


def _check_new(folder: Path) -> None:
    """Raise an error unless a folder is missing or empty.

    Raises:
        `InputError`: it has files, or is a file.
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise InputError(f"{folder}: exists already; choose another folder, or delete it")


def oracle_columns(source: Process) -> list[str]:
    """The columns of the config `oracle` besides the tokens: those that a source has and that are not large."""
    if source.padding is not None:
        return []  # they would be as long as the rows with their padding
    columns = ["states"] if source.has_states else []
    columns += ["log_probs", "entropies"] if source.has_exact_distribution else []
    columns += ["oracle_log_probs", "oracle_entropies"] if source.has_oracle else []
    if source.belief_width is not None and source.belief_width <= _MAX_BELIEFS:
        columns.append("beliefs")
    if isinstance(source, Family):
        states = source.max_states
        columns += ["own_hmm"] if states * (1 + states + source.num_symbols) <= _MAX_TABLES else []
    return columns


def _tables(rows: HMMExamples) -> Iterator[pa.Table]:
    """The rows as tables of at most some thousand rows, so that a file is not much larger than its limit."""
    for table in rows.tables():
        for batch in table.to_batches(max_chunksize=4096):
            yield pa.Table.from_batches([batch])


def _write_card(
    source: Process,
    folder: Path,
    settings: dict[str, Any],
    columns: dict[str, list[str]],
    name: str,
    description: str | None,
    licence: str | None,
    repo_id: str | None,
) -> None:
    """Measure the predictors, draw the optimal loss by position, and write the card."""
    from ...report.plots import plot_positions

    length = settings["length"]
    width = source.belief_width or source.max_states or source.num_symbols
    count = max(64, min(_MEASURED, _WORK // (length * width * max(width, source.num_symbols))))
    facts = describe_process(source, length=length, num_sequences=count, seed=settings["seed"])
    plot_positions(facts, folder / PLOT_NAME, title="Expected loss of each predictor")
    entropies = facts["cross_entropy"]
    best = "bayes" if "bayes" in entropies else "oracle"
    write_card(
        "dataset",
        folder,
        {
            "name": name,
            "process": description or source.describe(),
            "fingerprint": source.fingerprint(),
            "num_states": source.max_states,
            "num_symbols": source.num_symbols,
            "format": FORMAT_VERSION,
            "license": licence,
            "repo_id": repo_id,
            "columns": columns["oracle"],
            "size": format_bytes(sum(path.stat().st_size for path in folder.rglob("*.parquet"))),
            "entropy_rate": facts.get("entropy_rate"),
            "exact": source.has_exact_distribution,
            "optimal_loss": {
                "name": best,
                "value": entropies[best]["mean"],
                "error": entropies[best]["standard_error"],
            },
            "positions": positions_of(length),
            "predictors": [
                {
                    "title": title,
                    "by_position": [entropies[key]["by_position"][position - 1] for position in positions_of(length)],
                    "mean": entropies[key]["mean"],
                    "excess": entropies[key]["mean"] - entropies[best]["mean"],
                }
                for key, title in predictor_titles(entropies).items()
            ],
            "measured_on": count,
            **{key: settings[key] for key in ("seed", "length", "bos", "num_sequences", "num_test_sequences")},
        },
    )


def positions_of(length: int) -> list[int]:
    """The positions that a card lists: powers of four, and the last.

    ```python
    >>> positions_of(100)
    [1, 4, 16, 64, 100]

    ```
    """
    powers = [1]
    while 4 * powers[-1] <= length:
        powers.append(4 * powers[-1])
    return sorted({*powers, length})


@dataclass(frozen=True)
class _FitSummary:
    """What `summary.json` of a fit says about its HMM, in nats per token."""

    train_log_likelihood: Finite
    test_log_likelihood: Finite | None
    entropy_rate: Finite | None
    entropy_rate_error: Finite | None


def write_hmm_card(folder: str | os.PathLike, *, licence: str | None = None) -> bool:
    """Write the card of an HMM fitted by `recipes/fit_hmm.py` into its folder `hmm/`; see [`write_run_card`].

    Args:
        folder (path): folder of the fit, with `run.json`, `summary.json` and `hmm/`.
        licence (`str`, *optional*): licence of the HMM, an identifier of the Hub; by default none is stated.
    """
    folder = Path(folder)
    if not is_own_card(folder / "hmm"):
        return False
    record, summary = read_run_record(folder / "run.json"), read_record(folder / "summary.json", _FitSummary)
    redaction = Redaction(folder)
    hmm, corpus = load_source(folder / "hmm"), redaction.without_paths(str(record.settings.get("corpus")))
    write_card(
        "hmm",
        folder / "hmm",
        {
            "name": f"An HMM of {corpus}",
            "num_states": hmm.max_states,
            "num_symbols": hmm.num_symbols,
            "summary": _summary_of(hmm),
            "is_hmm": isinstance(hmm, HMM),
            "corpus": corpus,
            "license": licence,
            "log_likelihood_train": summary.train_log_likelihood,
            "log_likelihood_test": summary.test_log_likelihood,
            "entropy_rate": summary.entropy_rate,
            "entropy_rate_standard_error": summary.entropy_rate_error,
            "command": redaction.without_paths(record.command),
            "versions": record.versions,
            "has_names": hmm.vocabulary is not None,
        },
    )
    return True


def write_process_card(
    source: Process,
    folder: str | os.PathLike,
    *,
    name: str,
    licence: str | None = None,
    repo_id: str | None = None,
) -> None:
    """Write the card of a process that was not fitted.

    Args:
        source ([`~hmm_datasets.hmm.process.Process`]): the process.
        folder (path): where the card goes.
        name (`str`): title of the card.
        licence (`str`, *optional*): licence, an identifier of the Hub; by default none is stated.
        repo_id (`str`, *optional*): name on the Hub, for the commands in the card.
    """
    is_hmm = isinstance(source, HMM | Family)
    rate = source.entropy_rate() if source.is_stationary else None
    write_card(
        "hmm",
        folder,
        {
            "name": name,
            "num_states": source.max_states,
            "num_symbols": source.num_symbols,
            "corpus": None,
            "license": licence,
            "log_likelihood_train": None,
            "log_likelihood_test": None,
            "entropy_rate": rate and rate.value,
            "entropy_rate_standard_error": rate and rate.standard_error,
            "command": None,
            "summary": _summary_of(source),
            "is_hmm": is_hmm,
            "is_exact": source.has_exact_distribution,
            "optimal_loss": None if is_hmm or rate is not None else expected_loss(source),
            "has_names": source.vocabulary is not None,
            "repo_id": repo_id,
        },
    )


def _summary_of(source: Process) -> str | None:
    if isinstance(source, HMM):
        return None
    if isinstance(source, Family):
        return f"A family of hidden Markov models: {source.stored_name}."
    described = source.describe()
    return f"{described[0].upper()}{described[1:]}. The best possible prediction of its sequences can be computed."


def expected_loss(source: Process, length: int = _MEASURED_TOKENS) -> dict[str, Any] | None:
    """The mean of the optimal loss over the first `length` tokens of a process; None if it cannot be computed."""
    if not source.has_exact_distribution:
        return None
    loss = source.optimal_loss(length)
    # Positions of a sequence are not independent, so that their errors add up at worst.
    value, error = float(loss.nats.mean()), float(loss.standard_error.mean())
    return {"value": value, "standard_error": error, "length": length}
