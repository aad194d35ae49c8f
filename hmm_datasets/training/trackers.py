"""Where rows go beside `history.jsonl`: TensorBoard, trackio, W&B or another that transformers knows, if asked.

The Trainer's own callbacks send them, every value that a row has, at its step. By default nothing is sent anywhere.
"""

import difflib
import importlib.util

from ..errors import InputError

_PACKAGES = ("tensorboard", "trackio", "wandb")


def check_trackers(names: str | list[str] | None) -> None:
    """Refuse a tracker that is not there, before anything is built.

    Args:
        names (`str` or list of `str`, *optional*): as `TrainingArguments.report_to` takes them.

    Raises:
        `InputError`: one that transformers does not know, or whose package is not installed.
    """
    from transformers.integrations import INTEGRATION_TO_CALLBACK

    known = ["none", "all", *INTEGRATION_TO_CALLBACK]
    for name in [names] if isinstance(names, str) else names or []:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(known)}"
            raise InputError(f"report_to: {name} is no tracker; {hint}")
        if name in _PACKAGES and importlib.util.find_spec(name) is None:
            raise InputError(f"report_to: {name} is not installed; pip install {name}, or leave it out")
