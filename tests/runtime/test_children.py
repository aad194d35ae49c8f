"""Requests to stop reach the children, also those that are just starting, and ignored signals stay ignored."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from hmm_datasets.runtime.children import Children, SignalHandler, kill_session, wait_for

SLEEPS = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def usual():
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_an_ignored_signal_stays_ignored_unless_it_is_meant_to_be_heard(usual):
    heard = []
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    numbers = (signal.SIGTERM, signal.SIGHUP)
    handler = SignalHandler(numbers, heard.append)
    for _ in range(2):  # a Trainer trains twice
        with handler:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGHUP)
    assert heard == [signal.SIGTERM, signal.SIGTERM]
    with SignalHandler(numbers, heard.append, stay_ignored=()):
        os.kill(os.getpid(), signal.SIGHUP)
    assert heard[2:] == [signal.SIGHUP]
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN, "as it was before"


def test_outside_of_the_main_thread_no_signal_is_handled():
    before, seen = signal.getsignal(signal.SIGTERM), []

    def work():
        with SignalHandler((signal.SIGTERM,), seen.append):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


def test_a_child_that_starts_after_the_request_gets_it_too():
    children = Children()
    children.start(SLEEPS)
    running = children.start(SLEEPS)
    assert wait_for(running, 0.05) is None
    children.send(signal.SIGTERM)
    assert wait_for(running, 30) == -signal.SIGTERM
    assert children.asked == signal.SIGTERM
    assert children.run(SLEEPS) == -signal.SIGTERM


def test_a_session_is_killed_whole():
    script = "import subprocess, sys; subprocess.Popen(sys.argv[1:]); print('up', flush=True); input()"
    command = [sys.executable, "-c", script, *SLEEPS]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, start_new_session=True, **pipes) as child:
        assert child.stdout.readline() == b"up\n"
        kill_session(child)
        assert wait_for(child, 30) == -signal.SIGKILL
        assert child.stdout.read() == b"", "its child, which has the same pipe, has ended too"
    kill_session(child)  # nothing is left of it
