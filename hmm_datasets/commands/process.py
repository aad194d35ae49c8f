"""The subcommands about a process: draw sequences from it, describe it."""

import contextlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TextIO

from ..display import counted
from ..errors import InputError
from ..files import atomic_file, atomic_folder
from ..foreign.text_files import opened_text
from ..report.tables import NO_ERROR, text_table
from ..runtime.progress import progress_bar
from ..runtime.setting_rules import Void
from ..runtime.settings import argument, option
from ..text.corpora.presets import corpus_rows
from ..training.pretrained import symbol_model

if TYPE_CHECKING:
    import numpy as np
    from transformers import PreTrainedModel

    from ..hmm.process import Process
    from ..hmm.token_files import TokenRows


_PROCESS = "folder of an HMM or another process, its name on the Hub, or 'process:mess3(x=0.05, a=0.85)'"
_CHUNK_TOKENS = 1 << 22
_TOP = 20  # symbols whose losses are printed


@dataclass(frozen=True, kw_only=True)
class SampleCommand:
    """Draw sequences from an HMM."""

    hmm: str = argument("HMM", _PROCESS)
    num_sequences: int = option(1, "N", "default 1")
    length: int = option(64, "L", "tokens per sequence, default 64")
    seed: int = option(0, None, "seed of the stream, default 0", below=1 << 64)
    first: int = option(0, "I", "index of the first sequence, default 0", below=1 << 64)
    output: Path | None = option(
        None,
        "FILE",
        ".npy, .bin (raw little-endian), .txt (one line per sequence) or .parquet; by default text to stdout",
    )
    columns: list[str] = option(
        [],
        "NAME",
        "input_ids, states, beliefs, next_token_probs, log_probs, entropies and other columns of "
        "load_dataset; by default all but large ones",
    )
    text: bool = option(False, None, "write the names of symbols, as words, not their numbers")

    voids = (
        Void("columns", "unless output is a .parquet file"),
        Void("text", "if output is another file than a .txt file", "names of symbols are text"),
    )
    void_facts: ClassVar = {
        "output is a .parquet file": lambda get: get("output") is not None and get("output").suffix == ".parquet",
        "output is another file than a .txt file": lambda get: get("output") and get("output").suffix != ".txt",
    }


def sample_command(arguments: SampleCommand) -> int:
    """Draw sequences to a file or to stdout, one chunk at a time."""
    import numpy as np

    count, length, output = arguments.num_sequences, arguments.length, arguments.output
    if output is not None and output.suffix not in (".npy", ".bin", ".txt", ".parquet"):
        raise InputError(f"--output {output}: expected a file name that ends in .npy, .bin, .txt or .parquet")
    if output is not None and output.suffix == ".parquet":
        return _write_parquet(arguments, output)
    source = _drawable(arguments.hmm)
    if arguments.text and source.vocabulary is None:
        raise InputError(f"--text: the symbols of {arguments.hmm} have no names; leave it out to get their numbers")
    if output is None:
        for chunk in _chunks(source, arguments):
            _write_lines(sys.stdout, chunk, source.vocabulary if arguments.text else None)
        sys.stdout.flush()
        return 0
    from ..hmm.sampling import smallest_unsigned

    dtype = smallest_unsigned(source.num_symbols).newbyteorder("<")
    with atomic_file(output) as temporary, contextlib.ExitStack() as files:
        if output.suffix == ".txt":
            lines = files.enter_context(temporary.open("w", encoding="utf-8"))
            for chunk in _chunks(source, arguments):
                _write_lines(lines, chunk, source.vocabulary if arguments.text else None)
        else:
            file = files.enter_context(temporary.open("wb"))
            if output.suffix == ".npy":
                header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False}
                np.lib.format.write_array_header_1_0(file, header | {"shape": (count, length)})
            for chunk in _chunks(source, arguments):
                file.write(chunk.astype(dtype, copy=False).tobytes())
    what = f"{count:,} sequences of {length:,} tokens"
    print(f"{output}: {what}, {dtype.name}, {source.name}")
    return 0


def _write_parquet(arguments: SampleCommand, output: Path) -> int:
    """Write sequences, and what is known of each token, as columns of a Parquet file."""
    from ..data.builders.hmm import HMMExamples
    from ..hub.kinds.process import oracle_columns
    from ..hub.parquet import write_rows

    process = _load(arguments.hmm)
    columns = arguments.columns or ["input_ids", *oracle_columns(process)]
    count, length = arguments.num_sequences, arguments.length
    rows = HMMExamples(process, length, arguments.seed, arguments.first, count, 1, False, 1, columns=columns)
    with atomic_file(output) as temporary, progress_bar(count, " rows") as bar:
        write_rows(temporary, rows.tables(), rows.features, bar.update)
    print(f"{output}: {count:,} sequences of {length:,} tokens, {', '.join(columns)}")
    return 0


@dataclass(frozen=True)
class _Drawable:
    """What sequences are drawn from: a process, or a model that was trained on one."""

    name: str
    num_symbols: int
    vocabulary: Sequence[str] | None
    draw: "Callable[[int, int, int, int], np.ndarray]"


def _drawable(name_or_path: str) -> _Drawable:
    loaded = symbol_model(name_or_path)
    if loaded is not None:
        model, vocabulary = loaded
        return _Drawable(f"model {name_or_path}", len(vocabulary), vocabulary, _drawn_by_model(model, len(vocabulary)))
    source = _load(name_or_path)
    name = f"{type(source).__name__} {source.fingerprint()}"
    return _Drawable(name, source.num_symbols, source.vocabulary, source.sample)


def _write_lines(file: "TextIO", tokens: "np.ndarray", vocabulary: Sequence[str] | None) -> None:
    import numpy as np

    if vocabulary is None:
        np.savetxt(file, tokens, fmt="%d")
        return
    from ..text.tokenizers.sentences import as_text

    file.writelines(as_text(vocabulary[symbol] for symbol in row) + "\n" for row in tokens.tolist())


def _print_losses(arguments: "DescribeCommand", name: str, path: Path) -> int:
    """Print the mean negative log-likelihood of sequences in a file, that of their last tokens, and by symbol."""
    import numpy as np

    from ..hmm.analysis.losses import symbol_losses, window_losses
    from ..hmm.model import HMM

    hmm = _load(name)
    rows = _tokens_to_score(hmm, name, path, arguments)
    if rows.lengths is not None and not isinstance(hmm, HMM):
        raise InputError(f"{path}: has sequences of several lengths, but {name} is not an HMM; cut them to one length")
    count, length = rows.shape
    losses, last = window_losses(hmm, *rows)
    observed = rows.row_counts
    mean, weights, last = losses[observed > 0], observed[observed > 0], last[~np.isnan(last)]
    missing = int(rows.ends.sum()) - int(observed.sum())
    if len(mean) == 0:
        raise InputError(f"{path}: all {missing:,} tokens are missing; give sequences of which some are observed")
    impossible = int(np.isinf(mean).sum())
    symbols = (
        _rows_by_symbol(hmm, *symbol_losses(hmm, *rows)) if impossible == 0 and hmm.has_exact_distribution else []
    )
    if arguments.json:
        sizes = {"sequences": count, "length": length, "missing": missing, "impossible": impossible}
        nats = {"nats": float(np.average(mean, weights=weights)), "last_nats": last.mean() if len(last) else None}
        nats = dict.fromkeys(nats) if impossible else nats
        print(json.dumps(sizes | nats | {"symbols": symbols}))
        return 0
    gaps = f", of which {missing:,} are missing and have no loss" if missing > 0 else ""
    shortest = "" if rows.lengths is None else f"{rows.lengths.min():,} to "
    sequences = f"{counted(count, 'sequence')} of {shortest}{length:,} tokens{gaps}"
    print(f"{_mean(mean, weights)}, over {sequences}")
    if impossible > 0:
        print(f"{impossible:,} of {count:,} sequences are impossible under the process")
        return 0
    if len(last) > 0:
        print(f"{_mean(last)} at the last token of each")
    if symbols:
        cells = [[r["symbol"], f"{r['count']:,}", f"{r['nats']:z.4f}", f"{r['accuracy']:.3f}"] for r in symbols]
        print(f"\n{text_table(['symbol', 'occurrences', 'nats', 'accuracy'], cells[:_TOP])}")
        if len(cells) > _TOP:
            print(f"... and {len(cells) - _TOP:,} rarer symbols (--json prints all)")
    return 0


def _rows_by_symbol(
    hmm: "Process", count: "np.ndarray", nats: "np.ndarray", accuracy: "np.ndarray"
) -> list[dict[str, Any]]:
    """A row for each symbol that occurs, the most frequent first."""
    order = [symbol for symbol in (-count).argsort(kind="stable").tolist() if count[symbol] > 0]
    names = hmm.vocabulary or list(map(str, range(len(count))))
    return [
        {
            "symbol": names[symbol],
            "count": int(count[symbol]),
            "nats": float(nats[symbol]),
            "accuracy": float(accuracy[symbol]),
        }
        for symbol in order
    ]


def _mean(rates: "np.ndarray", weights: "np.ndarray | None" = None) -> str:
    """The weighted mean in nats per token, with its standard error over sequences, or why there is none."""
    import numpy as np

    error = ""
    shares = np.full(len(rates), 1 / len(rates)) if weights is None else weights / weights.sum()
    mean = float((shares * rates).sum())
    if len(rates) == 1:
        error = f" ({NO_ERROR})"
    elif np.isfinite(rates).all():
        error = f", standard error {np.sqrt((shares**2 * (rates - mean) ** 2 / (1 - shares)).sum()):.6f}"
    return f"{mean:.6f} nats per token{error}"


def _tokens_to_score(hmm: "Process", name: str, path: Path, arguments: "DescribeCommand") -> "TokenRows":
    """The sequences of a file of symbols or of lines of names, or windows of the sentences in a text."""
    import numpy as np

    from ..hmm.token_files import TokenRows, is_token_file, read_named_rows, read_token_rows

    if is_token_file(path):
        return read_token_rows(path)
    from ..text.tokenizers.words import sentences_of

    vocabulary = hmm.vocabulary
    if vocabulary is None:
        raise InputError(
            f"{path}: the symbols of {name} have no names; give their numbers in a .npy file, or on lines of a text"
        )
    with opened_text(path) as file:
        text = file.read()
    named = read_named_rows(text, vocabulary)
    if named is not None:
        return named
    sentences, count = sentences_of(text, vocabulary)
    print(f"{path}: {len(sentences):,} of {count:,} sentences consist of the words of the HMM", file=sys.stderr)
    tokens = np.concatenate([np.zeros(0, np.int64), *sentences])
    if not len(tokens):
        raise InputError(f"{path}: no sentence consists of the words of {name}; give another text")
    length = min(arguments.length, len(tokens))
    return TokenRows(tokens[: len(tokens) // length * length].reshape(-1, length))


def _save_tables(arguments: "DescribeCommand", name: str, folder: Path) -> int:
    """Write the folder of an HMM whose tables are in a file, or of a named process."""
    from ..hmm.convert import from_file
    from ..hmm.names import is_process_name

    if folder.exists():
        raise InputError(f"{folder}: exists; give another folder")
    process = _load(name) if is_process_name(name) else from_file(name)
    with atomic_folder(folder, replace=False) as temporary:
        process.save_pretrained(temporary)
    print(f"{folder}: {process.describe()}")
    return 0


@dataclass(frozen=True, kw_only=True)
class DescribeCommand:
    """Sizes, entropy rate, states, mixing, and losses of predictors of a process.

    Without a name it lists the named processes and corpora. Of several processes it prints the entropy rates.
    """

    hmm: list[str] = argument("HMM", _PROCESS, many="*", default=[])
    length: int = option(64, "L", "positions to measure at, or words per window of a text; default 64")
    num_sequences: int = option(2048, "N", "sequences to measure on, default 2048")
    json: bool = option(False, None, "JSON instead of tables")
    plot: Path | None = option(None, "FOLDER", "write heat maps there, and for 3 or 4 states the beliefs")
    sequences: Path | None = option(
        None,
        "FILE",
        "instead, the loss on these in nats per token, also by symbol: .npy with integers of shape (N, L), or a text",
    )
    save: Path | None = option(
        None,
        "FOLDER",
        "instead, write the folder of a named process, or of the HMM in a file of tables: .npz, by our names or "
        "hmmlearn's",
    )

    voids = (
        Void("length", "if sequences is a file of symbols"),
        Void("sequences json length", "with save"),
        Void("num_sequences plot", "with save or sequences"),
        Void("save sequences length num_sequences plot", "unless hmm is one process"),
    )
    void_facts: ClassVar = {
        "hmm is one process": lambda get: len(get("hmm")) == 1,
        "sequences is a file of symbols": lambda get: get("sequences") is not None and _has_symbols(get("sequences")),
    }


def _has_symbols(path: Path) -> bool:
    from ..hmm.token_files import is_token_file

    return is_token_file(path)


def describe_command(arguments: DescribeCommand) -> int:
    """Print the description of a process as tables or JSON, and write plots if requested."""
    if len(arguments.hmm) != 1:
        return _print_list(arguments)
    (name,) = arguments.hmm
    if arguments.save is not None:
        return _save_tables(arguments, name, arguments.save)
    if arguments.sequences is not None:
        return _print_losses(arguments, name, arguments.sequences)
    from ..hmm.model import HMM
    from ..report.hmm_description import plot_hmm
    from ..report.process_description import describe_process, process_text

    process = _load(name)
    if arguments.plot is not None and not isinstance(process, HMM):
        raise InputError(f"--plot: {name} is not an HMM, but plots show one HMM; leave --plot out")
    description = describe_process(process, length=arguments.length, num_sequences=arguments.num_sequences)
    print(json.dumps(description) if arguments.json else process_text(description))
    if arguments.plot is not None and isinstance(process, HMM):
        for path in plot_hmm(process, arguments.plot):
            print(path, file=sys.stderr)
    return 0


def _print_list(arguments: DescribeCommand) -> int:
    """Print a table of several processes; without names, of all named processes, and of the named corpora."""
    from ..report.process_list import process_rows, process_table

    names = arguments.hmm
    rows = process_rows(names, rates=bool(names))
    corpora = [] if names else corpus_rows()
    if arguments.json:
        print(json.dumps({"processes": rows} | ({"corpora": corpora} if corpora else {})))
        return 0
    print(process_table(rows, shutil.get_terminal_size((100, 24)).columns))
    if corpora:
        print(f"\n{_corpora_text(corpora)}")
    return 0


def _corpora_text(rows: list[dict[str, Any]]) -> str:
    """A table of the named corpora, and a line for each with its licence."""
    names = ("name", "kind", "source", "documents", "tokens")
    cells = [[f"{row[name]:,}" if isinstance(row[name], int) else row[name] or "" for name in names] for row in rows]
    lines = [f"{row['name']}: licence: {row['licence']}" for row in rows]
    return "\n".join([text_table(names, cells), "", *lines])


def _load(name_or_path: str) -> "Process":
    from ..hmm.loading import load_source

    return load_source(name_or_path)


def _drawn_by_model(model: "PreTrainedModel", num_symbols: int) -> "Callable[[int, int, int, int], np.ndarray]":
    """A function that draws from a model; a chunk is drawn from the seed and the index of its first sequence."""

    def draw(count: int, length: int, seed: int, first: int) -> "np.ndarray":
        import torch

        from ..evaluation.policy import draw_from_policy

        torch.manual_seed(hash((seed, first)))
        with torch.inference_mode():
            return draw_from_policy(model, count, length, num_symbols).cpu().numpy()

    return draw


def _chunks(source: _Drawable, arguments: "SampleCommand") -> "Iterator[np.ndarray]":
    count, length = arguments.num_sequences, arguments.length
    rows = max(1, _CHUNK_TOKENS // max(length, 1))
    with contextlib.closing(progress_bar(count * length, " tokens")) as bar:
        # Even without sequences one empty draw is made, which checks the arguments.
        for start in range(0, max(count, 1), rows):
            chunk = source.draw(
                min(rows, count - start), length, arguments.seed, (arguments.first + start) % (1 << 64)
            )
            yield chunk
            bar.update(chunk.size)
