"""The subcommands about a process: draw sequences from it, describe it."""

import contextlib
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
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

if TYPE_CHECKING:
    import numpy as np

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
        ".npy or .txt (one line per sequence); by default text to stdout",
    )
    text: bool = option(False, None, "write the names of symbols, as words, not their numbers")

    voids = (Void("text", "if output is another file than a .txt file", "names of symbols are text"),)
    void_facts: ClassVar = {
        "output is another file than a .txt file": lambda get: get("output") and get("output").suffix != ".txt",
    }


def sample_command(arguments: SampleCommand) -> int:
    """Draw sequences to a file or to stdout, one chunk at a time."""
    import numpy as np

    count, length, output = arguments.num_sequences, arguments.length, arguments.output
    if output is not None and output.suffix not in (".npy", ".txt"):
        raise InputError(f"--output {output}: expected a file name that ends in .npy or .txt")
    source = _load(arguments.hmm)
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
            header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False}
            np.lib.format.write_array_header_1_0(file, header | {"shape": (count, length)})
            for chunk in _chunks(source, arguments):
                file.write(chunk.astype(dtype, copy=False).tobytes())
    what = f"{count:,} sequences of {length:,} tokens"
    print(f"{output}: {what}, {dtype.name}, {type(source).__name__} {source.fingerprint()}")
    return 0


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


def _chunks(source: "Process", arguments: "SampleCommand") -> "Iterator[np.ndarray]":
    count, length = arguments.num_sequences, arguments.length
    rows = max(1, _CHUNK_TOKENS // max(length, 1))
    with contextlib.closing(progress_bar(count * length, " tokens")) as bar:
        # Even without sequences one empty draw is made, which checks the arguments.
        for start in range(0, max(count, 1), rows):
            chunk = source.sample(
                min(rows, count - start), length, arguments.seed, (arguments.first + start) % (1 << 64)
            )
            yield chunk
            bar.update(chunk.size)
