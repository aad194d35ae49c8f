"""The time that chat templates write in a run: that of its first start, which `run.json` records.

Templates of Llama 3 and gpt-oss write the date. With the clock of each start, a run that continues on another day
would have other tokens, and would be refused as another run.
"""

import os
from datetime import datetime
from pathlib import Path

import torch
from accelerate.utils import broadcast_object_list

from ..compat.chat_templates import set_template_clock
from ..errors import InputError
from ..runtime.run_records import read_run_record
from .record import RECORD_NAME


def fix_template_time(folder: str | os.PathLike) -> str | None:
    """Let the chat templates of this process write the time of a run's first start.

    Args:
        folder (path): the folder of the run.

    Returns:
        `str`, *optional*: that time in ISO 8601, for the record: of the run in the folder, or now if there is none.
        None if that run was begun by a version that did not record it; its templates write the time of each start.

    Raises:
        `InputError`: `run.json` has something else in the place of a time.
    """
    path = Path(folder) / RECORD_NAME
    now = datetime.now().replace(microsecond=0).isoformat()
    recorded = [read_run_record(path).template_time if path.exists() else now]
    if torch.distributed.is_initialized():  # the ranks may start before and after midnight
        broadcast_object_list(recorded)
    time = recorded[0]
    if time is not None:
        try:
            set_template_clock(datetime.fromisoformat(time))
        except ValueError:
            raise InputError(
                f"{path}: template_time is {time!r}; expected a time such as {now}, write that of the first start"
            ) from None
    return time
