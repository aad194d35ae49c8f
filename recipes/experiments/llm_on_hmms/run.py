"""How well does a language model predict sequences of HMMs that it knows only from its context?

    hmm-datasets experiment llm-on-hmms MODEL --config llm_on_hmms/full.yaml [--length 1024 ...]

This repeats Dai, Gao, Sattar, Dean and Sun, "Pre-trained large language models learn hidden Markov models in-context",
2025 (arXiv 2506.07298), for any causal language model: a folder, or a repository on the Hub. The model reads symbols
as letters, `A B B A` or with another separator, and knows nothing. Its predictions are compared with two that know the
HMM: the Bayes-optimal one, which no predictor exceeds, and the paper's, which takes the last state of the most
probable path (Viterbi) for certain. As a simple predictor that knows nothing either, there is the bigram counted in
the context.

HMMs are made so that what the paper varies can be set: they follow a random cycle of their states with
probability `mixing` and show any symbol with probability `noise`. These HMMs are ours.
`accuracy.png` shows the accuracy of all predictors by the number of symbols of context, in expectation over the next
symbol; `result.md` has the numbers.

Without a model, one is trained here on sequences of random HMMs of this kind: it shows that everything works, but is
no pretrained language model.
"""

import shlex
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hmm_datasets.errors import InputError
from hmm_datasets.runtime.program import run
from hmm_datasets.runtime.setting_rules import Void
from hmm_datasets.runtime.settings import setting

if TYPE_CHECKING:
    from hmm_datasets import HMM

ALPHABET = "ABCDEFGHIJKLMNOP"
"""A character for each symbol."""
SEPARATOR = " "
"""With MODEL: the text between two symbols."""
BATCH_SYMBOLS = 2048
"""Symbols of a forward pass, or one sequence if it is longer."""
TRAIN_HMMS = 512
"""Random HMMs that it is trained on."""


@dataclass
class LLMOnHMMsSettings:
    """Settings of the experiment."""

    voids = (Void("train_tokens", "with model"),)

    model: str | None = setting(None, "Folder or Hub name of a causal language model; by default one is trained.")
    output_dir: str = setting("outputs/llm_on_hmms", "Output folder.")
    states: int = setting(6, "States and symbols of each HMM.")
    mixing: list[float] = setting([0.5, 0.8, 0.95], "Moduli of the second eigenvalues of the chains.")
    noise: list[float] = setting([0.05, 0.3], "Probabilities that a state shows any symbol.")
    length: int = setting(256, "Symbols per sequence.")
    num_sequences: int = setting(64, "Sequences of each HMM.")
    seed: int = setting(0, "Seed of the HMMs and of their sequences.")
    train_tokens: int = setting(2_000_000, "Tokens that a model is trained on, without MODEL.")

    def __post_init__(self):
        if not 2 <= self.states <= len(ALPHABET):
            raise InputError(f"states is {self.states}; expected 2 to {len(ALPHABET)}")
        if self.length < 8:
            raise InputError(f"length is {self.length}; expected 8 or more")
        for name in ("mixing", "noise"):
            values = getattr(self, name)
            if not values or not all(0 <= value <= 1 for value in values):
                raise InputError(f"{name} is {values}; expected numbers between 0 and 1")


def main(settings: LLMOnHMMsSettings) -> None:
    """Train a model if none is given, measure, report."""
    from hmm_datasets.operations.stages import run_or_exit

    folder, began = Path(settings.output_dir), time.monotonic()
    name = settings.model
    if name is None:
        training_mixture(settings).save_pretrained(folder / "process")
        run_or_exit([training(settings, folder)])
        name = str(folder / "model")
    hmms = {
        (mixing, noise): cycle(settings.states, mixing, noise, settings.seed + number)
        for number, (mixing, noise) in enumerate((m, n) for m in settings.mixing for n in settings.noise)
    }
    measured = measure(settings, name, hmms)
    pictures = {"accuracy.png": partial(draw, measured, hmms)}
    report(settings, folder, measured, pictures, time.monotonic() - began)


def cycle(states: int, mixing: float, noise: float, seed: int) -> "HMM":
    """An HMM that follows a random cycle of its states and shows them through noise.

    Args:
        states (`int`): states and symbols.
        mixing (`float`): probability of following the cycle; else the next state is any. It is the modulus of the
            second eigenvalues of the chain, whose mixing time is `-1 / ln(mixing)` symbols.
        noise (`float`): probability that any symbol is shown in place of the one of the state.
        seed (`int`): seed of the cycle.
    """
    import numpy as np

    from hmm_datasets import HMM

    order = np.random.default_rng(seed).permutation(states)
    step = np.zeros((states, states))
    step[order, np.roll(order, -1)] = 1.0
    transition = mixing * step + (1 - mixing) / states
    emission = (1 - noise) * np.eye(states) + noise / states
    return HMM(transition=transition, emission=emission, normalize=True)


def training_mixture(settings: LLMOnHMMsSettings) -> Any:
    """The mixture of random HMMs that a model is trained on."""
    import numpy as np

    from hmm_datasets.hmm.families import HMMMixture

    drawn = np.random.default_rng([settings.seed, 1]).uniform((0.3, 0.0), (1.0, 0.5), size=(TRAIN_HMMS, 2))
    first = settings.seed + 1_000_000  # seeds of other cycles than those measured on
    hmms = [cycle(settings.states, *pair, first + number) for number, pair in enumerate(drawn.tolist())]
    return HMMMixture(hmms, [1 / len(hmms)] * len(hmms))


def training(settings: LLMOnHMMsSettings, folder: Path) -> tuple[str, str]:
    """Title and command of the training."""
    words: list[object] = ["--hmm", folder / "process", "--length", settings.length, "--seed", settings.seed]
    words += ["--train_tokens", settings.train_tokens, "--output_dir", folder / "model"]
    return (
        f"A small Llama on sequences of {TRAIN_HMMS:,} random HMMs",
        f"hmm-datasets pretrain --config llm_on_hmms/pretrain.yaml {shlex.join(map(str, words))}",
    )


def measure(settings: LLMOnHMMsSettings, name: str, hmms: dict[tuple[float, float], Any]) -> dict[str, Any]:
    """For each HMM and predictor the figures by position, from one symbol of context on."""
    import numpy as np
    import torch
    from accelerate import Accelerator
    from measure import agreement, viterbi_predictions
    from transformers import AutoTokenizer

    from hmm_datasets.evaluation.benchmark.models import load_causal_lm
    from hmm_datasets.evaluation.benchmark.symbols import SymbolTokens, symbol_predictions
    from hmm_datasets.hmm.analysis.predictors import bigram
    from hmm_datasets.training.pretrained import load_pretrained

    model = load_causal_lm(name, Accelerator())
    names = list(ALPHABET[: settings.states])
    symbols = SymbolTokens.of(load_pretrained(AutoTokenizer, name), names, SEPARATOR)
    batch_size = max(1, BATCH_SYMBOLS // settings.length)
    results = {}
    for number, (key, hmm) in enumerate(hmms.items()):
        print(f"mixing {key[0]:g}, noise {key[1]:g}", flush=True)
        tokens = hmm.sample(settings.num_sequences, settings.length, seed=settings.seed + number)
        values = torch.from_numpy(tokens.astype(np.int64))
        exact = hmm.next_token_probs(values)[:, 1:-1].numpy()
        predictions = {
            "model": symbol_predictions(model, symbols, tokens, batch_size=batch_size).softmax(-1).numpy(),
            "bayes": exact,
            "viterbi": viterbi_predictions(hmm, tokens),
            "bigram": bigram(values, hmm.num_symbols)[:, 1:-1].numpy(),
        }
        results[key] = {who: agreement(exact, predicted) for who, predicted in predictions.items()}
    return results


def draw(measured: dict[Any, Any], hmms: dict[Any, Any], path: Path) -> None:
    """Draw the accuracy of every predictor by context, a panel for each HMM."""
    from context_spans import context_spans
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from hmm_datasets.report.plots import PAPER, STYLES, WIDTH, save_figure

    styles = {
        "bayes": {**STYLES["bayes"], "label": "Bayes-optimal, knows the HMM"},
        "viterbi": {"color": "#CC79A7", "linestyle": ":", "marker": "^", "label": "Viterbi, knows the HMM"},
        "bigram": {**STYLES["bigram"], "marker": "s"},
        "model": {"color": "black", "marker": "o", "label": "language model"},
    }
    mixings, noises = (list(dict.fromkeys(key[k] for key in measured)) for k in (0, 1))
    with rc_context(PAPER):
        size = (max(WIDTH, 0.66 * WIDTH * len(mixings)), 1.75 * len(noises) + 0.5)
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(len(noises), len(mixings), squeeze=False, sharex=True, sharey=True)
        for (mixing, noise), result in measured.items():
            axes = panels[noises.index(noise), mixings.index(mixing)]
            for who, style in styles.items():
                values = result[who]["accuracy"]
                parts = context_spans(len(values) + 1)
                means = [values[a - 1 : b - 1].mean() for a, b in parts]
                axes.plot([(a * (b - 1)) ** 0.5 for a, b in parts], means, **style)
            chance = 1 / hmms[mixing, noise].num_symbols
            axes.axhline(chance, color="grey", linewidth=0.6, label="chance")
            rate = hmms[mixing, noise].entropy_rate().value
            axes.set_title(f"mixing {mixing:g}, noise {noise:g}\nentropy rate {rate:.2f} nats")
            axes.set(xscale="log", ylim=(0, 1))
        for axes in panels[-1]:
            axes.set_xlabel("symbols of context")
        for axes in panels[:, 0]:
            axes.set_ylabel("accuracy")
        figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
        save_figure(figure, path)


def report(
    settings: LLMOnHMMsSettings, folder: Path, measured: dict[Any, Any], pictures: dict, seconds: float
) -> None:
    """Write the figures of the longest contexts, as means over the HMMs, and draw the pictures."""
    import numpy as np
    from context_spans import context_spans
    from published import Finding, Paper, write_result

    first, last = context_spans(settings.length)[-1]
    who_is = settings.model or "a Llama trained here on random HMMs, no pretrained language model"

    def mean(who: str, figure: str) -> float:
        return float(np.mean([result[who][figure][first - 1 : last - 1].mean() for result in measured.values()]))

    stated = {"published": "approaches Viterbi's", "where": "abstract", "difference": "other models and HMMs"}
    findings = [
        Finding("accuracy of the model", mean("model", "accuracy"), **(stated if settings.model else {})),
        Finding("accuracy of the Bayes-optimal predictor", mean("bayes", "accuracy")),
        Finding("accuracy of the Viterbi predictor", mean("viterbi", "accuracy")),
        Finding("accuracy of the bigram in context", mean("bigram", "accuracy")),
        Finding("accuracy of a guess among the symbols", 1 / settings.states),
        *(
            Finding(f"{title} of the {name}", mean(who, figure))
            for figure, title in (("kl", "divergence from the optimum, nats,"), ("hellinger", "Hellinger distance"))
            for who, name in (("model", "model"), ("viterbi", "Viterbi predictor"), ("bigram", "bigram"))
            if np.isfinite(mean(who, figure))
        ),
    ]
    write_result(
        folder,
        Paper("Pre-trained large language models learn hidden Markov models in-context", "2506.07298", "accuracy"),
        findings,
        protocol=(
            f"The model is {who_is}. {settings.num_sequences} sequences of {settings.length} symbols of each of "
            f"{len(measured)} HMMs of {settings.states} states; means over HMMs and contexts of {first} to {last - 1} "
            "symbols. The paper's optimum is read as: the last state of the most probable path of the symbols so far "
            "is taken for certain. Its numbers were not read, only its abstract."
        ),
        tokens=0 if settings.model else settings.train_tokens,
        seconds=seconds,
        pictures=pictures,
        more={
            "model": who_is,
            "hmms": [
                {"mixing": mixing, "noise": noise}
                | {
                    who: {name: values.tolist() for name, values in values_by_figure.items()}
                    for who, values_by_figure in result.items()
                }
                for (mixing, noise), result in measured.items()
            ],
        },
    )


if __name__ == "__main__":
    run(main)
