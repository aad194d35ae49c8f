"""Do networks of any architecture represent the predictive vectors of the smallest model of their data, also where no
HMM of finite size exists?

    hmm-datasets experiment generalized-processes --config generalized_processes/small.yaml [--architectures gru ...]

The processes are Mess3, an HMM; the Bloch walk and FRDN, which a finite quantum system makes but no finite HMM; and
Moon, which neither does. They are those of Riechers, Elliott and Shai, "Neural networks leverage nominally quantum and
post-quantum representations" (arXiv 2507.07432). Networks of several architectures learn to predict each of them. Then
an affine map from the hidden states of all layers together to the predictive vectors is fitted over all words of the
context, weighted by their probabilities (`hmm_datasets.evaluation.word_probes`).

The picture shows for each process the true predictive vectors, those found in each network, and the error of the fit
(RMSE) as in figures 5 to 8 of the paper: to the predictive vectors; to the states of the Markov approximation of order
3; and to the predictive vectors from an untrained network. A mark shows the error of the best function of the last
three symbols: below it a network represents more than those. `result.md` has the same numbers with R2, the errors on
held-out words, and each layer by itself. When started again the experiment continues where it stopped.
"""

import re
import time
from dataclasses import MISSING, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hmm_datasets.errors import InputError
from hmm_datasets.runtime.program import run
from hmm_datasets.runtime.settings import setting

CONTEXT = 8
"""Symbols that models predict the next one from, at most, as in the paper."""
WIDTH = 64
"""Width of all layers."""
BATCH_SIZE = 128
"""Sequences per optimizer step."""
ORDER = 3
"""Order of the Markov approximation, as in the paper."""
OF_PAPER = {
    "mess3(x=0.05, a=0.85)": "0.99 to 1.00",
    "bloch_walk()": "0.99 to 1.00",
    "frdn()": None,
    "moon()": "0.99 to 1.00",
}
"""The paper's processes, and its R2 of cosine similarities (figure 4) for its transformer and LSTM."""
OTHER = "the paper has not this process"
_CONSTANT = 1e-9
"""Standard deviation below which predictive vectors do not vary."""


@dataclass
class GeneralizedProcessesSettings:
    """Settings of the experiment."""

    output_dir: str = setting(MISSING, "Output folder.")
    processes: list[str] = setting(
        ["mess3(x=0.05, a=0.85)", "bloch_walk()", "frdn()", "moon()"], "Calls of processes."
    )
    architectures: list[str] = setting(["llama", "gru"], "Some of llama, lstm, gru, mamba.")
    layers: int = setting(2, "Number of layers.")
    steps: int = setting(2000, "Optimizer steps of each model.")
    learning_rate: float = setting(5e-3, "Peak learning rate.")
    seed: int = setting(0, "Seed of weights and sequences.")


def main(settings: GeneralizedProcessesSettings) -> None:
    """Train, probe, report, draw."""
    import numpy as np
    from word_probes import all_words

    from hmm_datasets.hmm.families import load_source

    began = time.monotonic()
    folder = Path(settings.output_dir)
    results, drawn, fingerprints = [], {}, {load_source(f"process:{call}").fingerprint(): call for call in OF_PAPER}
    for call in settings.processes:
        process = load_source(f"process:{call}")
        of_paper = fingerprints.get(process.fingerprint())
        name = (of_paper or call).partition("(")[0] if of_paper or call.endswith("()") else call
        if name in drawn:
            raise InputError(f"processes has {name} twice, as {call} the second time; expected different processes")
        words = all_words(process, CONTEXT)
        if words.beliefs.std(0).max() < _CONSTANT:
            raise InputError(f"processes has {call}, whose predictive vectors are all the same; nothing can be probed")
        drawn[name] = {"words": words, "probed": {}, "of_paper": of_paper}
    for name, panels in drawn.items():
        for kind in settings.architectures:
            row, probed = measured(settings, folder, panels["words"], kind, name)
            row["of_paper"] = panels["of_paper"]
            print(
                f"{name}, {kind}: RMSE {row['rmse']:.4f}, Markov order {ORDER} {row['markov_rmse']:.4f}, untrained "
                f"{row['untrained_rmse']:.4f}; {row['excess']:.5f} nats per token above the optimal loss",
                flush=True,
            )
            results.append(row)
            panels["probed"][kind] = probed.astype(np.float32)
    pictures = {"generalized_processes.png": partial(draw, results, drawn)}
    write(settings, folder, results, time.monotonic() - began, pictures)


def measured(
    settings: GeneralizedProcessesSettings, folder: Path, words: Any, kind: str, name: str
) -> tuple[dict, Any]:
    """The figures of one network on one process, trained first if it is not yet, and the probed predictive vectors."""
    import numpy as np
    from architectures import architecture_config
    from small_runs import SmallRun, trained_model
    from transformers import set_seed
    from word_probes import best_of_order, constant_rmse, fit_words, hidden_states, markov_states, mean_excess

    from hmm_datasets.training.model_configs import new_model

    process, bos = words.process, words.process.num_symbols
    # One symbol more than the context, so that it is predicted from the whole context; and the beginning token.
    length = CONTEXT + 1
    sizes = {"width": WIDTH, "layers": settings.layers}
    config = architecture_config(kind, vocab_size=bos + 1, length=length + 1, bos_token_id=bos, **sizes)
    place = re.sub(r"[^\w.,=()-]+", "", name)
    model = trained_model(
        folder / f"{place}-{kind}", config, process, SmallRun.of(settings, length=length, batch_size=BATCH_SIZE)
    )
    layers, predicted = hidden_states(model, words, bos)
    fit = fit_words(words, np.concatenate(layers, axis=1), words.beliefs)
    markov = fit_words(words, np.concatenate(layers, axis=1), markov_states(words, ORDER))
    set_seed(settings.seed)
    fresh, _ = hidden_states(new_model(config).eval(), words, bos)
    untrained = fit_words(words, np.concatenate(fresh, axis=1), words.beliefs)
    row = {"process": name, "architecture": kind, "excess": mean_excess(words, predicted)}
    row |= {"rmse": fit.rmse, "r2": fit.r2, "held_out_rmse": fit.held_out_rmse}
    row |= {"markov_rmse": markov.rmse, "markov_r2": markov.r2, "markov_held_out_rmse": markov.held_out_rmse}
    row |= {"untrained_rmse": untrained.rmse, "untrained_r2": untrained.r2}
    row |= {"untrained_held_out_rmse": untrained.held_out_rmse, "best_of_order_3": best_of_order(words, ORDER)}
    # The Markov states vary more, so that a constant too has a lower error for the predictive vectors.
    row["constant_rmse"] = constant_rmse(words, words.beliefs)
    row["markov_constant_rmse"] = constant_rmse(words, markov_states(words, ORDER))
    row["cosines_r2"] = cosines_r2(words.beliefs, fit.predictions)
    row["layers"] = [
        {"rmse": layer.rmse, "r2": layer.r2} for layer in (fit_words(words, h, words.beliefs) for h in layers)
    ]
    return row, fit.predictions


def cosines_r2(true: Any, probed: Any, pairs: int = 100_000, seed: int = 0) -> float:
    """Squared correlation of the cosine similarities of random pairs of vectors with those of the probed vectors.

    Args:
        true, probed (`np.ndarray` of shape `(P, W)`): vectors.
        pairs (`int`, *optional*, defaults to 100,000): how many pairs.
        seed (`int`, *optional*, defaults to 0): seed of the pairs.

    ```python
    >>> import numpy as np
    >>> vectors = np.random.default_rng(0).normal(size=(50, 3))
    >>> round(cosines_r2(vectors, 2 * vectors), 6)
    1.0

    ```
    """
    import numpy as np

    left, right = np.random.default_rng(seed).integers(len(true), size=(2, pairs))
    apart = left != right
    units = [vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in (true, probed)]
    cosines = [(unit[left[apart]] * unit[right[apart]]).sum(1) for unit in units]
    return float(np.corrcoef(*cosines)[0, 1] ** 2)


def plane(vectors: Any, weights: Any) -> tuple[Any, Any]:
    """The centre of vectors, and the two directions in which they vary most.

    Args:
        vectors (`np.ndarray` of shape `(P, W)`): predictive vectors.
        weights (`np.ndarray` of shape `(P,)`): their probabilities.

    Returns:
        `tuple`: centre (W,) and directions (W, 2).
    """
    import numpy as np

    centre = weights @ vectors
    deviations = vectors - centre
    return centre, np.linalg.eigh((deviations * weights[:, None]).T @ deviations)[1][:, :-3:-1]


def limits(points: Any) -> tuple[Any, Any]:
    """The smallest and largest coordinates; if points lie on a line, the other axis gets the range of the line.

    Args:
        points (`np.ndarray` of shape `(P, 2)`): points, not all the same.

    ```python
    >>> import numpy as np
    >>> [edge.tolist() for edge in limits(np.array([[0.0, 0.0], [2.0, 1e-17]]))]
    [[0.0, -1.0], [2.0, 1.0]]

    ```
    """
    import numpy as np

    low, high = points.min(0), points.max(0)
    middle, half = (low + high) / 2, (high - low) / 2
    half = np.where(half < 1e-6 * half.max(), half.max(), half)
    return middle - half, middle + half


def draw(results: list[dict], drawn: dict[str, Any], path: Path) -> None:
    """One row for each process: the true vectors, those probed in each network, and the errors."""
    import numpy as np
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from hmm_datasets.report.plots import PAPER, draw_points, save_figure

    kinds = list(dict.fromkeys(row["architecture"] for row in results))
    with rc_context(PAPER):
        figure = Figure(figsize=(1.6 * (len(kinds) + 1) + 2.3, 1.65 * len(drawn) + 0.5), layout="constrained")
        grid = figure.subplots(len(drawn), len(kinds) + 2, squeeze=False, width_ratios=[1] * (len(kinds) + 1) + [1.4])
        for axes, (name, panels) in zip(grid, drawn.items(), strict=True):
            words = panels["words"]
            centre, directions = plane(words.beliefs, words.weights)
            true = (words.beliefs - centre) @ directions
            shown = np.random.default_rng(0).permutation(len(true))[:6000]
            low, high = limits(true)
            x, y = ((true[shown] - low) / (high - low)).T
            sizes = 1 + 12 * np.sqrt(words.weights[shown] / words.weights.max())
            colors = np.stack([0.9 * x, 0.75 * y, 0.9 * (1 - x)], axis=1)
            for panel, title in zip(axes, ("true", *kinds), strict=False):
                vectors = words.beliefs if title == "true" else panels["probed"][title]
                draw_points(panel, ((vectors - centre) @ directions)[shown], colors, s=sizes)
                margin = 0.12 * (high - low)
                panel.set(
                    xlim=(low[0] - margin[0], high[0] + margin[0]), ylim=(low[1] - margin[1], high[1] + margin[1])
                )
                panel.set(xticks=[], yticks=[])
                panel.spines[:].set_visible(False)
                if panel.get_subplotspec().is_first_row():
                    panel.set_title(title)
            axes[0].set_ylabel(name)
            _draw_errors(axes[-1], [row for row in results if row["process"] == name])
        grid[0, -1].set_title("RMSE of the affine map")
        figure.legend(*grid[0, -1].get_legend_handles_labels(), loc="outside lower center", ncols=2)
        save_figure(figure, path)


def _draw_errors(axes: Any, rows: list[dict]) -> None:
    import numpy as np

    places = np.arange(len(rows))
    bars = (
        ("rmse", "to the predictive vectors", "#0072B2"),
        ("markov_rmse", f"to the states of Markov order {ORDER}", "#D55E00"),
        ("untrained_rmse", "to the predictive vectors, untrained network", "#999999"),
    )
    for shift, (key, label, color) in zip((-0.27, 0, 0.27), bars, strict=True):
        axes.bar(places + shift, [row[key] for row in rows], 0.25, color=color, label=label)
    level = rows[0]["best_of_order_3"]
    axes.axhline(
        level, color="black", linewidth=0.8, linestyle=":", label=f"best function of the last {ORDER} symbols"
    )
    axes.set_xticks(places, [row["architecture"] for row in rows])
    axes.grid(axis="x", visible=False)


def write(
    settings: GeneralizedProcessesSettings, folder: Path, results: list[dict], seconds: float, pictures: dict
) -> None:
    """The numbers beside those of the paper, and then the pictures."""
    from published import Paper, write_result

    models = len(settings.processes) * len(settings.architectures)
    write_result(
        folder,
        Paper(
            "Neural networks leverage nominally quantum and post-quantum representations",
            "2507.07432",
            "figures 5 to 8",
        ),
        findings(results, settings.steps),
        protocol=(
            f"{', '.join(settings.architectures)} of {settings.layers} layers of width {WIDTH}, "
            f"{settings.steps:,} steps of {BATCH_SIZE} sequences, AdamW at a peak of "
            f"{settings.learning_rate:g}, one seed. Affine maps from all layers together, over all words of up to "
            f"{CONTEXT} symbols. The paper's networks have 4 layers of width 64 (a transformer with learned "
            "positions instead of a Llama, and an RNN instead of a Mamba), without a beginning token; they were "
            "trained for up to 4 million steps of 128 sequences."
        ),
        tokens=models * settings.steps * BATCH_SIZE * (CONTEXT + 2),
        seconds=seconds,
        pictures=pictures,
        more={"models": results},
    )


def findings(results: list[dict], steps: int) -> list[Any]:
    """The result for each network in turn, and how often the order of the errors is that of the paper."""
    from published import Finding

    rows = []
    for row in results:
        name, of_paper = f"{row['process']}, {row['architecture']}", row["of_paper"]
        figure = {"llama": "figure 5", "lstm": "figure 6", "gru": "figure 8"}.get(row["architecture"], "")
        shown = {"published": "a bar, no number", "where": figure} if of_paper else {"difference": OTHER}
        rows += [
            Finding(f"{name}: RMSE to the predictive vectors", row["rmse"], **shown),
            Finding(f"{name}: RMSE to the states of Markov order {ORDER}", row["markov_rmse"]),
            Finding(f"{name}: RMSE to the predictive vectors, untrained", row["untrained_rmse"]),
            Finding(f"{name}: RMSE of the best constant, for the predictive vectors", row["constant_rmse"]),
            Finding(
                f"{name}: RMSE of the best constant, for the states of Markov order {ORDER}",
                row["markov_constant_rmse"],
            ),
        ]
        if OF_PAPER.get(of_paper) is not None and row["architecture"] in ("llama", "lstm"):
            published, why = OF_PAPER[of_paper], "squared correlation over 100,000 pairs here"
            rows.append(Finding(f"{name}: R2 of cosines", row["cosines_r2"], None, published, "figure 4", why))
        if of_paper == "bloch_walk()":
            ratio, why = row["rmse"] / row["untrained_rmse"], f"{steps:,} steps here, up to 4 million there"
            rows.append(Finding(f"{name}: RMSE over that untrained", ratio, None, "below 0.2", "section V", why))
    claims = []
    for of_paper, named in ((True, "the paper's processes"), (False, "other processes")):
        chosen = [row for row in results if bool(row["of_paper"]) == of_paper]
        higher = sum(row["r2"] > max(row["markov_r2"], row["untrained_r2"]) for row in chosen)
        stated = {"published": f"all of {len(chosen)}", "where": "figures 5 to 8"} if of_paper else {}
        stated = stated or {"difference": f"of {len(chosen)}; {OTHER}"}
        claim = f"networks on {named} whose R2 of the predictive vectors is the highest of the three"
        claims += [Finding(claim, higher, **stated)] if chosen else []
    return [*claims, *rows]


if __name__ == "__main__":
    run(main)
