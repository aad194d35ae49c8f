"""Retrieval or inference, unigram or bigram? Which algorithm a model uses on mixtures of Markov chains.

    hmm-datasets experiment four-phases --config four_phases/small.yaml

(Park et al., "Competition dynamics shape algorithmic phases of in-context learning", arXiv:2412.01003, 2025.) Every
sequence is from one of `N` Markov chains whose rows are drawn from a Dirichlet distribution. Four algorithms predict
it: they know the `N` chains and retrieve that of the sequence, or infer it anew, and they count symbols or pairs. A
small Llama is trained for each `N`, and compared with the four along training, on sequences of the mixture and of new
chains. The optimum on the mixture is bigram retrieval; on new chains it is bigram inference.

`result.md` in the output folder has the table, and `four_phases.png` the nearest algorithm by `N` and step, and the
divergence from both optima. When started again the experiment continues.
"""

from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

from hmm_datasets.runtime.program import run
from hmm_datasets.runtime.settings import setting

MEASUREMENTS_PER_DOUBLING = 2
"""Measurements per doubling of the step."""
LAYERS = 2
"""Layers of the models."""
WIDTH = 64
"""Width of the models."""
HEADS = 2
"""Their attention heads."""


@dataclass
class FourPhasesSettings:
    """Settings of the experiment."""

    output_dir: str = setting(MISSING, "Output folder.")
    chains: list[int] = setting([4, 16, 64, 256], "Numbers of chains.")
    symbols: int = setting(10, "Symbols of a chain.")
    alpha: float = setting(1.0, "Concentration per symbol of the rows of a chain.")
    length: int = setting(64, "Symbols per sequence.")
    steps: int = setting(600, "Optimizer steps.")
    batch_size: int = setting(32, "Sequences per optimizer step.")
    learning_rate: float = setting(3e-3, "Peak learning rate.")
    num_sequences: int = setting(256, "Held-out sequences of each kind to measure on.")
    seed: int = setting(0, "Seed of the weights.")


def main(settings: FourPhasesSettings) -> None:
    """Train and measure a model for each number of chains, draw, report."""
    from architectures import architecture_config
    from measure import NearestAlgorithm
    from plot import write_four_phases
    from small_runs import SmallRun, log_spaced_steps, measured_run

    from hmm_datasets.hmm.families.mixture import random_chain_mixture

    folder = Path(settings.output_dir)
    sizes = {"vocab_size": settings.symbols + 1, "length": settings.length + 1, "bos_token_id": settings.symbols}
    sizes |= {"width": WIDTH, "layers": LAYERS, "heads": HEADS}
    config = architecture_config("llama", **sizes)
    at = log_spaced_steps(settings.steps, MEASUREMENTS_PER_DOUBLING)
    results: dict[int, dict[str, Any]] = {}
    for count in sorted(settings.chains):
        mixture = random_chain_mixture(count, settings.symbols, alpha=settings.alpha)
        measure = NearestAlgorithm(mixture, settings.length, settings.num_sequences, settings.alpha)
        print(f"{count:,} chains", flush=True)
        measured = {"alpha": settings.alpha, "num_sequences": settings.num_sequences}
        run = SmallRun.of(settings)
        results[count] = measured_run(folder / f"chains-{count}", config, mixture, run, measure, at, **measured)
    protocol = (
        f"One Llama of {LAYERS} layers, width {WIDTH}, for each number of chains over "
        f"{settings.symbols} symbols: {settings.steps:,} steps of {settings.batch_size} sequences of "
        f"{settings.length} symbols. Measured on {settings.num_sequences:,} held-out sequences of the mixture and as "
        "many of new chains; the nearest algorithm has the smallest mean of both divergences, which is our reading of "
        "the paper."
    )
    write_four_phases(folder, results, protocol)


if __name__ == "__main__":
    run(main)
