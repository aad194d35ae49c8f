"""A subcommand of `hmm-datasets` that starts a recipe."""

import ast
from dataclasses import dataclass
from pathlib import Path

from .shipped import shipped


@dataclass(frozen=True)
class RecipeCommand:
    """A subcommand that starts a recipe.

    Attributes:
        script (`str`): the recipe, as a path below `recipes/`.
        heading (`str`, *optional*): that under which `--help` lists it.
        first (`str`, *optional*): flag for a first argument that is given without a flag, as in `evaluate MODEL`.
        launches (`bool`): whether it can run on several processes.
        trains (`bool`): whether it trains a model, in the precision that the launcher names.
        has_plan (`bool`): whether `hmm-datasets plan` computes what it will consume.
        last_file (`str`, *optional*): file of its output folder without which it has stopped before its end.
        sentence (`str`, *optional*): a description in place of the docstring's first line.
    """

    script: str
    heading: str | None = None
    first: str | None = None
    launches: bool = True
    trains: bool = False
    has_plan: bool = False
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
