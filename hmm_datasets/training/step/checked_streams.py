"""Comparing the files of token streams with their hashes in the background, while training runs."""

from typing import Any

from ...text.stream.verification import check_streams
from .component import Component


class CheckedStreams(Component):
    """Ends training if a file of a token stream has changed on disk."""

    def before_micro_batch(self, inputs: dict[str, Any]) -> None:
        """Raise the error of the background check, if it found one."""
        check_streams()
