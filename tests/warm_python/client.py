"""Stands for `python` on a command line; the process itself is forked by the server, which has imported what it needs.

The server copies this file beside its socket and its `server.json`. What a fork cannot do (other options, more open
files than the standard three, another environment for the imports) starts the interpreter.
"""

import array
import contextlib
import json
import os
import select
import signal
import socket
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))


def served(arguments: list[str], read: list[str], imported_with: dict[str, str]) -> bool:
    """Whether a fork does what a new interpreter would; `read` begin the names of variables that imports read."""
    if arguments[:1] == ["-u"]:
        arguments = arguments[1:]
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-m", "-c")):
        return False
    if {name: value for name, value in os.environ.items() if name.startswith(tuple(read))} != imported_with:
        return False
    listing = os.open("/proc/self/fd", os.O_RDONLY)
    try:
        return {int(name) for name in os.listdir(listing)} <= {0, 1, 2, listing, listing + 1}
    finally:
        os.close(listing)


def main() -> int:
    """Ask for the process, pass signals on to it, and end as it does."""
    with open(os.path.join(FOLDER, "server.json"), encoding="utf-8") as file:
        python, *environment = json.load(file)
    if not served(sys.argv[1:], *environment):
        os.execv(python, [python, *sys.argv[1:]])
    ignored = [number for number in range(1, 32) if signal.getsignal(number) == signal.SIG_IGN]
    request = {"arguments": sys.argv[1:], "environment": dict(os.environ), "folder": os.getcwd(), "ignored": ignored}
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    server.connect(os.path.join(FOLDER, "socket"))
    files = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))]
    server.sendmsg([json.dumps(request).encode()], files)
    process = int(server.recv(100))
    # Each signal is a byte in a pipe: a handler would run only after the call that waits for the end.
    signalled, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        if number not in ignored:
            signal.signal(number, lambda *_: None)
    while server not in select.select([server, signalled], [], [])[0]:
        for number in os.read(signalled, 100):
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(process, number)
    status = int(server.recv(100) or "256")
    if status < 0:
        if -status not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


if __name__ == "__main__":
    sys.exit(main())
