"""The notebooks in `docs/notebooks` are stored with complete outputs, and run from beginning to end."""

import ast
import importlib
import importlib.util
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason='pip install "hmm-datasets[notebooks]"')
pytest.importorskip("nbclient", reason='pip install "hmm-datasets[notebooks]"')
from IPython.core.inputtransformer2 import TransformerManager  # noqa: E402

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
ON_RENTED = ("colab", "kaggle")
WITHOUT_PICTURES = {"push_and_load"}
NEEDED = {"interpretability": ("transformer_lens", "nnsight")}  # what no extra installs
LARGEST = 500_000  # bytes

# Folders of a machine, its addresses, and names of temporary files of a kernel.
_PLACES = re.compile(
    r"(?<![\w.<])/(?:tmp|home|root|Users|var|opt|usr|work|mnt)/|localhost|\d+\.\d+\.\d+\.\d+|:\d{4,5}/"
)


def read(name):
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def code_cells(name):
    return [cell for cell in read(name).cells if cell.cell_type == "code"]


def outputs(name):
    return [output for cell in code_cells(name) for output in cell.outputs]


def shown_text(name):
    """What the outputs show as text, pictures apart."""
    parts = []
    for output in outputs(name):
        if output.output_type == "stream":
            parts.append(output.text)
        else:
            parts += [value for kind, value in output.get("data", {}).items() if kind.startswith("text/")]
    return "\n".join(parts)


@pytest.fixture(scope="module")
def execute():
    spec = importlib.util.spec_from_file_location("execute", FOLDER / "execute.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.execute


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_valid_small_and_was_executed_from_beginning_to_end(name):
    nbformat.validate(read(name))
    assert [cell.execution_count for cell in code_cells(name)] == list(range(1, len(code_cells(name)) + 1))
    assert (FOLDER / f"{name}.ipynb").stat().st_size < LARGEST


@pytest.mark.parametrize("name", NAMES)
def test_outputs_hold_no_error_no_warning_and_no_progress_bar(name):
    assert not [output for output in outputs(name) if output.output_type == "error"]
    assert not [output.text for output in outputs(name) if output.get("name") == "stderr"]
    assert "Warning" not in shown_text(name)
    assert "%|" not in shown_text(name)


@pytest.mark.parametrize("name", sorted({*NAMES} - WITHOUT_PICTURES))
def test_a_notebook_keeps_its_pictures(name):
    assert [output for output in outputs(name) if "image/png" in output.get("data", {})]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_of_the_machine_is_kept(name):
    whole = "\n".join(cell.source for cell in read(name).cells) + shown_text(name)
    assert not _PLACES.findall(whole)
    hosts = {platform.node(), platform.node().partition(".")[0]} - {"", "localhost"}
    assert not [host for host in hosts if len(host) > 3 and host in whole]
    assert str(FOLDER.parents[1]) not in whole
    assert os.path.expanduser("~") not in whole


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_imports_names_that_exist(name):
    found = 0
    python = map(TransformerManager().transform_cell, (cell.source for cell in code_cells(name)))  # of `!` and `%pip`
    for node in ast.walk(ast.parse("\n".join(python))):
        if isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] == "hmm_datasets":
            module = importlib.import_module(node.module)
            missing = [alias.name for alias in node.names if not hasattr(module, alias.name)]
            assert not missing, f"{node.module} has no {', '.join(missing)}"
            found += 1
    assert found


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_begins_with_what_to_expect_and_ends_with_its_assertions(name):
    first, *_, last = read(name).cells
    assert first.cell_type == "markdown"
    assert first.source.startswith("# ")
    assert "xpect" in first.source or "You will see" in first.source
    assert last.source.count("assert ") > 1


def device_cell(name, folder, gpus):
    """What the cell about the device prints where the driver lists these GPUs, and the libraries that it loads."""
    nvidia_smi = folder / "nvidia-smi"
    nvidia_smi.write_text(f"#!/bin/sh\necho '{gpus}'\n")
    nvidia_smi.chmod(0o755)
    cell = next(cell.source for cell in code_cells(name) if "find_device" in cell.source)
    ends = "import sys\nprint(*sorted({'torch', 'numpy', 'transformers'} & set(sys.modules)), 'loaded')"
    environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    script = ["-c", f"import importlib.util\n{cell}\n{ends}"]
    ran = subprocess.run([sys.executable, *script], env=environment, capture_output=True, text=True, check=True)
    return ran.stdout.splitlines()


@pytest.mark.outside(
    "https://github.com/unslothai/unsloth/issues/2783",
    "example notebooks on a T4, which ended in: Your setup doesn't support bf16/gpu",
    "the notebooks look the card up, and compute in float16 on one without bfloat16",
)
@pytest.mark.outside(
    "https://github.com/2U1/Phi3-Vision-Finetune/issues/21",
    "train on a P100 of Kaggle with settings for bfloat16",
    "the notebooks look the card up, and compute in float16 on one without bfloat16",
)
@pytest.mark.outside(
    "https://github.com/huggingface/accelerate/issues/3833",
    "two GPUs of Kaggle by notebook_launcher, where the kernel had initialized CUDA",
    "commands start processes of their own, one for each GPU, and the kernel loads no torch",
)
@pytest.mark.outside(
    "https://github.com/googlecolab/colabtools/issues/5115",
    "pip replaces the numpy that Colab has loaded, 2.0.2",
    "cells of the kernel load no numpy, commands run in processes of their own, and torch stays as it is",
)
@pytest.mark.thorough
@pytest.mark.parametrize("name", ON_RENTED)
def test_a_notebook_fits_its_settings_to_the_card_and_loads_no_torch(name, tmp_path):
    for gpus, suits in (
        ("Tesla T4\nTesla T4", True),
        ("Tesla P100-PCIE-16GB", True),
        ("NVIDIA A100-SXM4-40GB", False),
    ):
        printed, loaded = device_cell(name, tmp_path, gpus)
        assert printed.startswith(f"{gpus.replace(chr(10), ', ')}: --corpus tinystories ")
        assert printed.endswith(" --fp16 true'") == suits
        assert loaded == "loaded"
    install, *_ = code_cells(name)
    assert "torch=={TORCH}" in install.source


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_in_an_empty_folder_and_its_claims_hold(name, execute, tmp_path):
    for needed in NEEDED.get(name, ()):
        pytest.importorskip(needed)
    assert not errors_of(execute(name, folder_in(tmp_path)))  # an assertion that fails is raised


@pytest.mark.slow
def test_without_a_hub_the_push_is_left_out_and_folders_are_loaded(execute, tmp_path, monkeypatch):
    for name in ("HF_TOKEN", "HF_USER"):
        monkeypatch.delenv(name, raising=False)
    executed = execute("push_and_load", folder_in(tmp_path), offline=True)
    assert not errors_of(executed)
    first, *_ = (output.text for cell in executed.cells for output in cell.get("outputs", []))
    assert first.startswith("nothing is pushed")


def folder_in(tmp_path):
    folder = tmp_path / "empty"
    folder.mkdir()
    return folder


def errors_of(executed):
    """What an executed notebook wrote to stderr, progress bars apart."""
    kept = [output for cell in executed.cells for output in cell.get("outputs", [])]
    return [output.text for output in kept if output.get("name") == "stderr"]
