"""The settings dataclasses of a recipe, read from its script without running it."""

import importlib.util
import sys
import types
from functools import cache
from pathlib import Path

from ..runtime.shipped import shipped
from .launching import recipe_command
from .recipe_help import declared_kinds


@cache
def recipe_settings(name: str) -> tuple[type, ...]:
    """The dataclasses that a recipe passes to `run`; none if it reads its arguments itself.

    Args:
        name (`str`): name of a recipe or an experiment.
    """
    path = shipped("recipes") / recipe_command(name).script
    return tuple(
        _of_training(kind) if of_training else getattr(_module(path), kind)
        for kind, of_training in declared_kinds(path)
    )


def _of_training(name: str) -> type:
    from ..training import settings  # slow, and not needed for all recipes

    return getattr(settings, name)


def _module(path: Path) -> types.ModuleType:
    name = f"_recipe_{path.parent.name}_{path.stem}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]
