"""The subcommands about a process: draw sequences from it, describe it."""

import contextlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TextIO

from ..errors import InputError
from ..files import atomic_file
from ..report.tables import text_table
from ..runtime.progress import progress_bar
from ..runtime.setting_rules import Void
from ..runtime.settings import argument, option
from ..text.corpora.presets import corpus_rows
from ..training.pretrained import symbol_model

if TYPE_CHECKING:
    import numpy as np
    from transformers import PreTrainedModel

    from ..hmm.process import Process


_PROCESS = "folder of an HMM or another process, its name on the Hub, or 'process:mess3(x=0.05, a=0.85)'"
_CHUNK_TOKENS = 1 << 22


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


@dataclass(frozen=True, kw_only=True)
class DescribeCommand:
    """Sizes, entropy rate, states, mixing, and losses of predictors of a process.

    Without a name it lists the named processes and corpora. Of several processes it prints the entropy rates.
    """

    hmm: list[str] = argument("HMM", _PROCESS, many="*", default=[])
    length: int = option(64, "L", "positions to measure at, default 64")
    num_sequences: int = option(2048, "N", "sequences to measure on, default 2048")
    json: bool = option(False, None, "JSON instead of tables")
    plot: Path | None = option(None, "FOLDER", "write heat maps there, and for 3 or 4 states the beliefs")

    voids = (Void("length num_sequences plot", "unless hmm is one process"),)
    void_facts: ClassVar = {"hmm is one process": lambda get: len(get("hmm")) == 1}


def describe_command(arguments: DescribeCommand) -> int:
    """Print the description of a process as tables or JSON, and write plots if requested."""
    if len(arguments.hmm) != 1:
        return _print_list(arguments)
    (name,) = arguments.hmm
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
