"""What a subcommand that starts a recipe is."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RecipeCommand:
    """A subcommand that starts a recipe.

    Attributes:
        script (`str`): the recipe, as a path below `recipes/`.
        summary (`str`): description for the list of commands.
        first (`str`, *optional*): flag for a first argument that is given without a flag, as in `evaluate MODEL`.
        launches (`bool`): whether it can run on several processes.
        launches_stages (`bool`): whether `--launch` is a setting of the recipe, for the stages that it starts.
    """

    script: str
    summary: str
    first: str | None = None
    launches: bool = True
    launches_stages: bool = False
