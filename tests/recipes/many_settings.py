"""Trains by one settings file after the other in the processes of one launcher: `many_settings.py LIST.json`.

LIST holds `[recipe, [argument, ...]]` for each. What differs from as many launches is that libraries are imported, and
the process group is made, once.
"""

import gc
import json
import runpy
import sys
from pathlib import Path

from hmm_datasets import launch

ROOT = Path(__file__).resolve().parents[2]


def train(recipe: str, arguments: list[str]) -> None:
    """What the recipe's program does between its start and its end."""
    from accelerate.state import AcceleratorState, GradientState, PartialState

    from hmm_datasets.training import command_line, settings

    sys.argv[:] = [recipe, *arguments]
    main, *kinds = runpy.run_path(str(ROOT / "recipes" / recipe), run_name="recipe")["main"], *kinds_of(recipe)
    main(*command_line.parse_settings(*(getattr(settings, one) if isinstance(one, str) else one for one in kinds)))
    AcceleratorState._reset_state()
    GradientState._reset_state()
    PartialState._reset_state()
    gc.collect()


def kinds_of(recipe: str) -> list:
    """The settings that the recipe gives to `run`."""
    given = []
    before, launch.run = launch.run, lambda main, *kinds: given.extend(kinds)
    try:
        runpy.run_path(str(ROOT / "recipes" / recipe), run_name="__main__")
    finally:
        launch.run = before
    return given


if __name__ == "__main__":
    for recipe, arguments in json.loads(Path(sys.argv[1]).read_text()):
        train(recipe, arguments)
