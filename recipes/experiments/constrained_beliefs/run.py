"""What does one layer of attention know of beliefs? As much as a sum over the symbols so far can say.

    hmm-datasets experiment constrained-beliefs --config constrained_beliefs/small.yaml [--values 0.05 0.5]

Bayes' rule updates the belief of an HMM symbol by symbol, but attention adds up what each symbol of the past says, all
at once. Piotrowski, Riechers, Filan and Shai, "Constrained belief updates explain geometric structures in transformer
representations" (arXiv 2502.01954), found that the first layer represents the constrained belief

    pi + sum over s <= t of (b(x_s) - pi) T^(t - s)

where `pi` is the stationary distribution, `b(z)` the belief after the symbol `z` alone, and `T` the transition matrix.
For Mess3 the eigenvalue of `T` besides 1 is `1 - 3 x`, so a symbol at distance `k` is weighted by `(1 - 3 x)^k`. For
`x > 1/3` the weights alternate in sign. Attention is not negative, so this takes two heads with opposite values.

A Llama of one layer learns to predict Mess3 for each `x` and number of heads. Affine maps are fitted over all words
of the context (`hmm_datasets.evaluation.word_probes`), from the residual stream between attention and feed-forward
layer and from the output, to the constrained and to the full beliefs. The report shows R2 of each, and the weight of
a symbol by its distance: attention times how far the head's value of the symbol moves the represented belief towards
`b(z)`, which in a model of one layer is known exactly. The equation is in the form in which others quote it; the
measure of weights, its fit and the best additive belief are ours. The latter is the sum over symbols nearest to the
full belief. Where a symbol says much about the state, its weights decay faster than the powers of the eigenvalue: a
belief that is already sure hardly moves. They approach these powers where a symbol says little (`a` near 1/3).
"""

import time
from dataclasses import MISSING, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hmm_datasets.runtime.program import run
from hmm_datasets.runtime.settings import setting

CONTEXT = 10
"""Symbols that models predict the next one from, at most, as in the paper."""
BATCH_SIZE = 128
"""Sequences per optimizer step."""
HEADS = [1, 2]
"""Numbers of attention heads."""
WIDTH = 64
"""Width of the layer."""


@dataclass
class ConstrainedBeliefsSettings:
    """Settings of the experiment."""

    output_dir: str = setting(MISSING, "Output folder.")
    values: list[float] = setting([0.05, 0.5], "Values of x of Mess3.")
    a: float = setting(0.85, "Share of the state's own symbol in Mess3.")
    steps: int = setting(1500, "Optimizer steps of each model.")
    learning_rate: float = setting(3e-3, "Peak learning rate.")
    seed: int = setting(0, "Seed of weights and sequences.")


def main(settings: ConstrainedBeliefsSettings) -> None:
    """Train, probe, report, draw."""
    from word_probes import all_words

    from hmm_datasets.hmm import processes

    began = time.monotonic()
    folder = Path(settings.output_dir)
    results, drawn = [], []
    for x in settings.values:
        words = all_words(processes.mess3(x=x, a=settings.a), CONTEXT)
        for heads in HEADS:
            row, panels = measured(settings, folder, words, x, heads)
            print(
                f"x = {x:g}, heads {heads}: after attention R2 {row['attention_constrained_r2']:.4f} of constrained "
                f"and {row['attention_full_r2']:.4f} of full beliefs; eigenvalue {row['eigenvalue']:.3f}, weights "
                f"decay by {row['decay']:.3f}",
                flush=True,
            )
            results.append(row)
            drawn.append((words, panels))
    pictures = {"constrained_beliefs.png": partial(draw, results, drawn)}
    write(settings, folder, results, time.monotonic() - began, pictures)


def constrained_beliefs(words: Any) -> Any:
    """The constrained belief after each word, (P, H); its entries sum to 1, but may be negative."""
    import numpy as np

    process = words.process
    stationary, transition = np.asarray(process.stationary()), np.asarray(process.transition)
    single = np.asarray(type(process)(**{**process.tables(), "start": stationary}).beliefs(_every_symbol(process)))[
        :, 1
    ]
    sums = np.zeros((len(words.tokens), words.tokens.shape[1] + 1, len(stationary)))
    for step, symbols in enumerate(words.tokens.T):
        sums[:, step + 1] = sums[:, step] @ transition + single[symbols] - stationary
    return stationary + sums[words.rows, words.lengths]


def _every_symbol(process: Any) -> Any:
    import numpy as np

    return np.arange(process.num_symbols)[:, None]


def additive_features(words: Any) -> Any:
    """One number for each distance and symbol: 1 if this symbol is at this distance, (P, L E)."""
    import numpy as np

    length, symbols = words.tokens.shape[1], words.process.num_symbols
    features = np.zeros((len(words.rows), length, symbols), np.float32)
    for distance in range(length):
        has = np.flatnonzero(words.lengths > distance)
        features[has, distance, words.tokens[words.rows[has], words.lengths[has] - 1 - distance]] = 1
    return features.reshape(len(features), -1)


def measured(
    settings: ConstrainedBeliefsSettings, folder: Path, words: Any, x: float, heads: int
) -> tuple[dict, dict]:
    """The figures of one model, trained first if it is not yet, and what is drawn of it."""
    import numpy as np
    from architectures import architecture_config
    from small_runs import SmallRun, trained_model
    from transformers import set_seed
    from word_probes import fit_words, mean_excess

    from hmm_datasets.training.model_configs import new_model

    process, bos = words.process, words.process.num_symbols
    length = CONTEXT + 1
    sizes = {"width": WIDTH, "layers": 1, "heads": heads}
    config = architecture_config("llama", vocab_size=bos + 1, length=length + 1, bos_token_id=bos, **sizes)
    model = trained_model(
        folder / f"x{x:g}-{heads}", config, process, SmallRun.of(settings, length=length, batch_size=BATCH_SIZE)
    )
    set_seed(settings.seed)
    fresh = new_model(config).eval()
    targets = {"constrained": constrained_beliefs(words), "full": words.beliefs}
    after, output, attention, predicted = read(model, words, bos)
    row = {"x": x, "heads": heads, "excess": mean_excess(words, predicted), "eigenvalue": 1 - 3 * x}
    places = {"attention": after, "output": output, "untrained_attention": read(fresh, words, bos)[0]}
    places["additive"] = additive_features(words)
    fits = {}
    for place, features in places.items():
        for name, target in targets.items():
            fits[place, name] = fit = fit_words(words, features, target)
            row |= {f"{place}_{name}_r2": fit.r2, f"{place}_{name}_rmse": fit.rmse}
    weights = weights_by_distance(model, words, attention, fits["attention", "constrained"].slope)
    best = additive_weights(words, fits["additive", "full"].slope)
    row |= {"weights": weights.tolist(), "decay": decay_of(weights[1:])}
    row |= {"additive_weights": best.tolist(), "additive_decay": decay_of(best[1:])}
    shown = (("attention", "constrained"), ("output", "full"))
    panels = {"true": targets, "probed": {name: fits[place, name].predictions for place, name in shown}}
    panels["probed"] = {name: np.asarray(panel, np.float32) for name, panel in panels["probed"].items()}
    return row, panels


def read(model: Any, words: Any, bos: int, batch_size: int = 2048) -> tuple[Any, Any, Any, Any]:
    """What a Llama of one layer computes after each word.

    Returns:
        `tuple`: the residual stream after attention (P, D); the output (P, D); the attention of the last symbol of the
        longest words to all positions (N, heads, 1 + L); and the distribution of the next symbol (P, E).
    """
    import numpy as np
    import torch

    model.set_attn_implementation("eager")  # the others do not return the attention
    kept: list[Any] = []
    layer = model.model.layers[0]
    handle = layer.post_attention_layernorm.register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0]))
    parts: list[tuple[Any, ...]] = []
    with torch.inference_mode():
        for first in range(0, len(words.tokens), batch_size):
            tokens = torch.from_numpy(words.tokens[first : first + batch_size])
            tokens = torch.cat([torch.full_like(tokens[:, :1], bos), tokens], dim=1).to(model.device)
            output = model(input_ids=tokens, output_hidden_states=True, output_attentions=True)
            mine = slice(*np.searchsorted(words.rows, [first, first + len(tokens)]))
            where = words.rows[mine] - first, words.lengths[mine]
            distribution = output.logits[..., : words.process.num_symbols].softmax(-1)
            outputs = [table.cpu().numpy()[where] for table in (kept.pop(), output.hidden_states[-1], distribution)]
            parts.append((*outputs, output.attentions[0][:, :, -1].cpu().numpy()))
    handle.remove()
    after, last, distributions, attention = (np.concatenate(tables) for tables in zip(*parts, strict=True))
    return after, last, attention, distributions


def weights_by_distance(model: Any, words: Any, attention: Any, slope: Any) -> Any:
    """The mean weight of a symbol in the represented belief, by its distance from the last one of the longest words.

    Head `h` adds `A_h v_h(z)` to the residual stream for a symbol `z`, where the value `v_h(z)` depends on the symbol
    alone, since it is computed from the normalized embedding. The affine map moves the represented belief by
    `A_h v_h(z) slope`; its weight is the projection of this on `b(z) - pi`, in units of that.

    Args:
        model: a Llama of one layer.
        words ([`~hmm_datasets.evaluation.word_probes.WordSet`]): the words.
        attention (`np.ndarray` of shape `(N, heads, 1 + L)`): the attention of the last symbol.
        slope (`np.ndarray` of shape `(D, W)`): linear part of the map from the residual stream to beliefs.

    Returns:
        `np.ndarray` of shape `(L,)`: the weights at distances 0, 1, ...
    """
    import numpy as np
    import torch

    process, length = words.process, words.tokens.shape[1]
    layer, heads = model.model.layers[0], attention.shape[1]
    stationary = np.asarray(process.stationary())
    alone = words.beliefs[words.lengths == 1] - stationary
    with torch.inference_mode():
        embedded = layer.input_layernorm(model.get_input_embeddings().weight[: process.num_symbols])
        values = layer.self_attn.v_proj(embedded).reshape(process.num_symbols, heads, -1)
        out = layer.self_attn.o_proj.weight.reshape(-1, heads, values.shape[-1])
        moved = torch.einsum("zhd,mhd->hzm", values, out).double().cpu().numpy() @ slope
    moved = moved - moved.mean(1, keepdims=True)  # what all symbols have in common says nothing
    gains = np.einsum("hzw,zw->hz", moved, alone) / np.square(alone).sum(1)
    longest = words.weights[words.lengths == length]
    each = np.einsum("nhl,hnl->nl", attention[:, :, 1:], gains[:, words.tokens])
    return ((longest / longest.sum()) @ each)[::-1]


def additive_weights(words: Any, slope: Any) -> Any:
    """The weight of a symbol in a sum over symbols, by its distance, in units of `b(z) - pi` as for a model.

    Args:
        words ([`~hmm_datasets.evaluation.word_probes.WordSet`]): the words.
        slope (`np.ndarray` of shape `(L E, W)`): linear part of a map from [`additive_features`].
    """
    import numpy as np

    alone = words.beliefs[words.lengths == 1] - np.asarray(words.process.stationary())
    moved = slope.reshape(words.tokens.shape[1], *alone.shape)
    moved = moved - moved.mean(1, keepdims=True)
    return (np.einsum("lzw,zw->lz", moved, alone) / np.square(alone).sum(1)).mean(1)


def decay_of(weights: Any) -> float:
    """The `r` in `[-1, 1]` for which `c r^k` is nearest to the weights, for the best `c`.

    ```python
    >>> round(decay_of([0.4, -0.2, 0.1]), 3)
    -0.5

    ```
    """
    import numpy as np

    wanted = np.asarray(weights, float)
    rates = np.linspace(-1, 1, 4001)[:, None]
    powers = rates ** np.arange(len(wanted))
    scales = powers @ wanted / np.square(powers).sum(1)
    return float(rates[np.square(scales[:, None] * powers - wanted).sum(1).argmin(), 0])


def draw(results: list[dict], drawn: list[tuple[Any, dict]], path: Path) -> None:
    """One row for each model: constrained beliefs and full ones, true and probed, and the weights by distance."""
    import numpy as np
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from hmm_datasets.report.plots import PAPER, draw_points, save_figure

    titles = ("constrained: theory", "after attention", "full: theory", "output")
    with rc_context(PAPER):
        figure = Figure(figsize=(9.6, 1.65 * len(results) + 0.3), layout="constrained")
        grid = figure.subplots(len(results), 5, squeeze=False, width_ratios=[1, 1, 1, 1, 1.35])
        for axes, row, (words, panels) in zip(grid, results, drawn, strict=True):
            shown = np.random.default_rng(0).permutation(len(words.rows))[:6000]
            colors = words.beliefs[shown]
            for start, name in ((0, "constrained"), (2, "full")):
                corners = in_plane(panels["true"][name])
                for panel, points in zip(axes[start:], (corners, in_plane(panels["probed"][name])), strict=False):
                    draw_points(panel, points[shown], 0.9 * colors, s=1.2)
                    span = np.ptp(corners, axis=0).max() * 0.58
                    middle = (corners.max(0) + corners.min(0)) / 2
                    panel.set(xlim=(middle[0] - span, middle[0] + span), ylim=(middle[1] - span, middle[1] + span))
                    panel.set(xticks=[], yticks=[], aspect="equal")
                    panel.spines[:].set_visible(False)
            axes[0].set_ylabel(f"x = {row['x']:g}, {row['heads']} head{'s'[: row['heads'] > 1]}")
            _draw_weights(axes[-1], row)
        for panel, title in zip(grid[0], (*titles, "weight of a symbol"), strict=True):
            panel.set_title(title)
        grid[-1, -1].set_xlabel("distance (symbols)")
        save_figure(figure, path)


def in_plane(beliefs: Any) -> Any:
    """Points of the plane for beliefs over three states, whose corners make a triangle of equal sides."""
    return beliefs[:, 1:] @ [[1.0, 0.0], [0.5, 0.75**0.5]]


def _draw_weights(axes: Any, row: dict) -> None:
    import numpy as np

    distances = np.arange(1, len(row["weights"]))
    weights = np.array(row["weights"][1:])
    powers = row["eigenvalue"] ** (distances - 1)
    axes.axhline(0, color="black", linewidth=0.5)
    scale = powers @ weights / (powers @ powers)
    axes.plot(distances, scale * powers, color="#009E73", linestyle="--", label=f"({row['eigenvalue']:.2f})ᵏ")
    best = np.array(row["additive_weights"][1:])
    best = best * (best @ weights) / (best @ best)
    axes.plot(distances, best, color="#0072B2", linestyle=":", label=f"best sum: ({row['additive_decay']:.2f})ᵏ")
    axes.plot(distances, weights, color="black", marker="o", label=f"model: ({row['decay']:.2f})ᵏ")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def write(
    settings: ConstrainedBeliefsSettings, folder: Path, results: list[dict], seconds: float, pictures: dict
) -> None:
    """The numbers beside the predictions of the paper, and then the pictures."""
    from published import Paper, write_result

    write_result(
        folder,
        Paper(
            "Constrained belief updates explain geometric structures in transformer representations",
            "2502.01954",
            "intermediate geometry and attention pattern of one layer",
        ),
        findings(results),
        protocol=(
            f"Llamas of one layer of width {WIDTH}, {settings.steps:,} steps of {BATCH_SIZE} "
            f"sequences of Mess3 with a = {settings.a:g}, AdamW at a peak of {settings.learning_rate:g}, one seed. "
            f"Affine maps over all words of up to {CONTEXT} symbols, weighted by probability. A Llama has "
            "rotary positions and a beginning token, which takes the attention that symbols leave."
        ),
        tokens=len(results) * settings.steps * BATCH_SIZE * (CONTEXT + 2),
        seconds=seconds,
        pictures=pictures,
        more={"models": results},
    )


def findings(results: list[dict]) -> list[Any]:
    """R2 of both kinds of beliefs in both places, and the decay, of each model."""
    from published import Finding

    rows = []
    for row in results:
        name = f"x = {row['x']:g}, heads {row['heads']}"
        for place, words in (("attention", "after attention"), ("output", "in the output")):
            rows += [
                Finding(f"{name}: R2 of {k} beliefs {words}", row[f"{place}_{k}_r2"]) for k in ("constrained", "full")
            ]
        rows += [
            Finding(f"{name}: R2 of full beliefs by the best sum over symbols", row["additive_full_r2"]),
            Finding(
                f"{name}: decay of weights per symbol of distance",
                row["decay"],
                None,
                row["eigenvalue"],
                "prediction 1 - 3 x",
                "" if row["eigenvalue"] > 0 or row["heads"] > 1 else "one head cannot change its sign",
            ),
            Finding(f"{name}: decay of weights in the best sum over symbols", row["additive_decay"]),
            Finding(f"{name}: nats per token above the optimal loss", row["excess"]),
        ]
    return rows


if __name__ == "__main__":
    run(main)
