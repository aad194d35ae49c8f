"""True and false as people and tables write them.

A table of text has no booleans: CSV has the words of whoever wrote it, and a column of booleans with gaps comes out of
pandas as 0.0 and 1.0.
"""

from numbers import Number
from typing import Any

_WORDS = dict.fromkeys(("true", "yes", "y", "t", "1", "1.0"), True)
_WORDS |= dict.fromkeys(("false", "no", "n", "f", "0", "0.0"), False)


def truth_value(value: Any) -> bool | None:
    """What a value says as a truth value.

    Args:
        value: a boolean, of Python or NumPy; 0 or 1, as any number; or a word for one of them, in capital or small
            letters, with or without white space around it.

    Returns:
        `bool`, *optional*: None for any other value, which is no truth value.

    ```python
    >>> [truth_value(value) for value in (True, 0, 1.0, " FALSE", "yes", "good", 0.5, None)]
    [True, False, True, False, True, None, None, None]

    ```
    """
    if getattr(value, "ndim", None) == 0:
        value = value.item()
    if isinstance(value, str):
        return _WORDS.get(value.strip().lower())
    return bool(value) if isinstance(value, Number) and value in (0, 1) else None
