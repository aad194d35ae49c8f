"""`hmm-datasets plan` of a settings file for `hmm-datasets fit`."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...files import read_yaml
from ...recipe_settings import recipe_settings
from ..command_line import parse_settings


def is_fit(path: str | os.PathLike) -> bool:
    """Whether a settings file is that of a fit."""
    content = read_yaml(Path(path))
    return "num_states" in content and not {"hmm", "tokens", "streams"} & content.keys()


def plan_fit_recipe(
    path: str | os.PathLike, flags: Sequence[str] = (), *, required: bool = False
) -> dict[str, Any] | None:
    """Plan the fit that a settings file of `recipes/fit_hmm.py` describes.

    A corpus is not read for it: its tokens are those of `assumed_tokens`. Those of a `.npy` file are counted.

    Args:
        path (path): the YAML file.
        flags (sequence of `str`): flags of the recipe that override the file.
        required (`bool`): whether it is an error if the tokens are not known, instead of no plan.

    Returns:
        `dict`: see [`~hmm_datasets.hmm.fitting.plan.plan_fit`]; `None` if the tokens are not known.

    Raises:
        `InputError`: settings that the recipe would refuse too, or no plan although it is `required`.
    """
    from ...hmm.fitting.plan import plan_fit
    from ...token_arrays import read_tokens

    corpus, fit = parse_settings(*recipe_settings("fit"), arguments=["--config", str(path), *flags])
    num_tokens, length, num_symbols = corpus.assumed_tokens, corpus.length, corpus.vocabulary_size
    if corpus.is_array and os.path.exists(corpus.corpus):
        tokens = read_tokens(corpus.corpus)
        num_tokens, length = tokens.size, tokens.shape[1]
        num_symbols = corpus.num_symbols or int(tokens.max()) + 1
    if num_tokens is None:
        if required:
            raise InputError(
                f"{path}: the tokens of {corpus.corpus} are not known before it is read; set assumed_tokens"
            )
        return None
    return plan_fit(fit, num_tokens, length, num_symbols, flops_per_second=corpus.assumed_flops)
