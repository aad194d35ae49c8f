"""Functions of the user, named in settings as `MODULE:FUNCTION`."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

from ..errors import InputError


def imported_function(setting: str, name: str) -> Callable:
    """The function that `MODULE:FUNCTION` names; modules are also looked for in the current folder.

    Args:
        setting (`str`): the setting that names it, for the error.
        name (`str`): `MODULE:FUNCTION`.

    Raises:
        `InputError`: it cannot be imported, or is not a function.
    """
    module, _, function = name.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        value = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"{setting}: {name}: cannot be imported ({error})") from None
    if not callable(value):
        raise InputError(f"{setting}: {name}: is {type(value).__name__}, expected a function")
    return value
