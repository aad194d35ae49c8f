"""Experiment trackers (TensorBoard, trackio, W&B and others) that get the rows of `history.jsonl` too.

The Trainer's own callbacks send every value of a row. By default nothing is sent anywhere.
"""

import difflib
import importlib.util

from ..errors import InputError

_PACKAGES = ("tensorboard", "trackio", "wandb")


def check_trackers(names: str | list[str] | None) -> None:
    """Refuse a tracker that is not available, before a run starts.

    Args:
        names (`str` or list of `str`, *optional*): the value of `TrainingArguments.report_to`.

    Raises:
        `InputError`: a tracker that transformers does not know, or whose package is not installed.
    """
    from transformers.integrations import INTEGRATION_TO_CALLBACK

    known = ["none", "all", *INTEGRATION_TO_CALLBACK]
    for name in [names] if isinstance(names, str) else names or []:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(known)}"
            raise InputError(f"report_to: {name} is not a tracker; {hint}")
        if name in _PACKAGES and importlib.util.find_spec(name) is None:
            raise InputError(f"report_to: {name} is not installed; pip install {name}, or leave it out")
