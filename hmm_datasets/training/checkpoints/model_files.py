"""The files of a saved model, at the end of a run and in every checkpoint.

Training turns the cache of keys and values off. A configuration saved that way would make generation recompute every
prefix, so the saved configuration turns it on. The Trainer also pickles its arguments into `training_args.bin`; this
file is removed, since nothing reads it again, it contains paths of this machine, and `run.json` has the settings.

Beside a LoRA adapter peft writes a draft of a card, which is removed too, and not the generation config, without which
a chat model would not end its turns.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from accelerate.utils import is_peft_model
from transformers import PreTrainedModel

from ...compat.transformers import TRAINING_ARGS_NAME
from ...hub.cards import CARD_NAME


@contextlib.contextmanager
def loadable(model: PreTrainedModel, folder: Path) -> Iterator[None]:
    """Within this context a saved model generates with a cache; at its end, pickled settings are removed.

    Args:
        model ([`~transformers.PreTrainedModel`]): the model that is saved.
        folder (`Path`): where it is saved.
    """
    generation = getattr(model, "generation_config", None)
    if generation is not None:
        generation.use_cache = True
    configs = {id(config): config for config in (model.config, model.config.get_text_config())}.values()
    with contextlib.ExitStack() as changed:
        for config in configs:
            if hasattr(config, "use_cache"):
                changed.enter_context(mock.patch.object(config, "use_cache", True))
        yield
    (folder / TRAINING_ARGS_NAME).unlink(missing_ok=True)
    if is_peft_model(model):
        (folder / CARD_NAME).unlink(missing_ok=True)
        generation.save_pretrained(folder)
