"""The subcommands about one HMM or family: draw sequences, score sequences, describe it.

Slow imports are in the functions that need them, as in `cli`.
"""

import argparse
import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .errors import InputError
from .progress_bars import progress_bar
from .token_arrays import read_tokens

if TYPE_CHECKING:
    import numpy as np

    from .hmm.families import Family
    from .hmm.model import HMM

_CHUNK_TOKENS = 1 << 22


def sample(arguments: argparse.Namespace) -> int:
    """Draw sequences to a file or to stdout, one chunk at a time."""
    import numpy as np

    hmm = _load(arguments.hmm)
    count, length, output = arguments.num_sequences, arguments.length, arguments.output
    if count < 0 or length < 0:
        raise InputError(f"--num-sequences {count} --length {length}; expected 0 or more of each")
    if not 0 <= arguments.first < 1 << 64:
        raise InputError(f"--first {arguments.first}; expected an integer in [0, 2**64)")
    if output is None:
        for chunk in _chunks(hmm, arguments):
            np.savetxt(sys.stdout, chunk, fmt="%d")
        sys.stdout.flush()
        return 0
    if output.suffix not in (".npy", ".bin", ".txt"):
        raise InputError(f"--output {output}: expected a file name that ends in .npy, .bin or .txt")
    from .files import atomic_file
    from .hmm.sampling.sequences import smallest_unsigned

    dtype = smallest_unsigned(hmm.num_symbols).newbyteorder("<")
    with atomic_file(output) as temporary, temporary.open("wb") as file:
        if output.suffix == ".npy":
            header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (count, length)}
            np.lib.format.write_array_header_1_0(file, header)
        for chunk in _chunks(hmm, arguments):
            if output.suffix == ".txt":
                np.savetxt(file, chunk, fmt="%d")
            else:
                file.write(chunk.astype(dtype, copy=False).tobytes())
    print(
        f"{output}: {count:,} sequences of {length:,} tokens, {dtype.name}, {type(hmm).__name__} {hmm.fingerprint()}"
    )
    return 0


def score(arguments: argparse.Namespace) -> int:
    """Print the mean negative log-likelihood of the sequences in a file."""
    import numpy as np

    hmm = _load(arguments.hmm)
    tokens = read_tokens(arguments.tokens)
    count, length = tokens.shape
    rows = max(1, _CHUNK_TOKENS // max(length, _width(hmm, length)))
    total = np.empty(count)
    with progress_bar(tokens.size, " tokens") as bar:
        for start in range(0, count, rows):
            part = tokens[start : start + rows]
            total[start : start + rows] = hmm.log_likelihood(np.asarray(part))
            bar.update(part.size)
    rates = -total / length
    impossible = int(np.isinf(rates).sum())
    error = ""
    if count > 1 and impossible == 0:
        error = f", standard error {rates.std(ddof=1) / np.sqrt(count):.6f}"
    print(f"{rates.mean():.6f} nats per token{error}, over {count:,} sequences of {length:,} tokens")
    if impossible > 0:
        print(f"{impossible:,} of {count:,} sequences are impossible under the HMM or family")
    return 0


def entropy_rate(arguments: argparse.Namespace) -> int:
    """Print the entropy rate and its standard error."""
    import math

    source = _load(arguments.hmm)
    if not hasattr(source, "entropy_rate"):
        raise InputError(
            f"{arguments.hmm}: is a family of HMMs, whose optimal loss decreases as the tokens reveal the HMM; use "
            "describe, which gives the losses of predictors at each position"
        )
    rate = source.entropy_rate()
    exact = "exact" if rate.standard_error == 0 else f"standard error {rate.standard_error:.6f}"
    print(f"{rate.value:.6f} nats per token ({rate.value / math.log(2):.6f} bits), {exact}")
    return 0


def describe(arguments: argparse.Namespace) -> int:
    """Print the description of an HMM or family as tables or JSON, and write plots if requested."""
    import json

    from .hmm.model import HMM
    from .report.hmm_description import describe, describe_family, description_text, family_text, plot_hmm

    hmm = _load(arguments.hmm)
    is_one = isinstance(hmm, HMM)
    if arguments.plot is not None and not is_one:
        raise InputError(f"--plot: {arguments.hmm} is a family, but plots show one HMM; leave --plot out")
    sizes = {"length": arguments.length, "num_sequences": arguments.num_sequences}
    description = describe(hmm, **sizes) if is_one else describe_family(hmm, **sizes)
    text = description_text if is_one else family_text
    print(json.dumps(description) if arguments.json else text(description))
    if arguments.plot is not None:
        for path in plot_hmm(hmm, arguments.plot):
            print(path, file=sys.stderr)
    return 0


def _load(name_or_path: str) -> "HMM | Family":
    from .hmm.families import load_source

    return load_source(name_or_path)


def _width(source: "HMM | Family", length: int) -> int:
    """Numbers in memory for the log-likelihood of one sequence."""
    from .hmm.model import HMM

    return source.num_states if isinstance(source, HMM) else length * source.num_symbols


def _chunks(hmm: "HMM | Family", arguments: argparse.Namespace) -> "Iterator[np.ndarray]":
    count, length = arguments.num_sequences, arguments.length
    rows = max(1, _CHUNK_TOKENS // max(length, 1))
    with contextlib.closing(progress_bar(count * length, " tokens")) as bar:
        # Even without sequences one empty draw is made, which checks the arguments.
        for start in range(0, max(count, 1), rows):
            chunk = hmm.sample(min(rows, count - start), length, arguments.seed, (arguments.first + start) % (1 << 64))
            yield chunk
            bar.update(chunk.size)
