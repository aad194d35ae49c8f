"""The program that runs in a sandbox of `sandbox`, by an interpreter without this package.

    sandboxed.py answer NAME SECONDS BYTES    calls the function NAME of its source with what the other sandbox sends
    sandboxed.py test NAME SECONDS BYTES      ends with exit code 0 if `check` of its source accepts the function NAME

The source is `/source.py`. What the two send each other, by standard input and output, are lines of Python literals:
numbers, text, and lists, tuples, sets and dictionaries of them. They are parsed (`ast.literal_eval`), never run.
"""

import ast
import os
import resource
import sys
from collections.abc import Iterator

_LONGEST = 2**22  # bytes of a line
_NOBODY = 65534


def main(role: str, name: str, seconds: int, memory: int) -> None:
    """Run the source in its role."""
    with open("/source.py", "rb") as file:
        source = compile(file.read(), "<source>", "exec")
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nowhere = os.open("/dev/null", os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    _limit(seconds, memory)

    def send(*values: object) -> None:
        outgoing.write(_literal(values).encode() + b"\n")
        outgoing.flush()

    def receive() -> tuple:
        return ast.literal_eval(incoming.readline(_LONGEST).decode())

    def call(*arguments: object) -> object:
        send(*arguments)
        kind, value = receive()
        if kind == "raised":
            raise RuntimeError(value)
        return iter(value) if kind == "iterator" else value

    names = {"__name__": "__main__"}
    exec(source, names)
    if role == "test":
        names[name] = call
        names["check"](call)
        os._exit(0)
    while True:
        arguments = receive()
        try:
            value = names[name](*arguments)
            kind = "iterator" if isinstance(value, (Iterator, range)) else "value"
            send(kind, list(value) if kind == "iterator" else value)
        except Exception as error:
            send("raised", type(error).__name__)


def _limit(seconds: int, memory: int) -> None:
    """Limit processor time, memory, and everything else that could be much; give up root, whom not all limits bind."""
    for kind, limit in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, 32),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (limit, limit))
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)
    sys.set_int_max_str_digits(0)


def _literal(value: object) -> str:
    """Python's literal for a value; what its own type says of itself is not asked.

    Raises:
        `TypeError`: there is none.
    """
    if value is None or value is True or value is False:
        return str(value)
    for kind in (int, str, bytes):
        if isinstance(value, kind):
            return kind.__repr__(value)
    for kind in (float, complex):
        if isinstance(value, kind):
            return kind.__repr__(value).replace("inf", "1e999")
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_literal(key)}: {_literal(one)}" for key, one in value.items()) + "}"
    for kind, opening, closing in ((list, "[", "]"), (tuple, "(", ",)"), ((set, frozenset), "{", "}")):
        if isinstance(value, kind):
            parts = ", ".join(map(_literal, value))
            if parts:
                return opening + parts + closing
            return {"[": "[]", "(": "()", "{": "set()"}[opening]
    raise TypeError(type(value).__name__)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
