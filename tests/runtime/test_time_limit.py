import time

from hmm_datasets.runtime.time_limit import Outcome, within


def test_what_ends_in_time_gives_its_value_or_its_error():
    assert within(10, lambda: 3) == Outcome(value=3)
    assert isinstance(within(10, lambda: 1 / 0).error, ZeroDivisionError)


def test_what_hangs_is_left():
    def hang():
        time.sleep(3600)

    assert within(0.1, hang) == Outcome(hangs=True)
