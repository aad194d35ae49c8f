import subprocess
import sys

import pytest

import hmm_datasets

HEAVY = ("torch", "transformers", "datasets", "numba", "pandas", "pyarrow", "matplotlib", "trl", "accelerate")


def child(code: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_the_package_loads_no_heavy_library(child_environment):
    code = f"import sys, hmm_datasets; print([name for name in {HEAVY} if name in sys.modules])"
    assert child(code, child_environment) == "[]"


def test_an_hmm_is_made_and_saved_without_torch(child_environment, tmp_path):
    code = f"""
import sys
from hmm_datasets import HMM, processes
processes.mess3().save_pretrained({str(tmp_path)!r})
hmm = HMM.from_pretrained({str(tmp_path)!r})
hmm.sample(2, 3), hmm.stationary()
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


def test_the_public_names_are_those_of_their_modules():
    from hmm_datasets.data.hmm_sequences import HMMSequences
    from hmm_datasets.hmm import processes
    from hmm_datasets.hmm.fitting.fit import fit_hmm
    from hmm_datasets.hmm.model import HMM

    assert (hmm_datasets.HMM, hmm_datasets.fit_hmm) == (HMM, fit_hmm)
    assert (hmm_datasets.HMMSequences, hmm_datasets.processes) == (HMMSequences, processes)
