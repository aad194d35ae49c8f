"""Checks that run before each write of this process, such as of a lock that another process may have taken over."""

from collections.abc import Callable

before_write: list[Callable[[], None]] = []
"""Called before each write of this process: a lock adds what ends the process once another one has taken it over."""


def check_may_write() -> None:
    """End this process if it has lost the lock of what it writes; called before each write, and before each rename."""
    for check in list(before_write):
        check()
