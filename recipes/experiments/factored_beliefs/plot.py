"""The result of the experiment on factored beliefs: its table, and its picture."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter, StrMethodFormatter
from published import Finding, Paper, write_result

from hmm_datasets.report.plots import PAPER, save_figure

PAPER_OF_FACTORS = Paper(
    "Transformers learn factored representations", "2602.02385", "dimension and subspaces of what is represented"
)
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_SIZE = (8.4, 3.9)


def write_factored_beliefs(
    folder: str | Path, results: Mapping[float, Mapping[str, Any]], factors: Sequence[str], protocol: str
) -> None:
    """Write `result.json` and `result.md`, and draw `factored_beliefs.png`.

    Args:
        folder (path): folder of the experiment.
        results (mapping): by noise, the result of a
            [`measured_run`][small_runs.measured_run] with `exact`.
        factors (sequence of `str`): names of the factors.
        protocol (`str`): how the models were trained and measured.
    """
    write_result(
        folder,
        PAPER_OF_FACTORS,
        [finding for noise, result in results.items() for finding in factored_findings(noise, result)],
        protocol=protocol,
        tokens=sum(result["tokens"] for result in results.values()),
        seconds=sum(result["seconds"] for result in results.values()),
        pictures={"factored_beliefs.png": partial(plot_factored_beliefs, results, factors)},
        more={"factors": list(factors), "models": {f"{noise:g}": result for noise, result in results.items()}},
    )


def factored_findings(noise: float, result: Mapping[str, Any]) -> list[Finding]:
    """The numbers of one model at the end of its training."""
    exact, last = result["exact"], result["rows"][-1]
    under = f", noise {noise:g}"
    stated = (
        "orthogonal subspaces, whose dimension grows linearly with the factors"
        if noise == 0
        else "dimension grows over training where noise makes factors dependent"
    )
    predicted = f"sum of (d - 1) is {exact['sum']}, product minus 1 is {exact['product']}; the abstract has no number"
    components = "components with {} % of the variance" + under
    entries = [
        Finding(components.format(95), last["dimensions"]["0.95"], None, stated, "ICML abstract", predicted),
        Finding(components.format(99), last["dimensions"]["0.99"]),
    ]
    r2 = [value for name, value in last["r2"].items() if name != "joint"]
    first = result["rows"][0]["r2"]
    untrained = min(value for name, value in first.items() if name != "joint")
    by_factors = exact["joint_r2_of_factors"]
    others = f"{first['joint']:.3f} before training; exact beliefs of the factors explain {by_factors:.3f} of it"
    return [
        *entries,
        Finding(f"smallest R2 of a factor's belief{under}", min(r2), difference=f"{untrained:.3f} before training"),
        Finding(f"R2 of the joint belief{under}", last["r2"]["joint"], difference=others),
        Finding(
            f"overlap of two factors' subspaces{under}",
            last["overlap"],
            difference=f"0 if orthogonal; {last['chance_overlap']:.3f} by chance",
        ),
        Finding(f"excess over the optimal loss{under} (nats per token)", last["excess"]),
    ]


@rc_context(PAPER)
def plot_factored_beliefs(
    results: Mapping[float, Mapping[str, Any]], factors: Sequence[str], path: str | Path
) -> None:
    """Draw variance by number of components, that number over training, and R2 of the first model over training."""
    figure = Figure(figsize=_SIZE, layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    exact = next(iter(results.values()))["exact"]
    _plot_variance(left, results, exact)
    for colour, (noise, result) in zip(_COLOURS, results.items(), strict=False):
        steps = [row["step"] for row in result["rows"]]
        counts = [row["dimensions"]["0.95"] for row in result["rows"]]
        middle.plot(steps, counts, color=colour, marker="o", label=f"noise {noise:g}")
    for name, style in (("sum", "--"), ("product", ":")):
        middle.axhline(exact[name], color="grey", linestyle=style, label=f"{_SIZES[name]} = {exact[name]}")
    middle.set(xlabel="optimizer step", ylabel="components (95 % of variance)", yscale="log")
    middle.yaxis.set_major_formatter(ScalarFormatter())
    middle.set_yticks([5, 10, 20, 50])
    middle.minorticks_off()
    noise, first = next(iter(results.items()))
    steps = [row["step"] for row in first["rows"]]
    for number, name in enumerate(first["rows"][0]["r2"]):
        joint = name == "joint"
        label = "joint" if joint else short_name(factors[number])
        colour = "black" if joint else _COLOURS[number % len(_COLOURS)]
        right.plot(steps, [row["r2"][name] for row in first["rows"]], color=colour, marker="o", label=label)
    right.axhline(exact["joint_r2_of_factors"], color="black", linestyle="--", label="joint, by exact factors")
    right.set(xlabel="optimizer step", ylabel=f"R² of beliefs, noise {noise:g}", ylim=(None, 1.02))
    for axes in (middle, right):
        axes.set_xscale("symlog", linthresh=1)
        axes.set_xlim(left=0)
    for axes in (left, middle, right):
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2))
    save_figure(figure, path)


def _plot_variance(axes: Axes, results: Mapping[float, Mapping[str, Any]], exact: Mapping[str, Any]) -> None:
    for colour, (noise, result) in zip(_COLOURS, results.items(), strict=False):
        explained = result["rows"][-1]["dimensions"]["explained"]
        axes.plot(range(1, len(explained) + 1), explained, color=colour, label=f"model, noise {noise:g}")
    for name, style in (("factors", "--"), ("joint", ":")):
        explained = exact[name]["explained"]
        axes.plot(range(1, len(explained) + 1), explained, color="black", linestyle=style, label=f"exact, {name}")
    for name, style in (("sum", "--"), ("product", ":")):
        axes.axvline(exact[name], color="grey", linestyle=style, label=f"{_SIZES[name]} = {exact[name]}")
    axes.set(xlabel="principal components", ylabel="cumulated share of variance", xscale="log")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))


_SIZES = {"sum": "Σ (d − 1)", "product": "Π d − 1"}


def short_name(process: str) -> str:
    """The name of a process without its prefix.

    ```python
    >>> short_name("process:mess3(x=0.05,a=0.85)")
    'mess3(x=0.05,a=0.85)'

    ```
    """
    return process.removeprefix("process:")
