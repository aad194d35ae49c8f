"""The table of what was tried from outside lists the tests that are there."""

import outside


def test_the_table_is_that_of_the_tests():
    assert outside.TABLE.read_text(encoding="utf-8") == outside.table(), "python tests/outside.py --record"


def test_every_row_names_a_public_address():
    wrong = [case for case in outside.cases() if not case.source.startswith("https://")]
    assert not wrong
