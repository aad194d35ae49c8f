"""The examples in the docstrings of experiments, which are outside of the package that pytest reads them from."""

import doctest

import pytest
from experiments import load

from hmm_datasets.runtime.shipped import EXPERIMENTS, shipped

MODULES = sorted(path for path in shipped(EXPERIMENTS).glob("*/*.py") if ">>>" in path.read_text(encoding="utf-8"))


@pytest.mark.thorough
@pytest.mark.parametrize("path", MODULES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_examples_print_what_they_say(path):
    found = doctest.testmod(load(path.parent.name, path.stem))
    assert found.attempted > 0
    assert found.failed == 0
