"""What a waiting user sees, on rank 0: progress bars, after two seconds, with a rate and the time left."""

import sys
from typing import TYPE_CHECKING, Any

from . import environment

if TYPE_CHECKING:
    from tqdm import tqdm

_DELAY = 2  # seconds


def announce_imports() -> None:
    """Name on a terminal what the first seconds of a command are spent on."""
    if sys.stderr.isatty() and environment.rank() == 0:
        print("importing torch and transformers ...", file=sys.stderr, flush=True)


def progress_bar(total: int | None, unit: str, *, shown: bool = True, **options: Any) -> "tqdm":
    """A progress bar for work that may take longer than two seconds.

    It is hidden on other ranks than 0, and everywhere if the environment variable `TQDM_DISABLE` is set.

    Args:
        total (`int`, *optional*): units in all; `None` if that is not known.
        unit (`str`): what is counted, such as `" rows"`; large numbers are abbreviated.
        shown (`bool`, *optional*, defaults to `True`): whether to show it at all.
        options: further arguments of `tqdm`, such as `desc`.
    """
    from tqdm.auto import tqdm

    if not shown or environment.rank() != 0:
        options["disable"] = True  # passed only if it hides the bar: tqdm then ignores the environment
    return tqdm(total=total, unit=unit, unit_scale=True, delay=_DELAY, **options)
