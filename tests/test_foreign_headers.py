"""Counts, lengths and types in headers of safetensors, GGUF and NumPy files are compared with the file."""

import json
import struct
import zipfile

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from hmm_datasets.compat.gguf import GGUFHeaderReader
from hmm_datasets.errors import InputError
from hmm_datasets.foreign.arrays import load_archive, load_array
from hmm_datasets.foreign.tensors import tensor_names
from hmm_datasets.hub.gguf import read_header
from hmm_datasets.training.checkpoints.inspection import good_checkpoints, verify_checkpoint


def test_the_tensors_of_a_file_are_named_and_their_bytes_counted(tmp_path):
    values = {"b": torch.zeros(2, 3), "a": torch.ones(4, dtype=torch.bfloat16), "none": torch.zeros(0, 2)}
    save_file(values, tmp_path / "x.safetensors", {"format": "pt"})
    names, num_bytes = tensor_names(tmp_path / "x.safetensors")
    assert (sorted(names), num_bytes) == (["a", "b", "none"], 2 * 3 * 4 + 4 * 2)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [-1], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": "2", "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2], "data_offsets": ["0", "8"]},
        {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]},
        {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 8]},
        {"dtype": 3, "shape": [2], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2]},
        [],
        "DIGITS",
        "LEVELS",
    ],
)
def test_a_newest_checkpoint_with_a_damaged_header_is_passed_over(entry, tmp_path):
    for step in (1, 2):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        save_file({"a": torch.zeros(2)}, folder / "model.safetensors")
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    header = json.dumps({"a": entry}).replace('"DIGITS"', "1" * 5_000).replace('"LEVELS"', "[" * 10_000 + "]" * 10_000)
    content = struct.pack("<Q", len(header)) + header.encode() + bytes(8)
    (folder / "model.safetensors").write_bytes(content)
    assert [path.name for path in good_checkpoints(tmp_path)] == ["checkpoint-1"]
    assert "not a whole safetensors file" in verify_checkpoint(folder).problems[0]


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def header(*fields, tensors=0, count=None):
    head = b"GGUF" + struct.pack("<IQQ", 3, tensors, len(fields) if count is None else count)
    return head + b"".join(text(name) + struct.pack("<I", kind) + content for name, kind, content in fields)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (header(("general.alignment", 4, struct.pack("<I", 0))), "Invalid alignment"),
        (header(("general.alignment", 8, text("32"))), "Bad type for general.alignment"),
        (header(("general.license", 9, struct.pack("<IQ", 8, 0))), r"general.license is \[\], expected text"),
        (header(count=2**31), "expected at least 32 bytes, found 24"),
        (header(tensors=2**31), "expected at least 32 bytes, found 24"),
        (header(("a", 9, struct.pack("<IQ", 4, 2**31))), "expected at least 8,589,934,641 bytes, found 49"),
        (header(("a", 9, struct.pack("<IQ", 8, 2**31))), "requires a buffer of at least 57 bytes"),
        (header(("a", 9, struct.pack("<IQ", 8, 1) + struct.pack("<Q", 9))), "expected at least 66 bytes, found 57"),
        (header(("a", 8, struct.pack("<Q", 2**63))), "expected at least 9,223,372,036,854,775,853 bytes, found 45"),
        (header(("a", 9, struct.pack("<IQ", 9, 1))), "not a whole GGUF file"),
        (header(("a", 99, b"")), "is not a valid GGUFValueType"),
        (header(tensors=1) + text("t") + struct.pack("<I", 2**31) + bytes(40), "expected at least 17,179,869,221"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1 which we cannot handle"),
        (b"", "empty"),
    ],
)
def test_counts_in_a_gguf_header_are_compared_with_the_file(content, message, tmp_path):
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_header(tmp_path / "x.gguf")
    assert "\n" not in str(caught.value)


def with_member(name, content):
    def write(path):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(name, content)

    return write


def encrypted(path):
    """An archive of one member that is marked as encrypted."""
    np.savez(path, start=np.ones(2))
    content = bytearray(path.read_bytes())
    for mark, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(mark) + flags] |= 1
    path.write_bytes(content)


@pytest.mark.outside(
    "https://github.com/mybigday/llama.rn/pull/87",
    "the metadata of a GGUF file without the time that its vocabulary takes",
    "strings of arrays are passed over, and the fields beside them and the tensors are read",
)
def test_the_vocabulary_of_a_gguf_file_is_passed_over(tmp_path):
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_token_list([f"word {number}" for number in range(5000)])
    writer.add_block_count(1)
    writer.add_tensor("output.weight", np.zeros((4, 8), np.float32))
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
    reader = GGUFHeaderReader(path)
    assert len(gguf.GGUFReader(path).fields["tokenizer.ggml.tokens"].data) == 5000
    assert reader.fields["tokenizer.ggml.tokens"].data == []
    assert reader.fields["llama.block_count"].contents() == 1, "which comes after it"
    assert [tensor.name for tensor in reader.tensors] == ["output.weight"]


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (encrypted, "is encrypted"),
        (with_member("start.npy", b"\x93NUMPY\x01\x00v\x00{'a': ("), "not a complete"),
        (with_member("start.txt", b"x"), "the member 'start.txt' is no array"),
        (lambda path: path.write_bytes(b"PK\x03\x04"), "not a complete .npz file of numbers"),
    ],
)
def test_a_damaged_archive_of_arrays_is_refused_in_one_line(write, message, tmp_path):
    write(tmp_path / "x.npz")
    with pytest.raises(InputError, match=message):
        load_archive(tmp_path / "x.npz")


@pytest.mark.parametrize(
    "header", ["{'descr': '<f8', 'shape': (", "{'descr': '<f8', 'fortran_order': False, 'shape': (99,), }"]
)
def test_a_damaged_array_is_refused_in_one_line(header, tmp_path):
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode())
    with pytest.raises(InputError, match=r"x\.npy: not a complete \.npy file of numbers"):
        load_array(tmp_path / "x.npy")
