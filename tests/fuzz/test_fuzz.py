# The fuzzers: that they see what they look for, and a few of their cases

import pytest
from fuzz.harness import run_cases
from fuzz.odd_readers import READERS


@pytest.mark.launch
def test_the_harness_names_what_comes_of_each_case():
    cases = [(name, seed) for seed in range(2) for name in READERS]
    outcomes = {(name, seed): outcome for name, seed, outcome in run_cases(
        "fuzz.odd_readers", cases, workers=2, seconds=0.5
    )}  # fmt: skip
    expected = {name: name for name in READERS} | {"dies": "traceback", "as it is": "harmless"}
    assert {case: outcome.name for case, outcome in outcomes.items()} == {case: expected[case[0]] for case in cases}
    assert "KeyError: 'a'" in outcomes["traceback", 0].detail
    assert outcomes["dies", 0].detail == "the process ended with -6"
