"""Files with a secret of any form, however packed, are not pushed; text that only resembles one is."""

import bz2
import gzip
import hashlib
import io
import json
import lzma
import pickle
import tarfile
import zipfile

import numpy as np
import pyarrow
import pytest
import torch
from safetensors.torch import save_file
from secret_forms import secret_forms

from hmm_datasets.hub.secret_scan import find_secret
from hmm_datasets.runtime.credentials import known_secrets

TOKEN = secret_forms()["Hugging Face user"]
SECRETS = {
    "Hugging Face": TOKEN,
    "GitHub": secret_forms()["GitHub personal"],
    "W&B": "WANDB_API_KEY=" + hashlib.sha1(b"key").hexdigest(),
    "login": "corpus: https://joe:Pw7xk2@host/x",
    "private key": secret_forms()["SSH private key"],
}


@pytest.mark.thorough
@pytest.mark.parametrize("around", ["{}\n", "see {}, then", "x: 1\nvalue: {}\n", "hub_token: [{}]\n"])
def test_secrets_of_fifty_six_forms_stop_a_push(tmp_path, around):
    (tmp_path / "file").write_text("words\n")
    assert not find_secret(tmp_path / "file")
    missed = []
    for name, secret in secret_forms().items():
        (tmp_path / "file").write_text(around.format(secret))
        missed += [] if find_secret(tmp_path / "file") else [name]
    assert missed == []
    assert len(secret_forms()) == 56


ORDINARY = [
    "global-warming-the-physics-of-the-greenhouse-effect-in-21-chapters",
    "see https://example.org:8080/a@b, http://host/x?y=a:b@c and git@github.com:me/x.git",
    "export HF_TOKEN=$MY_TOKEN; curl -H 'Authorization: Bearer $TOKEN' https://$USER:$PASSWORD@host/x",
    "password: str = field(default=None)  # the password of the 2nd server",
    "sha512-9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a089f86d081884c7d65",
    '{"id": 151643, "content": "<|endoftext|>", "single_word": false, "key": "d41d8cd98f00b204e9800998ecf8427e"}',
    "key-value-memory, cache-key-d41d8cd98f00b204e9800998ecf8427e, token_0123456789abcdef, sk-learn",
    "![x](data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==)",
    "The secret of 1234567890 was the password of nobody; her bearer carried it.",
    '- Bad secret handling:   token := "ghp_..." hardcoded in a test',
    "SLACK_WEBHOOK=https://hooks.slack.com/services/T00/B00/...",
    "verify-token 00000000000000000000000000000000 and 5d41402abc4b2a76b9719d911017c592",
]


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/dsx-ai-factory/workload-map/pull/332",
    'a page that shows `token := "ghp_..."` as a bad example, which scanners of prefixes take for a key',
    "is pushed: a prefix alone is no secret",
)
@pytest.mark.outside(
    "https://github.com/aws-samples/sample-aws-genai-ops-demos/pull/156",
    "addresses of Slack's hooks in documentation, with T00/B00/... in place of their values",
    "are pushed: they have not the length of real ones",
)
@pytest.mark.outside(
    "https://github.com/IBM/mcp-context-forge/pull/6828",
    "32 hexadecimal digits, which are MD5 sums and tokens of sessions, taken for secrets by their shape",
    "are pushed: digits without an issuer are no secret by themselves",
)
@pytest.mark.parametrize("text", ORDINARY)
def test_text_that_only_resembles_a_secret_is_pushed(tmp_path, text):
    (tmp_path / "README.md").write_text(text + "\n")
    assert not find_secret(tmp_path / "README.md")


@pytest.mark.parametrize("name", SECRETS)
def test_text_that_holds_a_secret_is_found(tmp_path, name):
    path = tmp_path / "run.log"
    path.write_text("many words " * 200_000 + SECRETS[name] + "\n")  # beyond the first piece that is read
    assert find_secret(path)


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
    assert [path.name for path in tmp_path.iterdir() if find_secret(path)] == []


def test_secrets_in_pickles_and_headers_are_found(tmp_path):
    settings = {"hub_token": TOKEN}
    (tmp_path / "bare.pkl").write_bytes(pickle.dumps(settings))
    save_file({"weight": torch.zeros(2)}, tmp_path / "model.safetensors", metadata=settings)
    assert all(find_secret(path) for path in tmp_path.iterdir())


def test_a_value_of_no_known_shape_is_found_where_the_environment_holds_it(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("log in with correct-horse-battery")
    assert not find_secret(path)
    environment = {"MY_TOKEN": "correct-horse-battery", "TOKENIZERS_PARALLELISM": "false", "PWD": "/home/somebody"}
    assert known_secrets(environment) == ["correct-horse-battery"]
    assert find_secret(path, known_secrets(environment))


def zipped(content: bytes, compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        archive.writestr("member", content)
    return file.getvalue()


def in_tar(content: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        info = tarfile.TarInfo("member")
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
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
    "gzip in gzip": lambda content: gzip.compress(gzip.compress(content)),
    "gzip in xz": lambda content: lzma.compress(gzip.compress(content)),
    "gzip in tar in gzip": lambda content: gzip.compress(in_tar(gzip.compress(content))),
    "Zstandard": lambda content: pyarrow.compress(content, codec="zstd", asbytes=True),
    "zip after a program": lambda content: b"#!/bin/sh\n" + zipped(content),
}


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/gitleaks/gitleaks/issues/2010",
    "search archives whose names have a suffix that the scanner does not know",
    "ZIP is known by its content; tar, gzip, bzip2 and xz by their usual suffixes alone",
)
@pytest.mark.parametrize("secret", [*SECRETS.values(), secret_forms()["Slack web hook"]])
@pytest.mark.parametrize("form", FORMS)
def test_a_secret_is_found_wherever_it_is_in_a_file_of_any_form(tmp_path, form, secret):
    noise = b"\0\xff" * (1 << 19) if form in ("plain", "gzip", "zip") else b"many words " * 100
    (tmp_path / "file").write_bytes(FORMS[form](noise + b"\n" + secret.encode() + b"\n" + noise))
    (tmp_path / "other").write_bytes(FORMS[form](noise + b"\n" + b"no secret" + b"\n" + noise))
    assert find_secret(tmp_path / "file")
    assert not find_secret(tmp_path / "other")


def test_a_secret_at_the_edge_of_what_is_read_at_once_is_found(tmp_path):
    for shift in range(-40, 10, 7):
        (tmp_path / "file").write_bytes(b" " * (2**20 + shift) + TOKEN.encode() + b" " * 10)
        assert find_secret(tmp_path / "file")
        (tmp_path / "file").write_bytes(b"." * (2**20 + shift) + b" correct-horse-battery")
        assert find_secret(tmp_path / "file", ["correct-horse-battery"])


def test_damaged_archives_are_searched_as_they_are(tmp_path):
    for form in ("gzip", "xz", "zip", "zip in gzip"):
        content = FORMS[form](b"words " * 1000)
        for cut in range(2, len(content), 7):
            (tmp_path / "file").write_bytes(content[:cut])
            assert not find_secret(tmp_path / "file")
            (tmp_path / "file").write_bytes(content[:cut] + f" {TOKEN}".encode())
            assert find_secret(tmp_path / "file")
