"""What the Trainer saves as a model, at the end and in every checkpoint: a folder for others to load.

Training keeps no cache of keys and values, and a configuration saved as it trains would have generation compute every
prefix anew; so the cache is on in what is saved. The Trainer also pickles its arguments into `training_args.bin`,
which nothing reads again and which holds paths of this machine: settings stand in `run.json`.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from transformers import PreTrainedConfig, PreTrainedModel

from ...compat.transformers import TRAINING_ARGS_NAME


@contextlib.contextmanager
def loadable(model: PreTrainedModel, folder: Path) -> Iterator[None]:
    """Have what is saved inside generate with a cache, and leave no pickled settings in the folder.

    Args:
        model ([`~transformers.PreTrainedModel`]): that is saved.
        folder (`Path`): where to.
    """
    generation = getattr(model, "generation_config", None)
    if generation is not None:
        generation.use_cache = True
    config = model.config
    places = {id(place): place for place in (config, config.get_text_config())}.values()
    before = [(place, place.use_cache) for place in places if hasattr(place, "use_cache")]
    _set_cache([(place, True) for place, _ in before])
    try:
        yield
    finally:
        _set_cache(before)
    (folder / TRAINING_ARGS_NAME).unlink(missing_ok=True)


def _set_cache(values: list[tuple[PreTrainedConfig, bool]]) -> None:
    for config, value in values:
        config.use_cache = value
