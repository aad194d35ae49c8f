"""Language models trained on data whose optimum is known: hidden Markov models as Hugging Face datasets.

Importing the package is quick: torch, transformers and datasets load when a name that needs them is first used.
`import hmm_datasets` also makes `datasets.load_dataset("hmm", data_dir=...)` work (see `hmm`).
"""

import importlib
from typing import TYPE_CHECKING

from .data.builders.registration import register as _register

if TYPE_CHECKING:
    from .data.hmm_sequences import HMMSequences
    from .hmm import processes
    from .hmm.fitting.fit import fit_hmm
    from .hmm.model import HMM

__version__ = "0.1.0"
__all__ = ["HMM", "HMMSequences", "fit_hmm", "processes"]

_MODULE_OF = {
    "HMM": "hmm_datasets.hmm.model",
    "HMMSequences": "hmm_datasets.data.hmm_sequences",
    "fit_hmm": "hmm_datasets.hmm.fitting.fit",
    "processes": "hmm_datasets.hmm.processes",
}


def __getattr__(name: str):
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(_MODULE_OF[name])
    return module if name == "processes" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULE_OF])


_register()
