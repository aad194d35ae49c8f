"""What people and tables write for true and false is read as that, and nothing else is."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmm_datasets.truth_values import truth_value

WORDS = {True: ("true", "yes", "y", "t", "1", "1.0"), False: ("false", "no", "n", "f", "0", "0.0")}
NUMBERS = (bool, int, float, np.bool_, np.int8, np.uint64, np.float32, np.array)


@pytest.mark.thorough
@given(st.booleans(), st.data())
def test_a_truth_value_is_the_same_in_every_form(value, data):
    assert truth_value(data.draw(st.sampled_from(NUMBERS))(value)) is value
    word = data.draw(st.sampled_from(WORDS[value]))
    spelt = "".join(data.draw(st.sampled_from((letter.lower(), letter.upper()))) for letter in word)
    space = st.text(" \t\n", max_size=2)
    assert truth_value(data.draw(space) + spelt + data.draw(space)) is value


OTHERS = (
    st.none() | st.text() | st.floats() | st.integers() | st.binary() | st.lists(st.booleans()) | st.just(np.zeros(2))
)


@pytest.mark.thorough
@given(OTHERS)
def test_any_other_value_is_no_truth_value(value):
    is_word = isinstance(value, str) and value.strip().lower() in WORDS[True] + WORDS[False]
    if not is_word and not (isinstance(value, int | float) and value in (0, 1)):
        assert truth_value(value) is None
