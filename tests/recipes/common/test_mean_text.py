import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mean_text import mean_text
from scipy import stats


@pytest.mark.parametrize("shares", [[1.0, 1.0, 0.1], [0.0, 0.0, 0.3], [0.5, 0.6, 0.7, 0.4]])
def test_a_mean_of_shares_has_an_interval_within_0_and_1(shares):
    """Of Korn and Graubard, solved here by its definition: bounds are `t` standard errors of a mean there from it."""
    mean, low, high = map(float, re.findall(r"[0-9.]+[0-9]", mean_text(shares, ".9f", is_share=True)))
    questions = mean * (1 - mean) / (np.var(shares, ddof=1) / len(shares))
    for bound in (low, high):
        error = np.sqrt(bound * (1 - bound) / questions)
        assert abs(bound - mean) == pytest.approx(stats.t.ppf(0.975, len(shares) - 1) * error, rel=1e-5, abs=1e-8)
    assert 0 <= low < mean < high <= 1
    assert mean_text([1.0, 1.0], ".1f", is_share=True) == mean_text([1.0, 1.0], ".1f") == "1.0"


@given(st.floats(-5e-5, 0, exclude_min=True), st.sampled_from([".4f", "+.4f", ",.3f"]))
def test_what_is_rounded_to_zero_has_no_minus(value, form):
    assert "-" not in mean_text([value, value / 2], form)
