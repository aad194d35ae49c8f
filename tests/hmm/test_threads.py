import multiprocessing
import os
import threading

import pytest

from hmm_datasets.hmm.kernels.threads import in_parallel


@pytest.mark.parametrize("num_threads", [1, 3])
def test_all_parts_are_worked_on_and_a_failure_is_told(num_threads):
    seen = []
    in_parallel(seen.append, range(5), num_threads)
    assert sorted(seen) == [0, 1, 2, 3, 4]
    with pytest.raises(ZeroDivisionError):
        in_parallel(lambda part: 1 // part, range(3), num_threads)


def test_threads_work_side_by_side_and_are_kept():
    both = threading.Barrier(2, timeout=500)
    names = set()

    def meet(part):
        names.add(threading.current_thread().name)
        both.wait()

    for _ in range(20):
        in_parallel(meet, range(2), 2)
    assert 2 <= len(names) <= max(2, os.cpu_count())


def test_a_part_may_have_parts_of_its_own():
    seen = []
    in_parallel(lambda part: in_parallel(seen.append, range(10 * part, 10 * part + 10), 4), range(8), 4)
    assert sorted(seen) == list(range(80))


def test_a_forked_process_has_threads_of_its_own():
    seen = []
    in_parallel(seen.append, range(4), 2)
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()

    def answer():
        found = [sum(thread.name.startswith("hmm_datasets") for thread in threading.enumerate())]
        in_parallel(found.append, range(4), 2)
        answers.put(found)

    child = context.Process(target=answer)
    child.start()
    found = answers.get()
    child.join(30)
    assert (found[0], sorted(found[1:]), child.exitcode) == (0, [0, 1, 2, 3], 0)
    in_parallel(seen.append, range(4), 2)
    assert sorted(seen) == [0, 0, 1, 1, 2, 2, 3, 3]
