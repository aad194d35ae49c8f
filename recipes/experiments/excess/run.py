"""How close to the optimum does a small Llama come? One model per process, three seeds, on twelve known processes.

    hmm-datasets experiment excess --config excess/small.yaml [--processes mess3 even ...]

The processes are the twelve of the benchmark. A model of each is trained on its own sequences and scored on the
benchmark's held-out ones: its loss minus that of the exact HMM, in nats per symbol. The closest published figure is
the mean excess of 0.0138 nats over six families of HMMs and three seeds of "Markovian circuit tracing" (arXiv
2605.20824), whose processes are others. The same command continues.
"""

import shlex
import time
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

from hmm_datasets.errors import InputError
from hmm_datasets.runtime.program import run
from hmm_datasets.runtime.settings import setting

LAYERS = 4
"""Layers of the Llama."""
HEADS = 4
"""Its attention heads."""
WIDTH = 64
"""Its width."""
NUM_SEQUENCES = 256
"""Held-out sequences per process."""


@dataclass
class ExcessSettings:
    """Settings of the experiment."""

    output_dir: str = setting(MISSING, "Output folder.")
    processes: list[str] = setting([], "Names in the benchmark; all by default.")
    seeds: list[int] = setting([0, 1, 2], "Seeds of models and data.")
    train_tokens: int = setting(5_000_000, "Tokens that each model is trained on.")

    def __post_init__(self):
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise InputError(f"seeds is {self.seeds}; expected one or more different seeds")


def main(settings: ExcessSettings) -> None:
    """Train the models, score them, report."""
    from hmm_datasets.evaluation.benchmark.held_out import LENGTH
    from hmm_datasets.evaluation.benchmark.processes import chosen_processes
    from hmm_datasets.files import write_json
    from hmm_datasets.operations.stages import run_or_exit

    folder, began = Path(settings.output_dir), time.monotonic()
    chosen = chosen_processes(settings.processes or None)
    for name, hmm in chosen.items():
        hmm.save_pretrained(folder / "processes" / name)
    write_json(folder / "llama.json", configuration(settings, LENGTH))
    cells = [(name, seed) for seed in settings.seeds for name in chosen]
    run_or_exit([training(settings, folder, name, seed) for name, seed in cells])
    report(settings, folder, list(chosen), time.monotonic() - began)


def configuration(settings: ExcessSettings, length: int) -> dict[str, Any]:
    """The configuration of the Llama, for sequences of `length` symbols and a beginning token."""
    return {
        "model_type": "llama",
        "num_hidden_layers": LAYERS,
        "hidden_size": WIDTH,
        "intermediate_size": 32 * round(8 * WIDTH / 3 / 32),
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "max_position_embeddings": length + 1,
    }


def training(settings: ExcessSettings, folder: Path, name: str, seed: int) -> tuple[str, str]:
    """Title and command of one training run."""
    words: list[object] = ["--hmm", folder / "processes" / name, "--model", folder / "llama.json"]
    words += ["--train_tokens", settings.train_tokens]
    words += ["--seed", seed, "--data_seed", seed, "--output_dir", folder / f"seed-{seed}" / name]
    return f"{name}, seed {seed}", f"hmm-datasets pretrain --config excess/pretrain.yaml {shlex.join(map(str, words))}"


def report(settings: ExcessSettings, folder: Path, names: list[str], seconds: float) -> None:
    """Score all models, and write what was found."""
    import numpy as np
    from accelerate import Accelerator
    from published import Finding, Paper, write_result

    from hmm_datasets.evaluation.benchmark.held_out import open_benchmark
    from hmm_datasets.evaluation.benchmark.models import load_models
    from hmm_datasets.evaluation.benchmark.scoring import score_model
    from hmm_datasets.report.tables import Table
    from hmm_datasets.statistics import clustered_mean

    accelerator = Accelerator()
    held_out = open_benchmark(processes=names, num_sequences=NUM_SEQUENCES).processes
    by_seed = []
    for seed in settings.seeds:
        models = load_models(str(folder / f"seed-{seed}"), names, accelerator)
        by_seed.append(score_model(models, None, held_out, accelerator)["processes"])
    excess = np.array([[scores[name]["excess"] for name in names] for scores in by_seed])
    rows = [
        [
            name,
            *(f"{value:.5f}" for value in (of.mean(), of.min(), of.max(), by_seed[0][name]["baselines"]["uniform"])),
        ]
        for name, of in zip(names, excess.T, strict=True)
    ]
    print(Table("excess, nats per symbol", ["process", "mean", "min", "max", "uniform predictor"], rows).text())
    over_seeds = clustered_mean(excess)
    finding = Finding(
        f"mean excess over {len(names)} processes, nats per symbol",
        over_seeds.mean,
        over_seeds.standard_error,
        0.0138,
        "abstract",
        "other processes (six families of HMMs), model and budget",
    )
    write_result(
        folder,
        Paper("Markovian circuit tracing", "2605.20824", "mean excess loss"),
        [finding],
        protocol=(
            f"One Llama per process of {LAYERS} layers and width {WIDTH}, {settings.train_tokens:,} "
            f"tokens each, seeds {', '.join(map(str, settings.seeds))}; scored on {NUM_SEQUENCES} held-out "
            "sequences of 128 symbols per process. The error is over seeds."
        ),
        tokens=settings.train_tokens * excess.size,
        seconds=seconds,
        more={"excess": {name: of.tolist() for name, of in zip(names, excess.T, strict=True)}},
    )


if __name__ == "__main__":
    run(main)
