"""What a subcommand that starts a recipe is."""

import ast
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RecipeCommand:
    """A subcommand that starts a recipe.

    Attributes:
        script (`str`): the recipe, as a path below `recipes/`.
        summary (`str`): description for the list of commands.
        first (`str`, *optional*): flag for a first argument that is given without a flag, as in `evaluate MODEL`.
        launches (`bool`): whether it can run on several processes.
        launches_stages (`bool`): whether `--launch` is a setting of the recipe, for the stages that it starts.
        trains (`bool`): whether it trains a model, in the precision that the launcher names.
    """

    script: str
    summary: str
    first: str | None = None
    launches: bool = True
    launches_stages: bool = False
    trains: bool = False


def summary_of(script: Path) -> str:
    """The first line of the docstring of a script, without the full stop."""
    documentation = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or script.stem
    return documentation.partition("\n")[0].removesuffix(".")
