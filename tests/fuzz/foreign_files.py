"""Files that others wrote, damaged: corpora, checkpoints, arrays, GGUF, tokenizers and models.

    python tests/fuzz/foreign_files.py --cases 10000

prints a table of what came of them, see `harness.py`.
"""

import contextlib
import csv
import functools
import io
import json
import random
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "training"))

import datasets
import numpy as np
import pyarrow as pa
import torch
import yaml
from fuzz.damage import damage_folder
from fuzz.harness import Kind, main
from pyarrow import parquet
from safetensors.torch import load_file, save_file
from tiny_gguf import save_gguf
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from hmm_datasets.files import read_yaml
from hmm_datasets.foreign.arrays import load_archive
from hmm_datasets.hmm.token_files import read_token_rows
from hmm_datasets.hub.gguf import read_header
from hmm_datasets.operations.checkpoints.weights import read_weights
from hmm_datasets.text.corpora.conversations import ROLE_NAMES
from hmm_datasets.text.corpora.loading import load_corpus
from hmm_datasets.text.corpora.local_files import read_rows
from hmm_datasets.text.tokenizers.bpe import train_bpe
from hmm_datasets.text.tokenizers.chat_encoding import encode_conversation
from hmm_datasets.text.tokenizers.encoding import encode_texts
from hmm_datasets.training.checkpoints.inspection import good_checkpoints
from hmm_datasets.training.pretrained import load_pretrained

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


def archive_tables(folder: Path) -> list[Any]:
    tables = load_archive(folder / "hmm.npz")
    return [tables[name].tolist() for name in ("start", "transition", "emission")]


def write_npy(folder: Path) -> None:
    np.save(folder / "tokens.npy", np.arange(60, dtype=np.uint16).reshape(6, 10))


def write_texts(folder: Path) -> None:
    (folder / "rows.txt").write_text("\n<|endoftext|>\n".join(TEXTS))


def texts(folder: Path) -> list[str]:
    content = (folder / "rows.txt").read_bytes()
    mark = content[:2] in (b"\xff\xfe", b"\xfe\xff")
    text = io.TextIOWrapper(io.BytesIO(content), "utf-16" if mark else "utf-8-sig").read()
    return [
        {"text": part}
        for part in text.split("<|endoftext|>")[: None if text.rpartition("<|endoftext|>")[2].strip() else -1]
    ]


def write_csv(folder: Path) -> None:
    with open(folder / "rows.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([["id", "text"], *([number, f'{text} "quoted", yes'] for number, text in enumerate(TEXTS))])


def csv_rows(folder: Path) -> list[dict[str, str]]:
    content = (folder / "rows.csv").read_bytes()
    mark = content[:2] in (b"\xff\xfe", b"\xfe\xff")
    lines = io.TextIOWrapper(io.BytesIO(content), "utf-16" if mark else "utf-8-sig", newline="")
    delimiter = max(",\t;", key=lines.readline().count)
    lines.seek(0)
    return list(csv.DictReader(lines, delimiter=delimiter))


COMPRESSION = {"gz": "gzip", "zst": "zstd"}


def compressed(kind: str):
    def write(folder: Path) -> None:
        with pa.output_stream(
            str(folder / f"rows.jsonl.{kind}"), compression={"gz": "gzip", "zst": "zstd"}[kind]
        ) as file:
            file.write("".join(json.dumps(row) + "\n" for row in CHATS).encode())

    return write


def compressed_lines(kind: str):
    def read(folder: Path) -> list[dict[str, Any]]:
        with pa.input_stream(
            str(folder / f"rows.jsonl.{kind}"), compression={"gz": "gzip", "zst": "zstd"}[kind]
        ) as file:
            content = file.read()
        (folder / "rows.jsonl").write_bytes(content)
        return json_lines(folder)

    return read


def write_json(folder: Path) -> None:
    (folder / "rows.json").write_text(json.dumps(CHATS, indent=1))


def json_rows(folder: Path) -> list[dict[str, Any]]:
    content = (folder / "rows.json").read_bytes()
    try:
        rows = json.loads(content)
    except ValueError:
        (folder / "rows.jsonl").write_bytes(content)
        return json_lines(folder)
    return [row if isinstance(row, dict) else {"messages": row} for row in rows]


def write_odd_parquet(folder: Path) -> None:
    parquet.write_table(pa.table({"text": TEXTS}), folder / "rows.parquet")


def odd_columns(folder: Path, draw: random.Random) -> None:
    """Put columns of other types beside the text, or the text into another type."""
    values = {
        "when": pa.array([draw.choice((0, 2**40, 2**55, -(2**55)))] * 12, pa.timestamp(draw.choice(("ms", "us")))),
        "zone": pa.array([0] * 12, pa.timestamp("us", tz=draw.choice(("UTC", "Mars/Olympus", "+25:99")))),
        "day": pa.array([draw.choice((0, 2**30))] * 12, pa.date32()),
        "time": pa.array([draw.choice((0, 2**46))] * 12, pa.time64("us")),
        "money": pa.array([10**30] * 12, pa.decimal256(60, 2)),
        "bytes": pa.array([draw.randbytes(3)] * 12),
        "map": pa.array([[("a", 1), ("a", 2)]] * 12, pa.map_(pa.string(), pa.int8())),
        "half": pa.array(np.zeros(12, np.float16)),
        "null": pa.nulls(12),
        "struct": pa.array([{"a": {"b": [1, None]}}] * 12),
        "big": pa.array([2**64 - 1] * 12, pa.uint64()),
        "span": pa.array([2**62] * 12, pa.duration("us")),
        "list": pa.array([[["x"]]] * 12),
        "messages": pa.array([[{"role": "user"}]] * 12),
        "tools": pa.array(["[" * 300] * 12),
    }
    names = draw.sample(sorted(values), draw.randrange(1, 6))
    table = pa.table({"text": TEXTS})
    if draw.random() < 0.5:
        kind = draw.choice((pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string()), pa.string_view()))
        with contextlib.suppress(pa.ArrowException):
            table = pa.table({"text": pa.array(TEXTS).cast(kind)})
    for name in names:
        table = table.append_column(name, values[name])
    with contextlib.suppress(pa.ArrowException):
        parquet.write_table(table, folder / "rows.parquet", compression=draw.choice(("zstd", "snappy", "none")))
    if draw.random() < 0.2:
        repeated = pa.DictionaryArray.from_arrays(
            pa.array([0] * draw.choice((10, 1_000, 100_000)), pa.int32()),
            pa.array(["x" * draw.choice((10, 10**6, 10**8))]),
        )
        parquet.write_table(pa.table({"text": repeated}), folder / "rows.parquet", compression="zstd")


def column_of_texts(folder: Path) -> list[str]:
    return parquet.read_table(folder / "rows.parquet", columns=["text"])["text"].cast(pa.string()).to_pylist()


def corpus_texts(name: str):
    def read(folder: Path) -> list[str]:
        return [row["text"] for row in load_corpus(folder / name, test_fraction=0.0)]

    return read


def corpus_chats(folder: Path) -> list[Any]:
    return [row["messages"] for row in load_corpus(folder / "rows.jsonl", test_fraction=0.0, kind="conversations")]


def chats(folder: Path) -> list[Any]:
    roles = {**ROLE_NAMES, "SYSTEM": "system", "USER": "user", "ASSISTANT": "assistant"}
    rows = [
        [{"role": roles[message["role"]], "content": message["content"] or ""} for message in row["messages"]]
        for row in json_lines(folder)
    ]
    assert all(message["content"] not in (None, 0, {}) for row in json_lines(folder) for message in row["messages"])
    assert all(isinstance(message["content"], str) for row in rows for message in row)
    return [row for row in rows if any(message["content"] for message in row)]


def tensors(seed: int) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    shapes = {"a": (3, 4), "b": (5,), "c": (2, 2, 2), "empty": (0, 3)}
    values = {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}
    return values | {"half": values["a"].bfloat16(), "count": torch.arange(3), "one": torch.tensor(1.5)}


def write_weights(folder: Path) -> None:
    save_file(tensors(0), folder / "model.safetensors")


def weights(folder: Path) -> Any:
    return _listed(read_weights(folder))


def _listed(values: dict[str, torch.Tensor]) -> Any:
    return [(name, str(values[name].dtype), values[name].tolist()) for name in sorted(values)]


def weights_by_library(folder: Path) -> Any:
    return _listed(load_file(folder / "model.safetensors"))


def write_run(folder: Path) -> None:
    for step in (10, 20):
        checkpoint = folder / f"checkpoint-{step}"
        checkpoint.mkdir()
        for number in (1, 2):
            part = {f"{name}{number}": value for name, value in tensors(step + number).items()}
            save_file(part, checkpoint / f"model-0000{number}-of-00002.safetensors")
        names = {f"{name}{n}": f"model-0000{n}-of-00002.safetensors" for n in (1, 2) for name in tensors(0)}
        index = {"metadata": {"total_size": 1}, "weight_map": names}
        (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))
        (checkpoint / "trainer_state.json").write_text(
            json.dumps({"global_step": step, "log_history": [{"loss": 1.5}]})
        )
        (checkpoint / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 32}))
        identity = {"written_by": {"processes": 1, "framework": "plain data parallelism"}}
        (checkpoint / "identity.json").write_text(json.dumps(identity))
        torch.save({"a": torch.zeros(3)}, checkpoint / "optimizer.pt")
        torch.save({"a": torch.zeros(3)}, checkpoint / "rng_state.pth")


def newest(folder: Path) -> list[str]:
    return [path.name for path in good_checkpoints(folder)]


def damage_newest(folder: Path, draw: random.Random) -> None:
    damage_folder(folder / "checkpoint-20", draw)


TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@functools.cache
def small_tokenizer() -> Any:
    return train_bpe(TEXTS * 3, 290, show_progress=False)


def write_tokenizer(folder: Path) -> None:
    tokenizer = small_tokenizer()
    tokenizer.save_pretrained(folder)


def encoded(folder: Path) -> list[Any]:
    tokenizer = load_pretrained(AutoTokenizer, str(folder))
    turns = encode_conversation(tokenizer, CHATS[0]["messages"]) if tokenizer.chat_template else []
    return [encode_texts(tokenizer, TEXTS[:2]), list(turns)]


def encoded_by_transformers(folder: Path) -> list[Any]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    template = tokenizer.chat_template
    turns = tokenizer.apply_chat_template(CHATS[0]["messages"], return_dict=False) if template else []
    how = {"add_special_tokens": False, "split_special_tokens": True}
    return [[tokenizer.encode(text, **how) for text in TEXTS[:2]], list(turns)]


def write_model(folder: Path) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=290, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, tie_word_embeddings=True, bos_token_id=0, eos_token_id=0, max_position_embeddings=64
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)


def model(folder: Path) -> Any:
    return _logits(load_pretrained(AutoModelForCausalLM, str(folder)))


def model_by_transformers(folder: Path) -> Any:
    return _logits(AutoModelForCausalLM.from_pretrained(folder))


def _logits(loaded: Any) -> Any:
    with torch.no_grad():
        return loaded(input_ids=torch.tensor([[1, 2, 3]])).logits.float().sum((0, 2)).tolist()


def write_gguf(folder: Path) -> None:
    write_model(folder)
    save_gguf(LlamaForCausalLM.from_pretrained(folder), small_tokenizer(), folder / "tiny.gguf")
    for path in folder.iterdir():
        if path.suffix != ".gguf":
            path.unlink()


def header(folder: Path) -> Any:
    return read_header(folder / "tiny.gguf")


def gguf_model(folder: Path) -> Any:
    path = str(folder / "tiny.gguf")
    tokens = encode_texts(load_pretrained(AutoTokenizer, path), TEXTS[:1])
    return [_logits(load_pretrained(AutoModelForCausalLM, path)), tokens]


def gguf_by_transformers(folder: Path) -> Any:
    loaded = AutoModelForCausalLM.from_pretrained(folder, gguf_file="tiny.gguf", dtype=torch.float32)
    tokens = encode_texts(load_pretrained(AutoTokenizer, str(folder / "tiny.gguf")), TEXTS[:1])
    return [_logits(loaded), tokens]


def write_yaml(folder: Path) -> None:
    lines = ["model: 10m", "learning_rate: 1e-3", "corpus: [a.txt, b.txt]", "text: &x {a: 1, b: *x}"]
    (folder / "settings.yaml").write_text("\n".join(lines[:3]) + "\nnested: {a: {b: [1, 2]}}\n")


def settings(folder: Path) -> Any:
    return read_yaml(folder / "settings.yaml")


def settings_by_yaml(folder: Path) -> Any:
    return yaml.safe_load((folder / "settings.yaml").read_text(encoding="utf-8-sig"))


KINDS = (
    Kind("text", write_texts, rows_of("rows.txt"), texts),
    Kind("JSON Lines", write_jsonl, rows_of("rows.jsonl"), json_lines),
    Kind("JSON", write_json, rows_of("rows.json"), json_rows),
    Kind("CSV", write_csv, rows_of("rows.csv"), csv_rows),
    Kind("JSON Lines in gzip", compressed("gz"), rows_of("rows.jsonl.gz"), compressed_lines("gz")),
    Kind("JSON Lines in zstd", compressed("zst"), rows_of("rows.jsonl.zst"), compressed_lines("zst")),
    Kind("Parquet", write_parquet, rows_of("rows.parquet"), parquet_rows),
    Kind("columns of Parquet", write_odd_parquet, corpus_texts("rows.parquet"), column_of_texts, odd_columns),
    Kind("conversations", write_jsonl, corpus_chats, chats),
    Kind("arrays (.npz)", write_npz, archive_tables, npz_tables),
    Kind(
        "tokens (.npy)",
        write_npy,
        lambda folder: read_token_rows(folder / "tokens.npy").tokens.tolist(),
        lambda folder: np.load(folder / "tokens.npy", allow_pickle=False).tolist(),
    ),
    Kind(
        "weights (safetensors)",
        write_weights,
        weights,
        lambda folder: _listed(load_file(folder / "model.safetensors")),
    ),
    Kind("newest checkpoint", write_run, newest, lambda folder: ["checkpoint-10"], damage_newest),
    Kind("model folder", write_model, model, model_by_transformers),
    Kind("GGUF header", write_gguf, header, header),
    Kind("GGUF", write_gguf, gguf_model, gguf_by_transformers),
    Kind("tokenizer folder", write_tokenizer, encoded, encoded_by_transformers),
    Kind("settings (YAML)", write_yaml, settings, settings_by_yaml),
)

if __name__ == "__main__":
    datasets.disable_progress_bars()
    sys.exit(main("fuzz.foreign_files", KINDS))
