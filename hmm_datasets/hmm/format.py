"""The format of the folder of an HMM: its version, and how transformers finds the code that reads it."""

from pathlib import Path

from ..files import atomic_file

FORMAT_VERSION = 1
"""Version of the format. It must change whenever `(hmm, seed, index)` would give other tokens."""

_LOADER = "modeling_hmm"
LOADER_NAME = f"{_LOADER}.py"

AUTO_MAP = {"AutoConfig": f"{_LOADER}.HMMConfig", "AutoModelForCausalLM": f"{_LOADER}.HMMForCausalLM"}
"""Entry of `config.json` with which programs that never import this package load the HMM by name."""


def write_loader(folder: Path) -> None:
    """Write the file that `AUTO_MAP` names. With `trust_remote_code=True` it imports the classes of this package."""
    with atomic_file(folder / LOADER_NAME) as temporary:
        temporary.write_text("from hmm_datasets.hmm.causal_lm import HMMConfig, HMMForCausalLM  # noqa: F401\n")
