"""The output of a program without codes that a terminal obeys.

Names of files, tokens of a model, records of a run and messages of libraries come from anyone, and are printed in many
places. So the streams of a program write control codes as text, whoever prints: commands, warnings, logs. A progress
bar may still return to the beginning of its line, and move up to the one above it; what draws pictures in a terminal
takes the [`terminal`] itself, and makes the text in them printable.
"""

import contextlib
import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

from ..errors import printable
from .credentials import masked_line

# What tqdm writes before a bar, and between the lines of several.
_OF_BARS = re.compile(r"\r|\n*(?:\x1b\[A)+")


class PlainStream:
    """A text stream that writes control codes as text, such as `\\x1b`.

    Args:
        stream (text stream): where to write.
        is_for_people (`bool`): whether it is stderr, where a text may begin with the codes of a progress bar, and
            where secrets are masked; what is written to stdout may be data.
    """

    def __init__(self, stream: TextIO, is_for_people: bool):
        self.stream, self._is_for_people = stream, is_for_people

    def write(self, text: str) -> int:
        """Write a text; returns its length, as streams do."""
        bar = _OF_BARS.match(text) if self._is_for_people else None
        begin = bar.end() if bar else 0
        shown = masked_line(text[begin:]) if self._is_for_people else text[begin:]
        self.stream.write(text[:begin] + printable(shown))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def terminal(stream: TextIO) -> TextIO:
    """The stream beneath, for what draws in a terminal by codes of its own and makes the text in it printable."""
    return terminal(stream.stream) if isinstance(stream, PlainStream) else stream


@contextlib.contextmanager
def plain_output() -> Iterator[None]:
    """A context in which stdout and stderr are [`PlainStream`]s; to be entered before libraries are imported, since
    their logs keep the stream that they find."""
    os.environ.setdefault("PYTHON_COLORS", "0")  # of help and tracebacks, which Python 3.14 colors in a terminal
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell or the program that started this one
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdout, PlainStream):
        yield
        return
    out, err = PlainStream(sys.stdout, is_for_people=False), PlainStream(sys.stderr, is_for_people=True)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield
