"""What the Trainer saves as a model, at the end and in every checkpoint: a folder for others to load.

Training keeps no cache of keys and values, and a configuration saved as it trains would have generation compute every
prefix anew; so the cache is on in what is saved. The Trainer also pickles its arguments into `training_args.bin`,
which nothing reads again and which holds paths of this machine: settings stand in `run.json`.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from transformers import PreTrainedConfig
from transformers.trainer import TRAINING_ARGS_NAME


class ModelFolders:
    """Mixed into a Trainer."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        generation = getattr(self.model, "generation_config", None)
        if generation is not None:
            generation.use_cache = True

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        with _cache_on(self.accelerator.unwrap_model(self.model, keep_torch_compile=False).config):
            super()._save(output_dir, state_dict)
        if self.args.should_save:
            Path(output_dir or self.args.output_dir, TRAINING_ARGS_NAME).unlink(missing_ok=True)


@contextlib.contextmanager
def _cache_on(config: PreTrainedConfig) -> Iterator[None]:
    places = {id(place): place for place in (config, config.get_text_config())}.values()
    before = [(place, place.use_cache) for place in places if hasattr(place, "use_cache")]
    for place, _ in before:
        place.use_cache = True
    try:
        yield
    finally:
        for place, value in before:
            place.use_cache = value
