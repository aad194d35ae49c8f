"""Which signals ask what runs to stop, in processes whose launcher ignores some of them."""

import os
import signal

import pytest

from hmm_datasets.runtime.stop_requests import NOTHING, STOP, StopRequests


@pytest.mark.parametrize(
    ("number", "wanted"), [(signal.SIGUSR1, STOP), (signal.SIGTERM, STOP), (signal.SIGHUP, NOTHING)]
)
def test_a_signal_that_the_launcher_ignores_is_heard_unless_it_is_that_of_nohup(number, wanted, tmp_path):
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with StopRequests(tmp_path) as requests:
            os.kill(os.getpid(), number)
            assert requests.look() == wanted
        assert signal.getsignal(number) == signal.SIG_IGN
    finally:
        signal.signal(number, before)
