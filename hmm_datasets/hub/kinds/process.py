"""Data sets of processes as folders for the Hub, which load there by their name without this package.

`load_dataset("USER/NAME")` gives the sequences, and its config `oracle` what is known of each token because the
process is known. The process lies beside them: with this package row `i` of the endless stream is row `i` of the
Parquet files.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...data.builders.columns import vocabulary_of
from ...data.builders.hmm import HMMExamples
from ...data.sequences import TEST_FIRST
from ...display import format_bytes
from ...errors import InputError
from ...files import atomic_folder, write_json
from ...hmm.families.family import Family
from ...hmm.integers import integer
from ...hmm.loading import load_source
from ...hmm.model import HMM
from ...hmm.process import Process
from ...hmm.storage import FORMAT_VERSION
from ...records import Finite, read_record
from ...report.predictor_losses import predictors_table
from ...report.process_description import describe_process
from ...runtime.progress import progress_bar
from ...runtime.run_records import read_run_record
from ..cards import is_own_card, write_card
from ..parquet import MAX_SHARD_BYTES, write_split
from ..redaction import Redaction

SETTINGS_NAME = "hmm_dataset.json"
"""File that marks the folder of a data set of an HMM; it has the settings of the stream."""

PLOT_NAME = "optimal_loss.png"
_SPLITS = ("train", "test")

_ROWS = 4096  # in a row group
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
    integer("num_sequences", num_sequences, 1, 63)
    integer("num_test_sequences", num_test_sequences, 1, 63)
    integer("length", length, 1, 31)
    integer("seed", seed, 0, 64)
    folder = Path(folder)
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise InputError(f"{folder}: exists already; choose another folder, or delete it")
    named = ["text"] if vocabulary_of(source) is not None and source.padding is None else []
    columns = {"data": ["input_ids", *named], "oracle": ["input_ids", *named, *oracle_columns(source)]}
    splits = dict(zip(_SPLITS, ((0, num_sequences), (TEST_FIRST, num_test_sequences)), strict=True))
    total = len(columns) * (num_sequences + num_test_sequences)
    with atomic_folder(folder, replace=False) as temporary:
        source.save_pretrained(temporary)
        with progress_bar(total, " rows", shown=show_progress, desc="Parquet") as bar:
            for prefix, names in columns.items():
                for split, (first, count) in splits.items():
                    rows = HMMExamples(source, length, seed, first, count, 1, bos, 1, columns=names)
                    sizes = {"prefix": prefix, "max_shard_bytes": max_shard_bytes}
                    tables = rows.tables(rows=_ROWS)
                    write_split(temporary, split, tables, rows.features, **sizes, on_rows=bar.update)
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
        stated = {"name": name or folder.name, "license": licence, "repo_id": repo_id, "columns": columns["oracle"]}
        _write_card(source, temporary, settings, stated | {"process": description or source.describe()})
    return folder


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


def _write_card(source: Process, folder: Path, settings: dict[str, Any], stated: dict[str, Any]) -> None:
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
            **stated,
            "format": FORMAT_VERSION,
            "configs": [
                {"name": name, "splits": [{"split": split, "path": f"{prefix}/{split}-*"} for split in _SPLITS]}
                for name, prefix in (("default", "data"), ("oracle", "oracle"))
            ],
            "size": format_bytes(sum(path.stat().st_size for path in folder.rglob("*.parquet"))),
            "optimal_loss": {name: entropies[best][name] for name in ("mean", "standard_error")},
            "tables": predictors_table(facts),
            **{key: facts[key] for key in ("fingerprint", "num_states", "num_symbols", "exact", "entropy_rate")},
            **{key: settings[key] for key in ("seed", "length", "bos", "num_sequences", "num_test_sequences")},
        },
    )


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
    corpus = redaction.without_paths(str(record.settings.get("corpus")))
    hmm = load_source(folder / "hmm")
    facts = {
        "corpus": corpus,
        "log_likelihood_train": summary.train_log_likelihood,
        "log_likelihood_test": summary.test_log_likelihood,
        "entropy_rate": summary.entropy_rate,
        "entropy_rate_standard_error": summary.entropy_rate_error,
        "command": redaction.without_paths(record.command),
        "versions": record.versions,
    }
    write_card("hmm", folder / "hmm", _facts_of(hmm) | facts | {"name": f"An HMM of {corpus}", "license": licence})
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
    facts, rate = _facts_of(source), source.entropy_rate() if source.is_stationary else None
    facts |= {"name": name, "license": licence, "repo_id": repo_id}
    facts |= {"entropy_rate": rate and rate.value, "entropy_rate_standard_error": rate and rate.standard_error}
    facts["optimal_loss"] = None if facts["is_hmm"] or rate is not None else _expected_loss(source)
    write_card("hmm", folder, facts)


def _facts_of(source: Process) -> dict[str, Any]:
    """What the card of a process states of it, fitted or not."""
    return {
        "num_states": source.max_states,
        "num_symbols": source.num_symbols,
        "summary": _summary_of(source),
        "is_hmm": isinstance(source, HMM | Family),
        "is_exact": source.has_exact_distribution,
        "has_names": source.vocabulary is not None,
    }


def _summary_of(source: Process) -> str | None:
    if isinstance(source, HMM):
        return None
    if isinstance(source, Family):
        return f"A family of hidden Markov models: {source.stored_name}."
    described = source.describe()
    return f"{described[0].upper()}{described[1:]}. The best possible prediction of its sequences can be computed."


def _expected_loss(source: Process) -> dict[str, Any] | None:
    """The mean of the optimal loss over the first tokens of a process; None if it cannot be computed."""
    if not source.has_exact_distribution:
        return None
    loss = source.optimal_loss(_MEASURED_TOKENS)
    # Positions of a sequence are not independent, so that their errors add up at worst.
    value, error = float(loss.nats.mean()), float(loss.standard_error.mean())
    return {"value": value, "standard_error": error, "length": _MEASURED_TOKENS}
