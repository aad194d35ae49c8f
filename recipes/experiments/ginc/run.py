"""How accurate is in-context learning on GINC, by number and length of examples, and how accurate could it be?

    hmm-datasets experiment ginc --config ginc/small.yaml [--num_prompts 100]

Xie, Raghunathan, Liang and Ma, "An explanation of in-context learning as implicit Bayesian inference", ICLR 2022
(arXiv 2111.02080). A model is trained on documents of five HMMs (concepts), then reads prompts: examples of one
concept, with a delimiter after each. Its answer is right if it is the most probable last token under the concept.
Three predictors are exact:

- `prompts` knows how prompts are made, and not the concept: nothing is better on average;
- `documents` takes a prompt for a document, as a model without any error would. It has no answer where the prompt is
  impossible as a document, which counts as wrong;
- `leaky documents` is the same for concepts that begin anew with a small probability per token, so that nothing is
  impossible.

The published curves are those that the authors' notebook prints (`notebooks/plots.ipynb` of
github.com/p-lambda/incontext-learning at commit 84fab21), for their smallest data set, whose tables are ours.
`accuracy.png` shows all, `result.md` has the table. When started again the experiment continues after the training.
"""

import time
from dataclasses import MISSING, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hmm_datasets.errors import InputError
from hmm_datasets.runtime.program import run
from hmm_datasets.runtime.setting_rules import Void
from hmm_datasets.runtime.settings import setting

NOTEBOOK = "notebooks/plots.ipynb"
EXAMPLE_LENGTHS = (3, 5, 8, 10)
"""Tokens of an example, with its answer."""
NUM_EXAMPLES = (0, 1, 2, 4, 8, 16, 32, 64)
"""Examples before the one to answer."""
LAYERS = 4
"""Layers of the model, those of the authors' smallest."""
BATCH_SIZE = 8
"""Documents per optimizer step."""
PUBLISHED = {
    ("gpt2", 3): (0.38456, 0.37056, 0.41360, 0.46000, 0.47424, 0.50376, 0.53592, 0.53656),
    ("gpt2", 5): (0.57696, 0.59136, 0.63448, 0.67160, 0.68376, 0.73216, 0.75368, 0.76768),
    ("gpt2", 8): (0.67856, 0.73672, 0.75008, 0.77688, 0.79824, 0.83320, 0.82544, 0.83504),
    ("gpt2", 10): (0.74576, 0.78000, 0.79440, 0.81976, 0.82696, 0.84720, 0.86552, 0.84688),
    ("lstm", 3): (0.34080, 0.37760, 0.42392, 0.44904, 0.44080, 0.45256, 0.45016, 0.45192),
    ("lstm", 5): (0.66576, 0.77440, 0.80928, 0.84584, 0.84464, 0.84936, 0.84616, 0.84400),
    ("lstm", 8): (0.86936, 0.93008, 0.93736, 0.94600, 0.94904, 0.94704, 0.94112, 0.94816),
    ("lstm", 10): (0.91744, 0.94696, 0.95088, 0.95336, 0.95520, 0.95128, 0.95464, 0.95776),
}
"""Accuracies that the notebook prints, by model and length of examples: means over five runs, with 50 symbols. The
GPT-2 has 16 layers; those of 12 and 4 layers are less accurate."""
WHO = {
    "prompts": "exact, knows how prompts are made",
    "leaky documents": "exact, leaky documents",
    "documents": "exact, documents",
    "model": "Llama trained here",
}
ROWS = 100
"""Prompts predicted at once."""
LEAK = 0.01
"""Probability per token that a leaky document begins anew."""


@dataclass
class GINCSettings:
    """Settings of the experiment."""

    voids = (Void("width learning_rate", "if steps is 0"),)

    output_dir: str = setting(MISSING, "Output folder.")
    num_prompts: int = setting(2500, "Prompts of each length and number of examples.")
    length: int = setting(1024, "Tokens of a document that the model is trained on.")
    width: int = setting(128, "Width of the model.")
    steps: int = setting(1000, "Optimizer steps; 0 trains no model.")
    learning_rate: float = setting(3e-3, "Peak learning rate.")
    seed: int = setting(0, "Seed of the model, its documents, and the prompts.")

    def __post_init__(self):
        if self.num_prompts < 1:
            raise InputError(f"num_prompts is {self.num_prompts}; expected 1 or more")


def main(settings: GINCSettings) -> None:
    """Train, answer the prompts, report, draw."""
    from concepts import ginc

    began, folder = time.monotonic(), Path(settings.output_dir)
    documents = ginc()
    exact = {"documents": documents, "leaky documents": ginc(leak=LEAK)}
    model = trained(settings, documents, folder / "model") if settings.steps else None
    accuracy: dict[str, Any] = {}
    for length in EXAMPLE_LENGTHS:
        for count in NUM_EXAMPLES:
            cell = answered(settings, documents, exact, model, length, count)
            for who, right in cell.items():
                accuracy.setdefault(who, {}).setdefault(length, {})[count] = right
            shown = ", ".join(f"{who} {right.mean():.3f}" for who, right in cell.items())
            print(f"{count} examples of {length} tokens: {shown}", flush=True)
    report(settings, accuracy, folder, time.monotonic() - began)


def trained(settings: GINCSettings, documents: Any, folder: Path) -> Any:
    """A Llama trained on documents."""
    from architectures import architecture_config
    from small_runs import SmallRun, trained_model

    symbols = documents.num_symbols
    longest = max((size + 1) * max(NUM_EXAMPLES) + size for size in EXAMPLE_LENGTHS)
    sizes = {"width": settings.width, "layers": LAYERS, "length": max(settings.length, longest) + 1}
    config = architecture_config("llama", vocab_size=symbols + 1, bos_token_id=symbols, **sizes)
    return trained_model(folder, config, documents, SmallRun.of(settings, batch_size=BATCH_SIZE))


def answered(
    settings: GINCSettings, documents: Any, exact: Any, model: Any, length: int, count: int
) -> dict[str, Any]:
    """For each predictor whether its answer to each prompt is right, an array."""
    import numpy as np
    import torch
    from concepts import ginc_prompts
    from symbol_predictions import symbol_log_probs

    prompts = ginc_prompts(documents, length)
    right: dict[str, list[Any]] = {}
    for first in range(0, settings.num_prompts, ROWS):
        rows = min(ROWS, settings.num_prompts - first)
        drawn = {"seed": settings.seed + count, "first": first}
        tokens = prompts.sample(rows, count * (length + 1) + length - 1, **drawn).astype(np.int64)
        answers = prompts.oracle_next_token_probs(tokens, **drawn)[:, -1].argmax(-1)
        last = {who: process.next_token_probs(tokens)[:, -1] for who, process in {"prompts": prompts, **exact}.items()}
        if model is not None:
            with torch.inference_mode():
                read = torch.from_numpy(np.pad(tokens, ((0, 0), (0, 1)))).to(model.device)
                last["model"] = symbol_log_probs(model, read, documents.num_symbols)[:, -1].exp().cpu().numpy()
        for who, probs in last.items():
            # Zeros mean that the predictor has no answer.
            right.setdefault(who, []).append((probs.argmax(-1) == answers) & (probs.max(-1) > 0))
    return {who: np.concatenate(parts) for who, parts in right.items()}


def draw(settings: GINCSettings, accuracy: dict[str, Any], path: Path) -> None:
    """Draw the accuracies by number of examples, a panel for each length."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from panels import shared_legend

    from hmm_datasets.report.plots import PAPER, save_figure

    styles = {
        "prompts": {"color": "#009E73", "linestyle": "-", "marker": "o"},
        "leaky documents": {"color": "#009E73", "linestyle": "--", "marker": "s"},
        "documents": {"color": "#CC79A7", "linestyle": ":", "marker": "^"},
        "model": {"color": "black", "linestyle": "-", "marker": "D"},
        "gpt2": {"color": "#0072B2", "linestyle": "-.", "marker": "v", "label": "published, GPT-2 of 16 layers"},
        "lstm": {"color": "#D55E00", "linestyle": "-.", "marker": "P", "label": "published, LSTM"},
    }
    lengths, counts = EXAMPLE_LENGTHS, NUM_EXAMPLES
    with rc_context(PAPER):
        figure = Figure(figsize=(2.0 * len(lengths), 2.7), layout="constrained")
        panels = figure.subplots(1, len(lengths), squeeze=False, sharey=True)[0]
        for axes, length in zip(panels, lengths, strict=True):
            curves = {who: (counts, [cells[length][k].mean() for k in counts]) for who, cells in accuracy.items()}
            curves |= {who: (counts, PUBLISHED[who, length]) for who in ("gpt2", "lstm")}
            for who, (x, y) in curves.items():
                axes.plot(x, y, markersize=3, **{"label": WHO.get(who), **styles[who]})
            axes.set_xscale("symlog", base=2, linthresh=1)
            axes.set_xticks(counts, [str(count) for count in counts])
            axes.minorticks_off()
            axes.set(title=f"examples of {length} tokens", xlabel="examples", ylim=(0, 1.02))
        panels[0].set_ylabel("accuracy")
        shared_legend(figure, 3)
        save_figure(figure, path)


def report(settings: GINCSettings, accuracy: dict[str, Any], folder: Path, seconds: float) -> None:
    """Write the accuracies with the most examples, and all of them as JSON; draw them."""
    from published import Finding, Paper, write_result

    from hmm_datasets.statistics import clustered_mean

    findings, most = [], max(NUM_EXAMPLES)
    for length in EXAMPLE_LENGTHS:
        for who, cells in accuracy.items():
            mean, error, *_ = clustered_mean(cells[length][most][:, None].astype(float))
            stated = {}
            if who == "model":
                gpt2, lstm = (PUBLISHED[other, length][-1] for other in ("gpt2", "lstm"))
                stated = {"published": f"GPT-2 {gpt2:.3f}, LSTM {lstm:.3f}", "where": NOTEBOOK}
                stated["difference"] = "other models, trained on 50 million tokens"
                if (length + 1) * most + length > settings.length:
                    stated["difference"] += "; the prompts are longer than the documents that the Llama was trained on"
            findings.append(
                Finding(f"accuracy, {most} examples of {length} tokens: {WHO[who]}", mean, error, **stated)
            )
    write_result(
        folder,
        Paper("An explanation of in-context learning as implicit Bayesian inference", "2111.02080", "accuracy"),
        findings,
        protocol=(
            f"{settings.num_prompts:,} prompts of each length and number of examples, drawn as the authors' are; the "
            f"leak is {LEAK:g} per token. The Llama has {LAYERS} layers of width {settings.width}, "
            f"and was trained for {settings.steps:,} steps on {BATCH_SIZE} documents of {settings.length:,} "
            "tokens each. The authors' GPT-2 has 16 layers, the curves are means over five runs."
        ),
        tokens=settings.steps * BATCH_SIZE * (settings.length + 1),
        seconds=seconds,
        pictures={"accuracy.png": partial(draw, settings, accuracy)},
        more={
            "accuracy": [
                {"who": who, "example_length": length, "num_examples": count, "accuracy": float(right.mean())}
                for who, cells in accuracy.items()
                for length, row in cells.items()
                for count, right in row.items()
            ]
        },
    )


if __name__ == "__main__":
    run(main)
