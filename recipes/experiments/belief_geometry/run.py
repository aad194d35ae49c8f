"""Does a transformer that learns to predict an HMM's symbols represent the beliefs about its state, and where?

    hmm-datasets experiment belief-geometry [FOLDER] [--config belief_geometry/small.yaml] [--processes mess3 rrxor]

This repeats Shai, Marzen, Teixeira, Oldenziel and Riechers, "Transformers represent belief state geometry in their
residual stream", 2024 (arXiv 2405.15943), for two processes. Mess3 has three states and three symbols, and its beliefs
form a fractal in the simplex. (With `x = 0.15` and `a = 0.6`, the other common choice, the uniform distribution is
within 0.01 nats of the optimum, so that being near the optimum would show nothing.) RRXOR shows two random bits, then
their exclusive or. Its five states have 36 beliefs, but these have only 11 distributions of the next symbol: a last
layer that knew these alone would predict as well. The paper finds the beliefs of Mess3 in the last layer, and those of
RRXOR only in all layers together.

A small Llama learns to predict the sequences of each process. Then a linear map from its hidden states to the exact
beliefs is fitted on half of the held-out sequences and tested on the other half, layer by layer and for all layers
together. The controls show what a probe finds without learning: in an untrained network, for beliefs at other
positions, and from the last one, two or three symbols alone (Markov order).

`beliefs.png` in the folder shows the true beliefs beside those probed from the last layer and from all, and the share
of their variance explained by each layer; `result.md` has the numbers, and the report in `PROCESS/evaluation` all
figures. How the probe improves during training is shown by

    hmm-datasets evaluate FOLDER/PROCESS/pretrain --tasks beliefs training --checkpoints true

When started again the experiment continues where it stopped.
"""

import shlex
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hmm_datasets.errors import InputError
from hmm_datasets.runtime.program import run
from hmm_datasets.runtime.settings import setting

LENGTHS = {"mess3": 32, "rrxor": 10}
"""Symbols per sequence: few for RRXOR, most of whose beliefs occur only before an observer knows the phase."""


@dataclass
class BeliefGeometrySettings:
    """Settings of the experiment."""

    output_dir: str = setting("outputs/belief_geometry", "Output folder.")
    processes: list[str] = setting(list(LENGTHS), f"Some of {', '.join(LENGTHS)}.")
    model: str = setting(
        "recipes/experiments/belief_geometry/llama.json", "A size or a configuration of transformers."
    )
    train_sequences: int = setting(80_000, "Sequences that each model is trained on.")
    num_sequences: int = setting(2048, "Held-out sequences that probes are fitted and tested on.")
    launcher: str = setting("cpu2", "Launch configuration of all commands; empty for none.")
    seed: int = setting(0, "Seed of the weights and of the sequences.")

    def __post_init__(self):
        unknown = sorted(set(self.processes) - LENGTHS.keys())
        if unknown or not self.processes:
            raise InputError(f"processes is {self.processes}; expected some of {', '.join(LENGTHS)}")


def main(settings: BeliefGeometrySettings) -> None:
    """Write the HMMs, train, evaluate, report."""
    from hmm_datasets.hmm import processes
    from hmm_datasets.operations.stages import run_or_exit

    folder, began = Path(settings.output_dir), time.monotonic()
    sources = {"mess3": processes.mess3(x=0.05, a=0.85), "rrxor": processes.rrxor()}
    for name in settings.processes:
        sources[name].save_pretrained(folder / name / "hmm")
    run_or_exit([stage for name in settings.processes for stage in stages(settings, folder / name, name)])
    report(settings, folder, time.monotonic() - began)


def stages(settings: BeliefGeometrySettings, folder: Path, name: str) -> list[tuple[str, str]]:
    """Title and command of what is done for one process."""
    launch = f"--launch {settings.launcher} " if settings.launcher else ""
    where = {part: shlex.quote(str(folder / part)) for part in ("hmm", "pretrain", "evaluation")}
    evaluate = f"hmm-datasets evaluate {where['pretrain']} {launch}--num_sequences {settings.num_sequences} "
    training = (
        f"hmm-datasets pretrain {launch}--config belief_geometry/pretrain.yaml --hmm {where['hmm']} "
        f"--length {LENGTHS[name]} --model {shlex.quote(settings.model)} --seed {settings.seed} "
        f"--data_seed {settings.seed} "
        f"--train_tokens {trained_tokens(settings, name)} --output_dir {where['pretrain']}"
    )
    return [
        (f"A Llama on sequences of {name}", training),
        (
            f"{name}: its distance from the optimum, and probes for the beliefs",
            f"{evaluate}--tasks optimum beliefs training --output_dir {where['evaluation']}",
        ),
    ]


def trained_tokens(settings: BeliefGeometrySettings, name: str) -> int:
    """Tokens that the model of one process is trained on; every sequence has a beginning token too."""
    return settings.train_sequences * (LENGTHS[name] + 1)


def report(settings: BeliefGeometrySettings, folder: Path, seconds: float) -> None:
    """Write what was found beside what the paper shows, and draw the beliefs."""
    from measure import probed_beliefs
    from plot import plot_belief_layers
    from published import Finding, Paper, write_result

    from hmm_datasets.files import read_json

    reports = {name: read_json(folder / name / "evaluation" / "report.json") for name in settings.processes}
    clouds = {
        name: probed_beliefs(
            folder / name / "pretrain",
            folder / name / "hmm",
            LENGTHS[name],
            settings.num_sequences,
            seed=settings.seed,
        )
        for name in settings.processes
    }
    figures = {name: result["beliefs"]["layers"] for name, result in reports.items()}
    shown = {
        "mess3": "represented in the final residual stream",
        "rrxor": "distributed over the residual streams of several layers",
    }
    findings = []
    for name, result in reports.items():
        layers, gap = result["beliefs"]["layers"], result["optimum"]["bayes_gap"]
        last = str(len(layers) - 2)
        stated = {"published": shown[name], "where": "abstract"}
        findings += [
            Finding(f"{name}: excess over the optimal loss, nats per symbol", gap["bayes_gap"], gap["standard_error"]),
            Finding(f"{name}: R2 of the beliefs from the last layer", layers[last]["r2"], **stated),
            Finding(f"{name}: R2 from all layers together", layers["all"]["r2"], **stated),
            Finding(f"{name}: RMSE from all layers together", layers["all"]["rmse"]),
            Finding(f"{name}: R2 from all layers of an untrained model", layers["all"]["untrained_r2"]),
        ]
        if name == "rrxor":
            for where, share in clouds[name].nearest().items():
                findings.append(Finding(f"rrxor: share of positions nearest to their own belief, {where}", share))
    lengths = " and ".join(f"{LENGTHS[name]} ({name})" for name in reports)
    write_result(
        folder,
        Paper(
            "Transformers represent belief state geometry in their residual stream", "2405.15943", "Mess3 and RRXOR"
        ),
        findings,
        protocol=(
            f"One model per process ({settings.model}), {settings.train_sequences:,} sequences, seed {settings.seed}; "
            f"linear probes on {settings.num_sequences} held-out sequences of {lengths} "
            "symbols, fitted on one half and tested on the other. The last layer is the hidden state after the final "
            "norm. Numbers of the paper were not read, only what its abstract says; its models are not Llamas."
        ),
        tokens=sum(trained_tokens(settings, name) for name in reports),
        seconds=seconds,
        pictures={"beliefs.png": partial(plot_belief_layers, figures, clouds)},
        more={"layers": figures},
    )


if __name__ == "__main__":
    run(main)
