"""A beat counts on while the disk is unavailable, and ends when it is told to."""

import threading
import time

from hmm_datasets.runtime.beat import Beat


def test_a_beat_goes_on_after_errors_of_the_disk_and_stops_at_its_end():
    numbers, third = [], threading.Event()

    def write(number):
        numbers.append(number)
        if number == 2:
            raise OSError("the disk is away")
        if number == 3:
            third.set()

    beat = Beat(write, 0.01, "test-beat")
    beat.now()
    assert numbers == [1], "the thread has not begun"
    beat.start()
    assert third.wait(10)
    beat.end()
    assert beat.has_ended
    written = len(numbers)
    time.sleep(0.05)
    assert numbers == list(range(1, written + 1))
