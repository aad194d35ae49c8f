"""Numbers in the lines and tables that commands print."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmm_datasets.report.process_list import process_rows, process_table
from hmm_datasets.report.tables import figure_text, interval_text


@given(st.floats(-5e-5, 0, exclude_min=True), st.sampled_from([".4f", "+.4f", ",.3f"]))
def test_what_is_rounded_to_zero_has_no_minus(value, form):
    """The losses of a fit to one symbol were printed as -0.0000."""
    for text in (figure_text(value, form), interval_text(value, value, form)):
        assert "-" not in text


@given(st.floats(-1e6, -1e-4))
def test_what_is_below_zero_has_its_minus(value):
    assert figure_text(value) == f"{value:.4f}"


def test_counts_have_their_commas():
    assert [figure_text(count, ",.0f") for count in (0, 1234, -0.2)] == ["0", "1,234", "0"]


@pytest.mark.outside(
    "https://github.com/ccusage/ccusage/issues/946",
    "a table in a narrow terminal whose numbers are not cut (`13,044,466`, not `13,044,…`)",
    "`describe` of several names shortens texts to the width of the terminal, and no entropy rate",
)
@pytest.mark.parametrize("width", [1, 40, 80])
def test_an_entropy_rate_is_whole_in_a_terminal_of_any_width(width):
    rows = process_rows(["golden_mean", "mess3(x=0.05, a=0.85)"], rates=False)
    rates = [
        {"value": 0.4620981, "standard_error": 0.0},
        {"value": 0.79348, "standard_error": 2.5e-4, "lower": 0.793, "upper": 0.794, "lower_error": 0.0}
        | {"upper_error": 1e-5},
    ]
    rows = [row | {"entropy_rate": rate} for row, rate in zip(rows, rates, strict=True)]
    lines = process_table(rows, width).splitlines()
    assert lines[2].endswith("  0.462098, exact")
    assert lines[3].endswith("  0.793480 +- 2.5e-04, in 0.793000 .. 0.794000 (+- 1.0e-05)")
