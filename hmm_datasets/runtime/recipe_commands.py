"""The recipes as subcommands of `hmm-datasets`: an entry of [`RECIPE_COMMANDS`] is all that a new one needs beside its
script."""

import os
from pathlib import Path
from typing import Any

from .recipe_command import RecipeCommand
from .shipped import EXPERIMENTS, shipped

_TRAINER: dict[str, Any] = {"heading": "train", "trains": True, "has_plan": True, "last_file": "summary.json"}

RECIPE_COMMANDS = {
    "fit": RecipeCommand("fit_hmm.py", "data", first="--corpus", last_file="summary.json"),
    "tokenize": RecipeCommand("tokenize_corpus.py", "data", first="--corpus", launches=False),
    "tokenize --executor": RecipeCommand("tokenize_with_datatrove.py", launches=False),
    "demo": RecipeCommand("demo/run.py", "train", launches=False),
    "pretrain": RecipeCommand("pretrain.py", **_TRAINER),
    "midtrain": RecipeCommand("midtrain.py", **_TRAINER),
    "sft": RecipeCommand("sft.py", **_TRAINER),
    "grpo": RecipeCommand("grpo.py", **_TRAINER | {"has_plan": False}),  # how long answers will be is not known
    "dpo": RecipeCommand("dpo.py", **_TRAINER),
    "evaluate": RecipeCommand("evaluate_model.py", "measure", first="--model"),
}
"""The recipes by the commands that start them."""


def command_of_script(script: str | os.PathLike) -> list[str] | None:
    """The words that start a shipped recipe or experiment, wherever it is installed; None for other scripts."""
    path = Path(script).resolve()
    if not path.is_relative_to(shipped("recipes").resolve()):
        return None
    name = path.relative_to(shipped("recipes").resolve()).as_posix()
    recipe = next((recipe for recipe, command in RECIPE_COMMANDS.items() if command.script == name), None)
    if recipe is not None:
        return ["hmm-datasets", recipe.split()[0]]
    is_experiment = Path("recipes", name).parent.parent == Path(EXPERIMENTS) and path.name == "run.py"
    return ["hmm-datasets", "experiment", path.parent.name.replace("_", "-")] if is_experiment else None
