"""Rows that are left out: against a list from which they are removed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmm_datasets.data.skipped_rows import RemainingRows, SkippedRows
from hmm_datasets.errors import InputError

intervals = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)).map(lambda one: (one[0], sum(one))), max_size=6)


@pytest.mark.thorough
@given(intervals, st.integers(0, 40))
def test_rows_are_those_of_a_list_without_them(left_out, first):
    every = range(80)
    kept = [row for row in every if not any(begin <= row < end for begin, end in left_out)]
    skipped_rows = SkippedRows(left_out)
    assert skipped_rows.count == len(every) - len(kept)
    assert [skipped_rows.index(number) for number in range(len(kept))] == kept
    assert [skipped_rows.number(index) for index in every] == [sum(row < index for row in kept) for index in every]
    assert [skipped_rows.end(number) for number in range(len(kept))] == [0, *(row + 1 for row in kept)][: len(kept)]
    view = RemainingRows(every, skipped_rows, first)
    assert list(view.__getitems__(range(len(view)))) == kept[first:]
    assert skipped_rows.before(30) == SkippedRows((begin, min(end, 30)) for begin, end in left_out if begin < 30)


def test_rows_of_an_endless_data_set_are_found_at_once():
    view = RemainingRows(range(2**50), SkippedRows([(100, 200), (2**40, 2**41)]), first=2**45)
    assert view[5] == 2**45 + 5 + 100 + 2**40


def test_an_interval_without_rows_is_refused():
    with pytest.raises(InputError, match="rows 5 to 5 are no interval of rows"):
        SkippedRows([(5, 5)])
