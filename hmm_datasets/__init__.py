"""Language models trained on data whose optimum is known: hidden Markov models as Hugging Face datasets.

Importing the package is fast: torch, transformers and datasets are imported when a name that needs them is first used.
`import hmm_datasets` also makes `datasets.load_dataset("hmm", data_dir=...)` work (see `data.builders.hmm`).

The names in `__all__` are stable; everything else may move.
"""

import importlib
from typing import TYPE_CHECKING, Any

from .data.builders.registration import register as _register

if TYPE_CHECKING:  # `as` marks a name as offered here
    from .data.interleaving import InterleavedRows as InterleavedRows
    from .data.packing import PackedWindows as PackedWindows
    from .data.sequences import HMMSequences as HMMSequences
    from .data.windows import TokenWindows as TokenWindows
    from .errors import InputError as InputError
    from .evaluation.beliefs import probe_beliefs as probe_beliefs
    from .evaluation.evaluation import evaluate_model as evaluate_model
    from .evaluation.metrics import load_metric as load_metric
    from .evaluation.optimum import measure_optimum as measure_optimum
    from .evaluation.settings import EvaluationSettings as EvaluationSettings
    from .hmm import processes as processes
    from .hmm.families.chains import RandomChains as RandomChains
    from .hmm.families.mixture import HMMMixture as HMMMixture
    from .hmm.families.permuted import PermutedEmissions as PermutedEmissions
    from .hmm.families.permuted import PermutedSymbols as PermutedSymbols
    from .hmm.fitting.fit import fit_hmm as fit_hmm
    from .hmm.fitting.settings import FitSettings as FitSettings
    from .hmm.fitting.state import FitResult as FitResult
    from .hmm.generalized import GeneralizedHMM as GeneralizedHMM
    from .hmm.grammar.pcfg import PCFG as PCFG
    from .hmm.loading import load_source as load_source
    from .hmm.model import HMM as HMM
    from .hmm.structured.factored import FactoredProcess as FactoredProcess
    from .hmm.structured.markov import MarkovChain as MarkovChain
    from .hmm.tilted import TiltedHMM as TiltedHMM
    from .hub.push import push_folder as push_folder
    from .text.corpora.loading import load_corpus as load_corpus
    from .text.stream.reader import TokenStream as TokenStream
    from .text.stream.tokenization import tokenize_corpus as tokenize_corpus
    from .text.tokenizers.bpe import train_bpe as train_bpe
    from .text.tokenizers.words import build_word_corpus as build_word_corpus
    from .training.post_training.trainers import FineTuner as FineTuner
    from .training.post_training.trainers import PolicyTuner as PolicyTuner
    from .training.post_training.trainers import PreferenceTuner as PreferenceTuner
    from .training.run import train_and_save as train_and_save
    from .training.settings import DPOSettings as DPOSettings
    from .training.settings import GRPOSettings as GRPOSettings
    from .training.settings import PretrainSettings as PretrainSettings
    from .training.settings import SFTSettings as SFTSettings
    from .training.trainer import Pretrainer as Pretrainer

__version__ = "0.2.0"

_MODULE_OF = {
    "HMM": "hmm.model",
    "PCFG": "hmm.grammar.pcfg",
    "DPOSettings": "training.settings",
    "EvaluationSettings": "evaluation.settings",
    "FactoredProcess": "hmm.structured.factored",
    "FineTuner": "training.post_training.trainers",
    "FitResult": "hmm.fitting.state",
    "FitSettings": "hmm.fitting.settings",
    "GRPOSettings": "training.settings",
    "GeneralizedHMM": "hmm.generalized",
    "HMMMixture": "hmm.families.mixture",
    "HMMSequences": "data.sequences",
    "InputError": "errors",
    "InterleavedRows": "data.interleaving",
    "MarkovChain": "hmm.structured.markov",
    "PackedWindows": "data.packing",
    "PermutedEmissions": "hmm.families.permuted",
    "PermutedSymbols": "hmm.families.permuted",
    "PolicyTuner": "training.post_training.trainers",
    "PreferenceTuner": "training.post_training.trainers",
    "PretrainSettings": "training.settings",
    "Pretrainer": "training.trainer",
    "RandomChains": "hmm.families.chains",
    "SFTSettings": "training.settings",
    "TiltedHMM": "hmm.tilted",
    "TokenStream": "text.stream.reader",
    "TokenWindows": "data.windows",
    "build_word_corpus": "text.tokenizers.words",
    "evaluate_model": "evaluation.evaluation",
    "fit_hmm": "hmm.fitting.fit",
    "load_corpus": "text.corpora.loading",
    "load_metric": "evaluation.metrics",
    "load_source": "hmm.loading",
    "measure_optimum": "evaluation.optimum",
    "probe_beliefs": "evaluation.beliefs",
    "processes": "hmm.processes",
    "push_folder": "hub.push",
    "tokenize_corpus": "text.stream.tokenization",
    "train_and_save": "training.run",
    "train_bpe": "text.tokenizers.bpe",
}
__all__ = [*_MODULE_OF]


if not TYPE_CHECKING:  # otherwise a type checker would accept any name

    def __getattr__(name: str) -> Any:
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = importlib.import_module(f"{__name__}.{_MODULE_OF[name]}")
        return module if name == "processes" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULE_OF])


_register()
