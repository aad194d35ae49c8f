"""Counts the settings that recipes and experiments declare: `python tests/settings_count.py`.

Settings of transformers and TRL whose default a class changes are counted too, and also shown apart.
"""

import dataclasses

from hmm_datasets.operations.launching import declared_kinds, recipe_command, recipe_names


def declared_settings(recipe: str) -> set[str]:
    """The names of the settings that a recipe or experiment declares."""
    kinds = declared_kinds(recipe_command(recipe).path)
    return {field.name for kind in kinds for field in dataclasses.fields(kind)}


def count_settings() -> dict[str, int]:
    """The number of declared settings of every recipe and experiment, by its name."""
    return {recipe: len(declared_settings(recipe)) for recipe in recipe_names()}


def others() -> set[str]:
    """The names of the settings of transformers and TRL."""
    from transformers import TrainingArguments
    from trl import DPOConfig, GRPOConfig, ModelConfig, SFTConfig

    kinds = (TrainingArguments, SFTConfig, DPOConfig, GRPOConfig, ModelConfig)
    return {field.name for kind in kinds for field in dataclasses.fields(kind)}


if __name__ == "__main__":
    known = others()
    print("declared  of them not of transformers or TRL")
    for recipe, count in count_settings().items():
        print(f"{count:8}  {len(declared_settings(recipe) - known):8}  {recipe}")
    print(
        f"{sum(count_settings().values()):8}  {sum(len(declared_settings(r) - known) for r in recipe_names()):8}  all"
    )
