"""Files that others wrote, damaged: corpora, checkpoints, arrays, GGUF, tokenizers and models.

    python tests/fuzz/foreign_files.py --cases 10000

prints a table of what came of them, see `harness.py`.
"""

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import datasets
import numpy as np
import pyarrow as pa
from fuzz.harness import Kind, main
from pyarrow import parquet

from hmm_datasets.hmm.arrays import read_tokens
from hmm_datasets.hmm.convert import from_file
from hmm_datasets.text.corpora.local_files import read_rows

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "the", "dog", "ran", "after", "it"]
TEXTS = [" ".join(WORDS[n % 5 : n % 5 + 6]) + f" {n}." for n in range(12)]
CHATS = [
    {
        "messages": [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": f"What is {n} and {n}?"},
            {"role": "assistant", "content": f"It is {2 * n}."},
        ],
        "source": "sums",
    }
    for n in range(6)
]


def rows_of(name: str):
    """A reader of the rows of a file."""

    def read(folder: Path) -> list[dict[str, Any]]:
        return [row for _, row in read_rows(folder / name)]

    return read


def write_jsonl(folder: Path) -> None:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in CHATS))


def json_lines(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "rows.jsonl").read_bytes().decode("utf-8-sig")
    return [
        row if isinstance(row, dict) else {"messages": row}
        for row in map(json.loads, filter(str.strip, text.splitlines()))
    ]


def write_parquet(folder: Path) -> None:
    parquet.write_table(pa.Table.from_pylist(CHATS), folder / "rows.parquet")


def parquet_rows(folder: Path) -> list[dict[str, Any]]:
    return parquet.read_table(folder / "rows.parquet").to_pylist()


def write_npz(folder: Path) -> None:
    tables = {"start": [0.5, 0.5], "transition": [[0.9, 0.1], [0.2, 0.8]], "emission": [[0.5, 0.5, 0], [0, 0.5, 0.5]]}
    np.savez(folder / "hmm.npz", **{name: np.array(table) for name, table in tables.items()})


def npz_tables(folder: Path) -> list[Any]:
    with np.load(folder / "hmm.npz", allow_pickle=False) as file:
        return [file[name].tolist() for name in ("start", "transition", "emission")]


def hmm_tables(folder: Path) -> list[Any]:
    hmm = from_file(folder / "hmm.npz")
    return [hmm.tables()[name].tolist() for name in ("start", "transition", "emission")]


def write_npy(folder: Path) -> None:
    np.save(folder / "tokens.npy", np.arange(60, dtype=np.uint16).reshape(6, 10))


KINDS = (
    Kind("JSON Lines", write_jsonl, rows_of("rows.jsonl"), json_lines),
    Kind("Parquet", write_parquet, rows_of("rows.parquet"), parquet_rows),
    Kind("tables of an HMM (.npz)", write_npz, hmm_tables, npz_tables),
    Kind(
        "tokens (.npy)",
        write_npy,
        lambda folder: read_tokens(folder / "tokens.npy").tolist(),
        lambda folder: np.load(folder / "tokens.npy", allow_pickle=False).tolist(),
    ),
)

if __name__ == "__main__":
    datasets.disable_progress_bars()
    sys.exit(main("fuzz.foreign_files", KINDS))
