"""How does the loss fall along the context when every sequence comes from one of many processes?

    hmm-datasets experiment nonergodic --config nonergodic/small.yaml [--counts 4 32 1024 ...]

Riechers, Bigelow, Alt and Shai, "Next-token pretraining implies in-context learning", 2025 (arXiv 2505.18373), argue
that a model trained on non-ergodic data must learn in context, and show power-law scaling of the in-context loss. We
could read only the paper's abstract, so the data here are ours: mixtures of `N` random Markov chains over two symbols,
with rows drawn uniformly from the simplex; the limit of infinitely many such chains; and a mixture of Mess3 processes
with random parameters, whose states are hidden. For all of them the Bayes-optimal predictor is exact.

The excess at a position is that over an oracle that knows the process, whose loss is the entropy rate (see
`measure.py`). Theory says `d / 2t` for `d` continuous parameters, here `1 / t`; a mixture of `N`
processes follows it until it has found out which one it reads, after at most `ln N` nats. `excess.png` shows the
excess of the optimum and of a small Llama, trained on the largest mixture of chains, on logarithmic axes; `result.md`
has the exponents. When started again the experiment continues where it stopped.
"""

import itertools
import math
import shlex
import time
from dataclasses import MISSING, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hmm_datasets.errors import InputError
from hmm_datasets.runtime.program import run
from hmm_datasets.runtime.settings import setting

MESS3 = 64
"""Components of the mixture of Mess3 processes."""
FIT_FIRST = 16
"""First position of the fitted power law."""
DEFAULTS = "--model recipes/experiments/nonergodic/llama.json --global_batch_size 8 --learning_rate 3e-3"
"""Flags of pretraining that others take the place of."""
GIVEN = ("output_dir", "hmm", "length", "train_tokens", "seed", "data_seed")
"""Settings of pretraining that the experiment gives."""


@dataclass
class NonergodicSettings:
    """Settings of the experiment."""

    output_dir: str = setting(MISSING, "Output folder.")
    counts: list[int] = setting([16, 128, 1024], "Chains of each mixture.")
    length: int = setting(512, "Symbols per sequence.")
    num_sequences: int = setting(2048, "Held-out sequences of each process.")
    train_tokens: int = setting(2_000_000, "Tokens that the model is trained on.")
    pretrain: str = setting("", f"Flags of pretraining, beyond '{DEFAULTS}' and nonergodic/pretrain.yaml.")
    seed: int = setting(0, "Seed of the chains, the sequences and the model.")

    def __post_init__(self):
        if not self.counts or min(self.counts) < 2:
            raise InputError(f"counts is {self.counts}; expected numbers of chains, 2 or more, so that one is unknown")
        if self.length < 8 * FIT_FIRST:
            raise InputError(
                f"length is {self.length}; expected {8 * FIT_FIRST} or more, so that a power law can be fitted"
            )

    @property
    def fit_last(self) -> int:
        """Last position of the fitted power law."""
        return self.length // 4


def main(settings: NonergodicSettings) -> None:
    """Train, compute the excess of everything, report."""
    from measure import excess_by_position, fit_power_law

    from hmm_datasets.operations.stages import run_or_exit

    folder, began = Path(settings.output_dir), time.monotonic()
    flags = flags_of(settings)
    sources = processes_of(settings)
    largest = f"{max(settings.counts):,} chains"
    excess, fits = {}, {}
    for name, source in sources.items():
        print(f"excess of the optimum of {name}", flush=True)
        excess[name] = excess_by_position(source, settings.num_sequences, settings.length, seed=settings.seed + 1)
        # Before the training, which is in vain if there is nothing to fit.
        fits[name] = fit_power_law(excess[name], FIT_FIRST, settings.fit_last)
    sources[largest].save_pretrained(folder / "process")
    run_or_exit([training(settings, folder)])
    predictor = predictor_of(folder / "model")
    held_out = {"seed": settings.seed + 1, "predictor": predictor}
    excess["model"] = excess_by_position(sources[largest], settings.num_sequences, settings.length, **held_out)
    fits["model"] = fit_power_law(excess["model"], FIT_FIRST, settings.fit_last)
    report(settings, folder, excess, fits, largest, flags["model"], time.monotonic() - began)


def processes_of(settings: NonergodicSettings) -> dict[str, Any]:
    """The processes, by name."""
    import numpy as np

    from hmm_datasets.hmm import processes
    from hmm_datasets.hmm.families import HMMMixture, RandomChains
    from hmm_datasets.hmm.families.mixture import random_chain_mixture

    sources: dict[str, Any] = {
        f"{n:,} chains": random_chain_mixture(n, 2, seed=settings.seed) for n in settings.counts
    }
    sources["all chains"] = RandomChains(num_states=2, alpha=1.0)
    generator = np.random.default_rng(settings.seed)
    drawn = generator.uniform((0.02, 0.4), (0.3, 0.98), size=(MESS3, 2)).tolist()
    hmms = [processes.mess3(x=x, a=a) for x, a in drawn]
    sources[f"{MESS3} Mess3"] = HMMMixture(hmms, [1 / len(hmms)] * len(hmms))
    return sources


def flags_of(settings: NonergodicSettings) -> dict[str, Any]:
    """The flags of pretraining, by name."""
    from stage_flags import read_flags

    return read_flags(f"{DEFAULTS} {settings.pretrain}", GIVEN)


def training(settings: NonergodicSettings, folder: Path) -> tuple[str, str]:
    """Title and command of the training."""
    words: list[object] = ["--hmm", folder / "process", "--length", settings.length]
    words += ["--train_tokens", settings.train_tokens, "--seed", settings.seed, "--data_seed", settings.seed]
    words += ["--output_dir", folder / "model"]
    flags = f"--config nonergodic/pretrain.yaml {DEFAULTS} {settings.pretrain}".rstrip()
    command = f"hmm-datasets pretrain {flags} {shlex.join(map(str, words))}"
    return f"A Llama on a mixture of {max(settings.counts):,} chains", command


def predictor_of(folder: Path) -> Any:
    """What the model in a folder predicts about the symbols, from tokens `(B, T)` to probabilities `(B, T, E)`."""
    import torch
    from symbol_predictions import symbol_log_probs
    from transformers import AutoModelForCausalLM

    from hmm_datasets.training.pretrained import load_pretrained

    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    model = load_pretrained(AutoModelForCausalLM, str(folder)).to(device).eval()

    def predict(tokens: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            parts = [symbol_log_probs(model, part.to(device), model.config.bos_token_id) for part in tokens.split(16)]
            return torch.cat(parts).exp().cpu()

    return predict


def draw(excess: dict[str, Any], fits: dict[str, Any], settings: NonergodicSettings, path: Path) -> None:
    """Draw the excess by position, averaged over eighths of doublings, with what theory says about chains."""
    import numpy as np
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from hmm_datasets.report.plots import PAPER, WIDTH, markers, save_figure

    edges = np.unique(np.geomspace(1, settings.length, 8 * math.ceil(math.log2(settings.length))).astype(int))
    spans = list(itertools.pairwise(edges))
    centers = [math.exp(np.log(np.arange(a, b)).mean()) for a, b in spans]
    colors = ("#56B4E9", "#0072B2", "#009E73", "#CC79A7", "#D55E00", "#E69F00", "#F0E442")
    with rc_context(PAPER):
        figure = Figure(figsize=(1.35 * WIDTH, 3.1), layout="constrained")
        axes = figure.subplots()
        axes.axvspan(FIT_FIRST, settings.fit_last, color="black", alpha=0.06, linewidth=0)
        for number, (name, rows) in enumerate(excess.items()):
            means = [rows[:, a:b].mean() for a, b in spans]
            color = "black" if name == "model" else colors[number % len(colors)]
            who = f"Llama, {max(settings.counts):,} chains" if name == "model" else f"optimum, {name}"
            fit = fits[name]
            label = f"{who}: exponent {fit.exponent:.2f}" if fit.is_straight else f"{who}: no power law"
            axes.plot(centers, means, color=color, label=label, **markers(number, len(centers)))
        axes.plot(centers, [1 / t for t in centers], color="grey", linestyle=":", label="theory for chains: 1/t")
        axes.set(xscale="log", yscale="log", xlabel="symbols of context, t", ylabel="excess over the oracle (nats)")
        axes.set_title(f"exponents fitted in the grey range, {FIT_FIRST} to {settings.fit_last}")
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        save_figure(figure, path)


def report(
    settings: NonergodicSettings,
    folder: Path,
    excess: dict[str, Any],
    fits: dict[str, Any],
    largest: str,
    model: str,
    seconds: float,
) -> None:
    """Write the exponents and the information gained, and draw the excess."""
    from published import Finding, Paper, write_result

    from hmm_datasets.statistics import clustered_mean

    findings = []
    for name, fit in fits.items():
        who = f"Llama, {largest}" if name == "model" else f"optimum, {name}"
        if not fit.is_straight:
            quantity = f"largest distance of the logarithm of the excess from a line: {who}"
            findings.append(Finding(quantity, fit.deviation, difference="no power law in the fitted range"))
            continue
        findings.append(
            Finding(
                f"exponent of the excess: {who} (95%: {fit.interval[0]:.3f} to {fit.interval[1]:.3f})",
                fit.exponent,
                fit.standard_error,
                published="a power law",
                where="abstract",
                difference="our data; by theory 1 far along" if name == "all chains" else "our data",
            )
        )
    gained = clustered_mean(excess[largest].sum(1, keepdims=True))
    findings.append(
        Finding(
            f"information about which of {largest} in {settings.length} symbols, nats; at most "
            f"{math.log(max(settings.counts)):.3f}",
            gained.mean,
            gained.standard_error,
        )
    )
    above = clustered_mean(excess["model"] - excess[largest])
    title = "excess of the Llama over the optimal loss, nats per symbol"
    findings.append(Finding(title, above.mean, above.standard_error))
    write_result(
        folder,
        Paper("Next-token pretraining implies in-context learning", "2505.18373", "power law of the in-context loss"),
        findings,
        protocol=(
            f"Mixtures of random Markov chains over two symbols and of Mess3 processes, {settings.num_sequences:,} "
            f"sequences of {settings.length} symbols each; a Llama ({model}) trained on {largest}, "
            f"{settings.train_tokens:,} tokens, one seed. Exponents are fitted at positions {FIT_FIRST} to "
            f"{settings.fit_last}; the data and exponents of the paper were not read, so these data are ours. Errors "
            "and intervals resample sequences; those of mixtures are for the components that were drawn."
        ),
        tokens=settings.train_tokens,
        seconds=seconds,
        pictures={"excess.png": partial(draw, excess, fits, settings)},
        more={"excess": {name: rows.mean(0).tolist() for name, rows in excess.items()}},
    )


if __name__ == "__main__":
    run(main)
