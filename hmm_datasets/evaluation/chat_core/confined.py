"""The program that [`sandbox`] starts: it gives up what it can, and then runs the Python that it reads.

It is run as a file, by an interpreter without this package. Its arguments are the word to print at the end, the limits
on seconds of processor time and on bytes of memory, and `namespaces` if it is in namespaces of its own.
"""

import os
import resource
import sys

_ALLOWED = {"os.listdir", "os.scandir", "os.walk", "os.fwalk", "os.putenv", "os.unsetenv"}
_REFUSED = ("os.", "subprocess.", "socket.", "ctypes.", "shutil.", "pty.", "fcntl.", "signal.", "resource.", "mmap.")
_REFUSED += ("sqlite3.", "syslog.", "urllib.", "http.", "ftplib.", "smtplib.", "webbrowser.", "pdb.", "code.__new__")
_MODULES = {"ctypes", "_ctypes", "_posixsubprocess", "_posixshmem", "cffi"}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def main(token: str, seconds: int, memory: int, in_namespaces: bool) -> None:
    """Run the program on standard input; print the word if it comes to its end."""
    program = compile(sys.stdin.buffer.read(), "<answer>", "exec")
    if in_namespaces:
        _see_no_files_to_write()
    out = os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    for kind, limit in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, 2**20),
        (resource.RLIMIT_NOFILE, 32),
        (resource.RLIMIT_NPROC, 1),  # of no effect for root
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (limit, limit))
    for name in _MODULES:
        sys.modules.pop(name, None)
    sys.argv = ["answer"]
    sys.addaudithook(_audit_hook())
    exec(program, {"__name__": "__main__"})
    os.write(out, token.encode())
    os._exit(0)


def _audit_hook():
    """Refuse files outside Python's library, and all that a function under test has no use for."""
    library = tuple(os.path.realpath(path) + os.sep for path in {sys.prefix, sys.base_prefix, *sys.path} if path)
    real, is_text = os.path.realpath, str

    def refuse(event, arguments):
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, int):
                return
            if flags & _WRITING or not (real(os.fsdecode(path)) + os.sep).startswith(library):
                raise PermissionError(f"not allowed: {event} {path}")
        elif event == "import":
            if is_text(arguments[0]) in _MODULES:
                raise ImportError(f"not allowed: {event} {arguments[0]}")
        elif event not in _ALLOWED and event.startswith(_REFUSED):
            raise PermissionError(f"not allowed: {event}")

    return refuse


def _see_no_files_to_write() -> None:
    """Make every file system read-only, with an empty one in memory here and in place of `/proc`; then give up root.

    Root is root in the user namespace of this process alone, and what it could undo it loses the right to: all
    capabilities, also those of programs that it might start.
    """
    import ctypes

    read_only, recursive, here = 1, 0x8000, os.getcwd().encode()
    mount_setattr, drop_from_bounds, no_new_privileges, version_3 = 442, 24, 38, 0x20080522
    libc = ctypes.CDLL(None, use_errno=True)

    def check(result: int) -> None:
        if result != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    attributes = (ctypes.c_uint64 * 4)(read_only, 0, 0, 0)
    check(libc.syscall(mount_setattr, -100, b"/", recursive, ctypes.byref(attributes), ctypes.sizeof(attributes)))
    for folder in (here, b"/proc"):
        check(libc.mount(b"none", folder, b"tmpfs", 0, b"size=1m"))
    os.chdir(here)
    for capability in range(64):
        libc.prctl(drop_from_bounds, capability, 0, 0, 0)  # fails for those that this kernel does not have
    check(libc.prctl(no_new_privileges, 1, 0, 0, 0))
    header, none = (ctypes.c_uint32 * 2)(version_3, 0), (ctypes.c_uint32 * 6)()
    check(libc.capset(header, none))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), bool(sys.argv[4]))
