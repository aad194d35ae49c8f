"""The local Hub as a program, with options for tests: `python -m hmm_datasets.hub.local_server --port 0 --testing`.

Users start it by `hmm-datasets hub`.
"""

import argparse
import sys
import threading
from pathlib import Path

from ...errors import one_line_errors
from .serving import DEFAULT_HOST, DEFAULT_PORT, DEFAULT_USER, PART_SIZE, run_until_stopped


def main() -> None:
    """Parse the command line and serve until a signal comes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default=DEFAULT_HOST, help="address to listen at")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="port of the API; 0 takes a free one")
    parser.add_argument("--folder", type=Path, help="where repositories are kept")
    parser.add_argument("--user", default=DEFAULT_USER, help="name of the account")
    parser.add_argument("--part-size", type=int, default=PART_SIZE, help="bytes above which LFS uploads in parts")
    parser.add_argument("--testing", action="store_true", help="accept faults by POST /faults, and log requests")
    parser.add_argument("--stop-with-stdin", action="store_true", help="end when standard input is closed")
    options = vars(parser.parse_args())
    until = threading.Event()
    if options.pop("stop_with_stdin"):
        threading.Thread(target=lambda: (sys.stdin.read(), until.set()), daemon=True).start()
    with one_line_errors():
        run_until_stopped(**options, until=until)


if __name__ == "__main__":
    main()
