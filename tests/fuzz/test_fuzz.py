# The fuzzers: that they see what they look for, and a few of their cases

import os

import pytest
from fuzz import foreign_files, own_files
from fuzz.harness import BAD, Examples, run_case, run_cases
from fuzz.odd_readers import READERS


@pytest.mark.thorough
def test_the_harness_names_what_comes_of_each_case():
    cases = [(name, seed) for seed in range(2) for name in READERS]
    outcomes = {(name, seed): outcome for name, seed, outcome in run_cases(
        "fuzz.odd_readers", cases, workers=2, seconds=0.5
    )}  # fmt: skip
    expected = {name: name for name in READERS} | {"dies": "traceback", "as it is": "harmless"}
    assert {case: outcome.name for case, outcome in outcomes.items()} == {case: expected[case[0]] for case in cases}
    assert "KeyError: 'a'" in outcomes["traceback", 0].detail
    assert outcomes["dies", 0].detail == "the process ended with -6"


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [*foreign_files.KINDS, *own_files.KINDS], ids=lambda kind: kind.name)
def test_a_damaged_file_is_refused_in_one_line_or_harmless(kind, tmp_path):
    """In this process; `python tests/fuzz/foreign_files.py --cases 10000`, or that of `own_files.py`, tries more,
    within limits of time."""
    examples = Examples(tmp_path)
    for seed in range(int(os.environ.get("FUZZ_CASES", "2"))):
        outcome = run_case(kind, seed, examples, tmp_path / "case")
        assert outcome.name not in BAD, f"{kind.name} {seed}: {outcome.name}: {outcome.detail}"
