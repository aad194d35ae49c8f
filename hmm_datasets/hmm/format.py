"""The format of the folder of an HMM: its version, and how transformers finds the code that reads it."""

from pathlib import Path
from typing import Literal

from ..files import atomic_file

FORMAT_VERSION = 1
"""Version of the format. It must change whenever `(hmm, seed, index)` would give other tokens."""

ModelType = Literal["hmm", "tilted_hmm"]
"""The `model_type` in `config.json`."""

_CLASSES: dict[ModelType, tuple[str, str, str]] = {
    "hmm": ("hmm_datasets.hmm.causal_lm", "HMMConfig", "HMMForCausalLM"),
    "tilted_hmm": ("hmm_datasets.hmm.tilted_causal_lm", "TiltedHMMConfig", "TiltedHMMForCausalLM"),
}


def loader_name(model_type: ModelType) -> str:
    """The file that the `auto_map` of a folder names."""
    return f"modeling_{model_type}.py"


def auto_map(model_type: ModelType) -> dict[str, str]:
    """Entry of `config.json` with which programs that never import this package load the folder by name."""
    _, config, model = _CLASSES[model_type]
    module = loader_name(model_type).removesuffix(".py")
    return {"AutoConfig": f"{module}.{config}", "AutoModelForCausalLM": f"{module}.{model}"}


def architecture(model_type: ModelType) -> str:
    """Name of the class of the causal language model."""
    return _CLASSES[model_type][2]


def write_loader(folder: Path, model_type: ModelType) -> None:
    """Write the file that `auto_map` names. With `trust_remote_code=True` it imports the classes of this package."""
    module, config, model = _CLASSES[model_type]
    with atomic_file(folder / loader_name(model_type)) as temporary:
        temporary.write_text(f"from {module} import {config}, {model}  # noqa: F401\n")
