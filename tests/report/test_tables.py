"""Numbers in the lines and tables that commands print."""

from hypothesis import given
from hypothesis import strategies as st

from hmm_datasets.intervals import mean_text
from hmm_datasets.report.tables import figure_text, interval_text


@given(st.floats(-5e-5, 0, exclude_min=True), st.sampled_from([".4f", "+.4f", ",.3f"]))
def test_what_is_rounded_to_zero_has_no_minus(value, form):
    """The losses of a fit to one symbol were printed as -0.0000."""
    for text in (figure_text(value, form), interval_text(value, value, form), mean_text([value, value / 2], form)):
        assert "-" not in text


@given(st.floats(-1e6, -1e-4))
def test_what_is_below_zero_has_its_minus(value):
    assert figure_text(value) == f"{value:.4f}"


def test_counts_have_their_commas():
    assert [figure_text(count, ",.0f") for count in (0, 1234, -0.2)] == ["0", "1,234", "0"]
