"""The recipes as subcommands of `hmm-datasets`: an entry of [`RECIPE_COMMANDS`] is all that a new one needs beside its
script."""

import ast
import os
from dataclasses import dataclass
from pathlib import Path

from .shipped import EXPERIMENTS, shipped


@dataclass(frozen=True)
class RecipeCommand:
    """A subcommand that starts a recipe.

    Attributes:
        script (`str`): the recipe, as a path below `recipes/`.
        heading (`str`, *optional*): that under which `--help` lists it.
        first (`str`, *optional*): flag for a first argument that is given without a flag, as in `evaluate MODEL`.
        launches (`bool`): whether it can run on several processes.
        launches_stages (`bool`): whether `--launch` is a setting of the recipe, for the stages that it starts.
        trains (`bool`): whether it trains a model, in the precision that the launcher names.
        last_file (`str`, *optional*): file of its output folder without which it has stopped before its end.
        sentence (`str`, *optional*): a description in place of the docstring's first line.
    """

    script: str
    heading: str | None = None
    first: str | None = None
    launches: bool = True
    launches_stages: bool = False
    trains: bool = False
    last_file: str | None = None
    sentence: str | None = None

    @property
    def path(self) -> Path:
        """The path of the script."""
        return shipped("recipes") / self.script

    @property
    def summary(self) -> str:
        """What it does: the first line of the docstring of the script, without the full stop."""
        if self.sentence is not None:
            return self.sentence
        documentation = ast.get_docstring(ast.parse(self.path.read_text(encoding="utf-8"))) or self.path.stem
        return documentation.partition("\n")[0].removesuffix(".")


def _trainer(script: str) -> RecipeCommand:
    return RecipeCommand(script, "train", trains=True, last_file="summary.json")


RECIPE_COMMANDS = {
    "fit": RecipeCommand("fit_hmm.py", "data", first="--corpus", last_file="summary.json"),
    "tokenize": RecipeCommand("tokenize_corpus.py", "data", first="--corpus", launches=False),
    "tokenize --executor": RecipeCommand("tokenize_with_datatrove.py", launches=False),
    "demo": RecipeCommand("demo/run.py", "train", launches=False),
    "pretrain": _trainer("pretrain.py"),
    "midtrain": _trainer("midtrain.py"),
    "sft": _trainer("sft.py"),
    "grpo": _trainer("grpo.py"),
    "dpo": _trainer("dpo.py"),
    "evaluate": RecipeCommand("evaluate_model.py", "measure", first="--model"),
    "push --config": RecipeCommand("push.py", launches=False),
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
