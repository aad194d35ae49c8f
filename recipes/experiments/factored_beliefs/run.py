"""Does a transformer represent the factors of its data side by side, or their joint state? Dimensions of its hidden
states against both predictions.

    hmm-datasets experiment factored-beliefs --config factored_beliefs/small.yaml

(Shai et al., "Transformers learn factored representations", arXiv:2602.02385, 2026.) Several independent processes
emit a symbol each, and a token is their product. The beliefs of factors with `d_k` dimensions lie in `sum (d_k - 1)`
dimensions if each is represented by itself, and in `prod d_k - 1` if their joint distribution is. With `noises` a
token is replaced by a uniform one with that probability, so that factors depend on each other given the past.

A small Llama is trained for each noise. Along the way its residual stream after the last block is compared with exact
beliefs: principal components, R2 of linear probes of each factor's and of the joint belief, and angles between the
subspaces of factors. `result.md` in the output folder has the table, and `factored_beliefs.png` the variance by number
of components, with both predictions, and R2 over training. When started again the experiment continues.
"""

from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

from hmm_datasets.errors import InputError
from hmm_datasets.runtime.program import run
from hmm_datasets.runtime.settings import setting

MEASUREMENTS_PER_DOUBLING = 2
"""Measurements per doubling of the step."""
LENGTH = 8
"""Symbols per sequence."""
HEADS = 4
"""Attention heads."""


@dataclass
class FactoredBeliefsSettings:
    """Settings of the experiment."""

    output_dir: str = setting(MISSING, "Output folder.")
    factors: list[str] = setting(
        ["process:mess3(x=0.05,a=0.85)", "process:bloch_walk"], "Processes by name or folder."
    )
    noises: list[float] = setting([0.0], "Probabilities that a token is replaced by a uniform one.")
    layers: int = setting(3, "Layers of the model.")
    width: int = setting(64, "Width of the model.")
    steps: int = setting(1000, "Optimizer steps.")
    batch_size: int = setting(256, "Sequences per optimizer step.")
    learning_rate: float = setting(3e-3, "Peak learning rate.")
    num_sequences: int = setting(2048, "Held-out sequences that models are measured on.")
    seed: int = setting(0, "Seed of the weights.")


def main(settings: FactoredBeliefsSettings) -> None:
    """Train and measure a model for each noise, draw, report."""
    from architectures import architecture_config
    from measure import FactoredMeasure
    from plot import write_factored_beliefs
    from small_runs import SmallRun, log_spaced_steps, measured_run

    from hmm_datasets.hmm.families import load_source
    from hmm_datasets.hmm.structured.factored import FactoredProcess

    folder = Path(settings.output_dir)
    factors = [load_source(name) for name in settings.factors]
    shape = {"width": settings.width, "layers": settings.layers, "heads": HEADS}
    at = log_spaced_steps(settings.steps, MEASUREMENTS_PER_DOUBLING)
    results: dict[float, dict[str, Any]] = {}
    for noise in settings.noises:
        process = FactoredProcess(factors, noise=noise)
        measure = FactoredMeasure(process, LENGTH, settings.num_sequences)
        if (constant := measure.constant_factor()) is not None:
            raise InputError(
                f"factors has {settings.factors[constant]}, whose belief is the same after every symbol; expected "
                "processes whose belief changes, such as one of two states or more"
            )
        print(f"noise {noise:g}: {process.describe()}", flush=True)
        bos = process.num_symbols
        config = architecture_config("llama", vocab_size=bos + 1, length=LENGTH + 1, bos_token_id=bos, **shape)
        measured = {"num_sequences": settings.num_sequences}
        outcome = measured_run(
            folder / f"noise-{noise:g}", config, process, SmallRun.of(settings, length=LENGTH), measure, at, **measured
        )
        results[noise] = {**outcome, "exact": measure.exact()}
    protocol = (
        f"One Llama of {settings.layers} layers, width {settings.width}, for each noise: {settings.steps:,} steps of "
        f"{settings.batch_size} sequences of {LENGTH} symbols. Measured on {settings.num_sequences:,} "
        "held-out sequences, in the residual stream after the last block, before the final norm, at all positions "
        "after a symbol."
    )
    write_factored_beliefs(folder, results, settings.factors, protocol)


if __name__ == "__main__":
    run(main)
