"""Five Llamas of 6 thousand to 1.2 million parameters, scored against twelve known processes.

    hmm-datasets experiment benchmark-models

The data set of the benchmark is written to `data/` in the output folder. Each model is trained on the same 2.5 million
tokens, drawn from the mixture of the twelve processes, and scored on the held-out sequences beside simpler predictors.
The last stage compares all models with the exact HMMs, which score 0. It takes about twenty minutes on a core; when
started again it continues where it stopped.
"""

import shlex
from dataclasses import dataclass
from pathlib import Path

from hmm_datasets.runtime.program import run
from hmm_datasets.runtime.settings import setting

SIZES = {"6k": (2, 16, 2), "28k": (2, 32, 4), "97k": (2, 64, 4), "340k": (3, 96, 4), "1.2m": (4, 160, 5)}
"""Layers, width and heads of each model."""


@dataclass
class BenchmarkModelsSettings:
    """Settings of the experiment."""

    output_dir: str = setting("outputs/benchmark", "Output folder.")


def main(settings: BenchmarkModelsSettings) -> None:
    """Write the data, train the models, score them."""
    from data_set import write_benchmark

    from hmm_datasets.files import write_json
    from hmm_datasets.operations.stages import run_or_exit

    folder = Path(settings.output_dir)
    write_benchmark(folder / "data")
    for name, size in SIZES.items():
        write_json(folder / f"{name}.json", configuration(*size))
    run_or_exit(stages(settings))


def configuration(layers: int, width: int, heads: int) -> dict:
    """The configuration of a Llama."""
    return {
        "model_type": "llama",
        "num_hidden_layers": layers,
        "hidden_size": width,
        "intermediate_size": 32 * round(8 * width / 3 / 32),
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "max_position_embeddings": 129,
    }


def stages(settings: BenchmarkModelsSettings) -> list[tuple[str, str]]:
    """Title and command of every stage."""
    folder = shlex.quote(settings.output_dir)
    data = f"{folder}/data"
    trained = [
        (
            f"A Llama of {name} parameters on the twelve processes",
            f"hmm-datasets pretrain --config benchmark_models/pretrain.yaml --hmm {data}/mixture "
            f"--model {folder}/{name}.json --output_dir {folder}/llama-{name}",
        )
        for name in SIZES
    ]
    models = {"the exact HMMs": f"{data}/processes"}
    models |= {f"the Llama of {name} parameters": f"{folder}/llama-{name}" for name in SIZES}
    scored = [
        (f"The scores of {title}", f"hmm-datasets benchmark --data {data} {path}") for title, path in models.items()
    ]
    results = " ".join(f"{path}/benchmark" for path in models.values())
    compared = f"hmm-datasets compare {results} --output_dir {folder}/comparison"
    return [*trained, *scored, ("All scores beside each other", compared)]


if __name__ == "__main__":
    run(main)
