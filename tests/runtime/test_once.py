"""Answers are kept while a command runs, also for its threads, and asked for anew outside."""

import threading

from hmm_datasets.runtime.once import once, one_command


def test_an_answer_is_kept_in_the_outermost_context_and_no_longer():
    answers = iter(range(10))

    def ask() -> int:
        return once("question", lambda: next(answers))

    assert [ask(), ask()] == [0, 1]
    with one_command():
        assert ask() == 2
        with one_command():
            assert ask() == 2
        assert ask() == 2
        from_thread = []
        thread = threading.Thread(target=lambda: from_thread.append(ask()))
        thread.start()
        thread.join()
        assert from_thread == [2]
        assert once("another", lambda: next(answers)) == 3
    assert ask() == 4
