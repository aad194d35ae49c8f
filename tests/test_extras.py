"""Without an extra, what needs it names the extra in one line, or does without it and warns."""

import importlib.metadata
import logging
import re
import runpy
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from secret_forms import secret_forms

from hmm_datasets import HMM, InputError, processes
from hmm_datasets.hub import gguf, secret_scan
from hmm_datasets.operations.launching import _read_launch
from hmm_datasets.operations.sweeps import slurm
from hmm_datasets.operations.sweeps.cells import prepare
from hmm_datasets.operations.sweeps.file import read_sweep
from hmm_datasets.text.tokenizers import encoding
from hmm_datasets.text.tokenizers.bpe import train_bpe
from hmm_datasets.training.post_training.lora import LoRASettings, lora_config

ROOT = Path(__file__).parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def launch(_folder: Path) -> None:
    _read_launch("zero2", [], str(ROOT / "recipes" / "pretrain.py"))


def submit(folder: Path) -> None:
    (folder / "sweep.yaml").write_text(f"recipe: pretrain\noutput_dir: {folder}/sweep\ncells: [{{seed: 1}}]\n")
    sweep = read_sweep(folder / "sweep.yaml")
    slurm.submit(sweep, prepare(sweep), {})


def tokenize(folder: Path) -> None:
    recipe = runpy.run_path(str(ROOT / "recipes" / "tokenize_with_datatrove.py"))
    settings = recipe["ClusterSettings"](corpus="text", tokenizer="tokenizer", output_dir=str(folder))
    recipe["main"](settings)


NEEDED = (
    ("deepspeed", launch, "--launch zero2: .*deepspeed"),
    ("pomegranate", lambda _: processes.mess3().to_pomegranate(), "pomegranate: .*pomegranate"),
    ("pomegranate", lambda _: HMM.from_pomegranate(None), "pomegranate: .*pomegranate"),
    ("hmmlearn", lambda _: processes.mess3().to_hmmlearn(), "hmmlearn: .*hmmlearn"),
    ("hmmlearn", lambda _: HMM.from_hmmlearn(None), "hmmlearn: .*hmmlearn"),
    ("datatrove", tokenize, "--executor: .*datatrove"),
    ("peft", lambda _: lora_config(LoRASettings(use_peft=True)), "use_peft: .*peft"),
    ("gguf", lambda folder: gguf.read_header(folder / "model.gguf"), r"model\.gguf: .*gguf"),
    ("slurm", submit, "--slurm: .*submitit"),
)
"""An extra, what needs it, and the beginning of the error."""

PACKAGES = {"slurm": "submitit", "secrets": "kingfisher_sdk"}


@pytest.fixture
def without(monkeypatch):
    """Makes an extra look as if it were not installed."""

    def hide(extra: str) -> None:
        package = PACKAGES.get(extra, extra)
        for name in [name for name in sys.modules if name.partition(".")[0] == package]:
            monkeypatch.delitem(sys.modules, name)
        for name in ("text.stream.datatrove_steps", "compat.gguf"):
            monkeypatch.delitem(sys.modules, f"hmm_datasets.{name}", raising=False)
        monkeypatch.setitem(sys.modules, package, None)
        version = importlib.metadata.version

        def versions(name: str) -> str:
            if name == package:
                raise importlib.metadata.PackageNotFoundError(name)
            return version(name)

        monkeypatch.setattr(importlib.metadata, "version", versions)

    return hide


def test_all_extras_are_tried():
    """`serve` has no code of this package: it is the server of transformers."""
    listed = EXTRAS["all"][0].partition("[")[2].rstrip("]").split(",")
    assert {*(extra for extra, *_ in NEEDED), "fastokens", "secrets", "serve"} == set(listed)


@pytest.mark.outside(
    "https://github.com/pypa/pip/issues/12516",
    "pip install evaluate[evaluater] to fail, where it warned and installed nothing more",
    "every extra that a message, a recipe or a page names is one that there is",
)
def test_every_extra_that_is_named_exists():
    named = set()
    for folder, kind in (("hmm_datasets", "py"), ("recipes", "py"), ("recipes", "md"), ("docs", "md"), (".", "md")):
        for path in (ROOT / folder).glob(f"*.{kind}" if folder == "." else f"**/*.{kind}"):
            for listed in re.findall(r"hmm-datasets\[([\w,-]+)\]", path.read_text(encoding="utf-8")):
                named |= set(listed.split(","))
    assert len(named) > 5
    assert named <= EXTRAS.keys()


@pytest.mark.outside(
    "https://github.com/inductiva/inductiva/issues/770",
    "the cause, where a package that is there and cannot be imported was reported as missing",
    "the line has the error of the import",
)
@pytest.mark.outside(
    "https://github.com/SeldonIO/alibi/pull/652",
    "the extra of what was called, where it was that of whichever module was missing",
    "what needs the extra is asked for the extra; a dependency of its package that is missing changes nothing",
)
def test_a_package_that_cannot_be_imported_is_named_with_the_cause(monkeypatch, tmp_path):
    (tmp_path / "submitit.py").write_text("import no_such_pickle\n")
    monkeypatch.delitem(sys.modules, "submitit", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    expected = r"--slurm: No module named 'no_such_pickle'; pip install 'hmm-datasets\[slurm\]'"
    with pytest.raises(InputError, match=expected):
        submit(tmp_path)


@pytest.mark.outside(
    "https://github.com/litestar-org/litestar/pull/2921",
    "pip install litestar[jinja2], an extra that is called otherwise",
    "the extra is named, also where its package has another name, such as submitit of `slurm`",
)
@pytest.mark.parametrize(("extra", "use", "begins"), NEEDED)
def test_what_needs_an_extra_names_it(extra, use, begins, without, tmp_path):
    without(extra)
    with pytest.raises(InputError, match=rf"^.*{begins}.*; pip install 'hmm-datasets\[{extra}\]'$"):
        use(tmp_path)


def test_without_fastokens_the_tokens_are_the_same(without, caplog):
    tokenizer = train_bpe(["low lower lowest"] * 9, 266, show_progress=False)
    texts = ["low", "", "lower", "lowest low"]
    expected = encoding.Encoder(tokenizer).encode_batch(texts)
    without("fastokens")
    encoding._warn_of_slower_encoding.cache_clear()
    encoder = encoding.Encoder(tokenizer)
    assert encoder.backend == "tokenizers"
    assert "pip install 'hmm-datasets[fastokens]'" in caplog.text
    for found, wanted in zip(encoder.encode_batch(texts), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_without_the_scanner_known_secrets_are_found_and_a_warning_names_the_rest(without, caplog, tmp_path):
    form = next(iter(secret_forms().values()))
    (tmp_path / "own").write_text("token: swordfish-of-mine")
    (tmp_path / "other").write_text(f"token: {form}")
    without("secrets")
    secret_scan._scanner.cache_clear()
    try:
        with caplog.at_level(logging.WARNING):
            assert secret_scan.find_secret(tmp_path / "own", ["swordfish-of-mine"])
            assert not secret_scan.find_secret(tmp_path / "other", ["swordfish-of-mine"])
        assert "pip install 'hmm-datasets[secrets]'" in caplog.text
    finally:
        secret_scan._scanner.cache_clear()
