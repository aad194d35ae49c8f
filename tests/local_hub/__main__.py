"""A Hub on this machine, to try pushing and loading without an account: `python tests/local_hub`."""

import argparse
import sys
import threading
from pathlib import Path

# A folder that is run by its path is on the path itself, but is not a package there.
sys.path.insert(0, str(Path(__file__).parents[1]))

from hmm_datasets.runtime.one_line_errors import one_line_errors
from local_hub.serving import DEFAULT_HOST, DEFAULT_PORT, DEFAULT_USER, PART_SIZE, run_until_stopped


def main() -> None:
    """Parse the command line and serve until a signal comes."""
    parser = argparse.ArgumentParser(prog="python tests/local_hub", description=__doc__, allow_abbrev=False)
    parser.add_argument("--host", default=DEFAULT_HOST, help="address to listen at, default 127.0.0.1")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="default 8080; 0 takes a free one")
    parser.add_argument(
        "--folder", type=Path, metavar="DIR", help="keep repositories there; by default they are gone at the end"
    )
    parser.add_argument(
        "--user", default=DEFAULT_USER, help="name of the account, default USER as in the documentation"
    )
    parser.add_argument(
        "--part-size", type=int, default=PART_SIZE, help="bytes above which LFS uploads in parts, default 8 MiB"
    )
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
