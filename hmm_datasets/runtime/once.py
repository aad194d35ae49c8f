"""What a command finds out once and then relies on, such as the commit that a name on the Hub means.

A repository may change while it is read: its weights would then be those of one commit, and its record and tokenizer
those of the next. While a command runs, or one function of the package that reads several files, the first answer
stays. A program that calls such functions one after another gets the newest each time.
"""

import contextlib
import threading
from collections.abc import Callable, Generator, Hashable
from typing import Any

_lock = threading.RLock()
_depth = 0
_answers: dict[Hashable, Any] = {}


@contextlib.contextmanager
def one_command() -> Generator[None]:
    """A context in which [`once`] keeps its answers; those of the outermost context are kept until it ends."""
    global _depth
    with _lock:
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0:
                _answers.clear()


def once(key: Hashable, find: Callable[[], Any]) -> Any:
    """The result of `find`, which is called once for each key in a context of [`one_command`], and always outside."""
    with _lock:
        if _depth == 0:
            return find()
        if key not in _answers:
            _answers[key] = find()
        return _answers[key]
