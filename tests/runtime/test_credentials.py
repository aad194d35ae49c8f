"""Secrets are found and masked; text that only resembles one is not changed."""

import bz2
import gzip
import hashlib
import io
import json
import lzma
import pickle
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from hmm_datasets.runtime.credentials import holds_secret, known_secrets, masked, masked_arguments

LETTERS = "aBcDeFgHiJkLmNoPqRsTuVwXyZ01234567"
SECRETS = {
    "Hugging Face": f"hf_{LETTERS}",
    "GitHub": f"ghp_{LETTERS}ab",
    "OpenAI": f"sk-proj-{LETTERS}",
    "AWS": "AKIAABCDEFGHIJKLMNOP",
    "W&B": "WANDB_API_KEY=" + hashlib.sha1(b"key").hexdigest(),
    "W&B in JSON": json.dumps({"wandb_api_key": hashlib.sha1(b"key").hexdigest()}),
    "private key": "-----BEGIN OPENSSH PRIVATE KEY-----\nabc",
}


@pytest.mark.parametrize("name", SECRETS)
def test_text_that_holds_a_secret_is_found(tmp_path, name):
    path = tmp_path / "run.log"
    path.write_text("many words " * 200_000 + SECRETS[name] + "\n")  # beyond the first piece that is read
    assert holds_secret(path)


def test_what_a_run_writes_and_holds_no_secret_gives_no_alarm(tmp_path):
    generator = np.random.default_rng(0)
    (tmp_path / "random.bin").write_bytes(generator.bytes(1 << 22))
    save_file({"weight": torch.randn(500, 500)}, tmp_path / "model.safetensors")
    torch.save({"state": torch.randn(500, 500), "step": 3}, tmp_path / "optimizer.pt")
    commit, digest = hashlib.sha1(b"commit").hexdigest(), hashlib.sha256(b"data").hexdigest()
    record = {"commit": commit, "data": {"tokens": digest}, "settings": {"hub_token": "<HUB_TOKEN>", "seed": 1}}
    record |= {"tokenizer_hash": digest, "pad_token": "<|endoftext|>", "num_input_tokens_seen": 1234567890123456}
    (tmp_path / "run.json").write_text(json.dumps(record, indent=2))
    (tmp_path / "code.py").write_text("token = hf_hub_download(token=os.environ['HF_TOKEN'])\napi_key = get_key()\n")
    assert [path.name for path in tmp_path.iterdir() if holds_secret(path)] == []


def test_secrets_in_pickles_and_headers_are_found(tmp_path):
    settings = {"hub_token": f"hf_{LETTERS}"}
    torch.save({"settings": settings, "weights": torch.randn(100)}, tmp_path / "archive.pt")
    (tmp_path / "bare.pkl").write_bytes(pickle.dumps(settings))
    save_file({"weight": torch.zeros(2)}, tmp_path / "model.safetensors", metadata=settings)
    assert zipfile.is_zipfile(tmp_path / "archive.pt")
    assert all(holds_secret(path) for path in tmp_path.iterdir())


def test_a_value_of_no_known_shape_is_found_where_the_environment_holds_it(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("log in with correct-horse-battery")
    assert not holds_secret(path)
    environment = {"MY_TOKEN": "correct-horse-battery", "TOKENIZERS_PARALLELISM": "false", "HOME": "/home/somebody"}
    assert known_secrets(environment) == ["correct-horse-battery"]
    assert holds_secret(path, known_secrets(environment))


def test_flags_of_special_tokens_are_not_masked():
    arguments = ["--eos_token", "<|end|>", "--hub_token", "mine", "--pad_token=<|pad|>", "--push_to_hub_token=mine"]
    assert masked_arguments(arguments) == [
        *("--eos_token", "<|end|>", "--hub_token", "<HUB_TOKEN>"),
        *("--pad_token=<|pad|>", "--push_to_hub_token=<PUSH_TO_HUB_TOKEN>"),
    ]


def test_a_mapping_keeps_its_shape_under_the_mask():
    value = {"model_init_kwargs": {"token": "mine"}, "hub_token": None, "sizes": (1, 2.5), "note": ["ghp_" + LETTERS]}
    assert masked(value, []) == {
        "model_init_kwargs": {"token": "<TOKEN>"},
        "hub_token": None,
        "sizes": [1, 2.5],
        "note": ["<SECRET>"],
    }


def zipped(content: bytes, compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        archive.writestr("member", content)
    return file.getvalue()


FORMS = {
    "plain": lambda content: content,
    "UTF-16": lambda content: content.decode().encode("utf-16"),
    "UTF-16, big end first": lambda content: content.decode().encode("utf-16-be"),
    "UTF-32": lambda content: content.decode().encode("utf-32"),
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zip": zipped,
    "zip, stored": lambda content: zipped(content, zipfile.ZIP_STORED),
    "gzip in zip, stored": lambda content: zipped(gzip.compress(content), zipfile.ZIP_STORED),
    "zip in gzip": lambda content: gzip.compress(zipped(content)),
    "UTF-16 in gzip": lambda content: gzip.compress(content.decode().encode("utf-16")),
    "zip after a program": lambda content: b"#!/bin/sh\n" + zipped(content),
}


@pytest.mark.parametrize("secret", [*SECRETS.values(), "https://hooks.slack.com/services/T0123/B0123/abcdefghijkl"])
@pytest.mark.parametrize("form", FORMS)
def test_a_secret_is_found_wherever_it_is_in_a_file_of_any_form(tmp_path, form, secret):
    noise = b"\0\xff" * (1 << 19) if form in ("plain", "gzip", "zip") else b"many words " * 100
    (tmp_path / "file").write_bytes(FORMS[form](noise + b"\n" + secret.encode() + b"\n" + noise))
    (tmp_path / "other").write_bytes(FORMS[form](noise + b"\n" + b"no secret" + b"\n" + noise))
    assert holds_secret(tmp_path / "file")
    assert not holds_secret(tmp_path / "other")


def test_a_secret_at_the_edge_of_what_is_read_at_once_is_found(tmp_path):
    for shift in range(-40, 10, 7):
        (tmp_path / "file").write_bytes(b" " * (2**20 + shift) + f"hf_{LETTERS}".encode() + b" " * 10)
        assert holds_secret(tmp_path / "file")
        (tmp_path / "file").write_bytes(b"." * (2**20 + shift) + b" correct-horse-battery")
        assert holds_secret(tmp_path / "file", ["correct-horse-battery"])


def test_damaged_archives_are_searched_as_they_are(tmp_path):
    for form in ("gzip", "xz", "zip", "zip in gzip"):
        content = FORMS[form](b"words " * 1000)
        for cut in range(2, len(content), 7):
            (tmp_path / "file").write_bytes(content[:cut])
            assert not holds_secret(tmp_path / "file")
            (tmp_path / "file").write_bytes(content[:cut] + f" hf_{LETTERS}".encode())
            assert holds_secret(tmp_path / "file")


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["HF_TOKEN=mine-1", "python", "x.py"], ["HF_TOKEN=<SECRET>", "python", "x.py"]),
        (["sh", "-c", "WANDB_API_KEY='mine-1' python x"], ["sh", "-c", "WANDB_API_KEY='<SECRET>' python x"]),
        (["--webhook", "https://h/mine-1"], ["--webhook", "<WEBHOOK>"]),
        (["--command=curl -H 'Authorization: Bearer mine-1'"], ["--command=curl -H 'Authorization: Bearer <SECRET>'"]),
        (["git", "https://me:mine-1@h/x"], ["git", "https://<SECRET>@h/x"]),
        (["https://hooks.example.org/a/mine-1"], ["https://hooks.example.org/<SECRET>"]),
        (["--eos_token=</s>", "--max_tokens", "9", "key=1"], ["--eos_token=</s>", "--max_tokens", "9", "key=1"]),
    ],
)
def test_a_command_line_is_shown_without_its_secrets(words, kept):
    assert masked_arguments(words) == kept
