import ast
import subprocess
import sys
from pathlib import Path

import pytest

import hmm_datasets

HEAVY = ("torch", "transformers", "datasets", "numba", "pandas", "pyarrow", "matplotlib", "trl", "accelerate")


def child(code: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_the_package_loads_no_heavy_library(child_environment):
    code = f"import sys, hmm_datasets; print([name for name in {HEAVY} if name in sys.modules])"
    assert child(code, child_environment) == "[]"


def test_an_hmm_is_made_saved_and_drawn_from_without_torch(child_environment, tmp_path):
    code = f"""
import contextlib, io, sys
from hmm_datasets import HMM, processes
from hmm_datasets.cli import main
processes.mess3().save_pretrained({str(tmp_path)!r})
hmm = HMM.from_pretrained({str(tmp_path)!r})
hmm.sample(2, 3), hmm.stationary()
with contextlib.redirect_stdout(io.StringIO()):
    assert main(["sample", {str(tmp_path)!r}]) == main(["sample", "golden_mean"]) == 0
print([name for name in ("torch", "transformers", "datasets") if name in sys.modules])
"""
    assert child(code, child_environment) == "[]"


@pytest.mark.parametrize("name", hmm_datasets.__all__)
def test_public_names_are_there_and_listed(name):
    assert getattr(hmm_datasets, name) is not None
    assert name in dir(hmm_datasets)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'hmm_datasets' has no attribute 'HHM'"):
        hmm_datasets.HHM  # noqa: B018


def test_the_public_names_are_these():
    """A name that goes from here breaks somebody's program; one that comes stays."""
    processes = ["HMM", "processes", "fit_hmm", "FitSettings", "FitResult", "load_source", "TiltedHMM"]
    processes += ["GeneralizedHMM", "FactoredProcess", "MarkovChain", "PCFG"]
    families = ["HMMMixture", "PermutedEmissions", "PermutedSymbols", "RandomChains"]
    text = ["load_corpus", "train_bpe", "build_word_corpus", "tokenize_corpus", "TokenStream"]
    data = ["HMMSequences", "TokenWindows", "PackedWindows", "InterleavedRows"]
    training = ["Pretrainer", "FineTuner", "PreferenceTuner", "PolicyTuner", "PretrainSettings", "SFTSettings"]
    training += ["DPOSettings", "GRPOSettings", "train_and_save"]
    measuring = ["EvaluationSettings", "evaluate_model", "load_metric", "push_folder", "InputError"]
    measuring += ["measure_optimum", "probe_beliefs"]
    assert sorted(hmm_datasets.__all__) == sorted(processes + families + text + data + training + measuring)


def test_type_checkers_and_lazy_loading_agree_on_the_modules_of_names():
    tree = ast.parse(Path(hmm_datasets.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    told = {alias.name: node.module for node in block.body for alias in node.names}
    told["processes"] = "hmm.processes"
    assert told == hmm_datasets._MODULE_OF
    assert list(hmm_datasets._MODULE_OF) == hmm_datasets.__all__
    assert Path(hmm_datasets.__file__).with_name("py.typed").exists()


def test_the_program_whose_types_are_checked_uses_every_public_name():
    """`make lint` checks it (`ty check`)."""
    program = ast.parse(Path(__file__).with_name("typing").joinpath("public_api.py").read_text())
    (names,) = [
        node.names for node in program.body if isinstance(node, ast.ImportFrom) and node.module == "hmm_datasets"
    ]
    assert sorted(alias.name for alias in names) == sorted(hmm_datasets.__all__)
