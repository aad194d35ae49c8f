"""Trains by one settings file after the other in the processes of one launcher: `many_settings.py LIST.json`.

LIST holds `[recipe, [argument, ...]]` for each. What differs from as many launches is that libraries are imported, and
the process group is made, once.
"""

import gc
import json
import runpy
import sys
from pathlib import Path

from hmm_datasets.operations.launching import recipe_settings
from hmm_datasets.runtime.shipped import shipped


def train(recipe: str, arguments: list[str]) -> None:
    """What the recipe's program does between its start and its end."""
    from accelerate.state import AcceleratorState, GradientState, PartialState

    from hmm_datasets.runtime.command_line import parse_settings

    sys.argv[:] = [recipe, *arguments]
    main = runpy.run_path(str(shipped(f"recipes/{recipe}.py")))["main"]
    main(*parse_settings(*recipe_settings(recipe), arguments=arguments))
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
    gc.collect()


if __name__ == "__main__":
    for recipe, arguments in json.loads(Path(sys.argv[1]).read_text()):
        train(recipe, arguments)
