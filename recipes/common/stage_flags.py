"""Flags of a stage in one setting of an experiment, as `pretrain`: they are read before anything begins."""

import shlex
from collections.abc import Collection
from typing import Any

from hmm_datasets.errors import InputError
from hmm_datasets.operations.launching import recipe_settings
from hmm_datasets.runtime.command_line import settings_parser
from hmm_datasets.runtime.credentials import masked


def read_flags(
    text: str, fixed: Collection[str] = (), *, recipe: str = "pretrain", name: str | None = None
) -> dict[str, Any]:
    """The settings of `hmm-datasets pretrain`, or of another recipe, that flags give, by name.

    Args:
        text (`str`): the flags as on a command line.
        fixed (collection of `str`): settings that the experiment gives itself; what stands in the place of one of
            them, as `max_steps` in that of `train_tokens`, is refused too.
        recipe (`str`, *optional*, defaults to `"pretrain"`): the command.
        name (`str`, *optional*): the setting of the experiment that has the flags; by default that of the recipe.

    Raises:
        `InputError`: an unknown or malformed flag, a word that belongs to none, one of `fixed`, or a secret.

    ```python
    >>> read_flags("--learning-rate=1e-3 --fp16 --batch_ramp 16:100 32:300")
    {'learning_rate': 0.001, 'fp16': True, 'batch_ramp': ['16:100', '32:300']}

    ```
    """
    kinds, name = recipe_settings(recipe), name or recipe
    parser = settings_parser(kinds)
    try:
        words = shlex.split(text)
        parser.check_flags(words)
        arguments, strays = parser.parse(words)
    except ValueError as error:
        raise InputError(f"{name}: {error}") from None
    given = vars(arguments)
    if strays:
        raise InputError(f"{name}: {strays[0]}: not the value of any flag")
    groups = [group for kind in kinds for group in getattr(kind, "alternatives", ())]
    fixed = {*fixed, *(one for group in groups if not set(group).isdisjoint(fixed) for one in group)}
    for flag, value in given.items():
        if flag in fixed:
            raise InputError(f"{name}: --{flag} is decided by the experiment itself; leave it out")
        if masked({flag: value}) != {flag: value}:
            raise InputError(f"{name}: --{flag} is a secret, which files would show; set HF_TOKEN or the like instead")
    return given
