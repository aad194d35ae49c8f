"""From uniform to unigram to bigram to optimal: when does a model learn to count in its context?

    hmm-datasets experiment icl-transition [--config icl_transition/doubly_stochastic.yaml] [--num_states 50 ...]

Every row comes from a different Markov chain over three symbols, whose transition rows are drawn from a Dirichlet
distribution with concentration 0.3. So a model cannot learn the statistics of one chain; to predict well, it must
estimate them from the row itself. The optimum is known exactly: it predicts by the counts of what followed each symbol
in the row, plus 0.3. The weaker predictors are known too: the uniform distribution, and the unigram and the bigram of
the context. Such a model stays near the unigram for a while, until attention heads form that look up what followed the
current symbol before; see Edelman, Edelman, Goel, Malach and Tsilivis, "The Evolution of Statistical Induction Heads:
In-Context Learning Markov Chains", 2024.

The settings vary the prior of the chains: 50 symbols (`fifty_symbols.yaml`), doubly stochastic tables, whose unigram
says nothing (`doubly_stochastic.yaml`), rows of Zipf's law (`zipf.yaml`), a stationary first symbol
(`stationary.yaml`). The optimum of the last three has no closed form; there the excess is over the oracle, which knows
each chain.

The report in `outputs/icl_transition/evaluation` shows the divergence from each predictor during training, and the
steps at which the model is closest to a predictor and passes it. It takes some minutes on two cores; when started
again it continues where it stopped.
"""

import shlex
from dataclasses import dataclass, field
from pathlib import Path

from hmm_datasets.runtime.program import run


@dataclass
class ICLTransitionSettings:
    """Settings of the experiment."""

    output_dir: str = field(default="outputs/icl_transition", metadata={"help": "Output folder."})
    num_states: int = field(default=3, metadata={"help": "Symbols of a chain."})
    alpha: float | None = field(
        default=None, metadata={"help": "Concentration of the rows of a chain per symbol; 0.3 without zipf."}
    )
    zipf: float | None = field(
        default=None, metadata={"help": "Exponent of Zipf's law for the rows, instead of alpha."}
    )
    doubly_stochastic: bool = field(default=False, metadata={"help": "Columns of the tables sum to one too."})
    start: str = field(
        default="uniform", metadata={"help": "Distribution of the first symbol: uniform or stationary."}
    )
    length: int = field(default=96, metadata={"help": "Symbols per sequence."})
    max_steps: int = field(default=600, metadata={"help": "Optimizer steps."})
    num_sequences: int = field(default=1024, metadata={"help": "Held-out sequences that the model is measured on."})


def main(settings: ICLTransitionSettings) -> None:
    """Save the chains, train, evaluate."""
    from hmm_datasets.operations.stages import run_or_exit

    folder = Path(settings.output_dir)
    chains(settings).save_pretrained(folder / "chains")
    run_or_exit(stages(settings))


def chains(settings: ICLTransitionSettings):
    """The family of chains that the settings describe."""
    from hmm_datasets.hmm.families import RandomChains

    alpha = 0.3 if settings.alpha is None and settings.zipf is None else settings.alpha
    return RandomChains(
        settings.num_states,
        alpha=alpha,
        zipf=settings.zipf,
        doubly_stochastic=settings.doubly_stochastic,
        start=settings.start,
    )


def stages(settings: ICLTransitionSettings) -> tuple[tuple[str, str], ...]:
    """Title and command of each stage."""
    folder = Path(settings.output_dir)
    source, model, evaluation = (shlex.quote(str(folder / name)) for name in ("chains", "pretrain", "evaluation"))
    return (
        (
            "A Llama of two layers; every row from a different chain",
            f"hmm-datasets pretrain --launch cpu2 --config icl_transition/pretrain.yaml --hmm {source} "
            f"--length {settings.length} --max_steps {settings.max_steps} --output_dir {model}",
        ),
        (
            "Which predictor was it like, and when?",
            f"hmm-datasets evaluate {model} --launch cpu2 --tasks optimum training "
            f"--num_sequences {settings.num_sequences} --output_dir {evaluation}",
        ),
    )


if __name__ == "__main__":
    run(main, ICLTransitionSettings)
