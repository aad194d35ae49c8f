"""transformers: the clock of chat templates.

Templates call `strftime_now`, a function of the environment that transformers compiles them in, to write the date.
There is no public way to set it: variables that are given to a template lose whatever is not JSON. This can be removed
once `apply_chat_template` takes the date.

Checked against 5.24.
"""

from datetime import datetime

from transformers.utils import chat_template_utils


def set_template_clock(time: datetime) -> None:
    """Let `strftime_now` of all chat templates of this process write this time."""
    vars(chat_template_utils)["datetime"] = type("Clock", (), {"now": lambda: time})
