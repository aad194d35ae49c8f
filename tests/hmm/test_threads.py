import pytest

from hmm_datasets.hmm.threads import in_parallel


@pytest.mark.parametrize("num_threads", [1, 3])
def test_all_parts_are_worked_on_and_a_failure_is_told(num_threads):
    seen = []
    in_parallel(seen.append, range(5), num_threads)
    assert sorted(seen) == [0, 1, 2, 3, 4]
    with pytest.raises(ZeroDivisionError):
        in_parallel(lambda part: 1 // part, range(3), num_threads)
