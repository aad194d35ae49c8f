"""The report of the experiment: the laws of all runs, the errors of each way of fitting, and what was planned."""

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from fits import METHODS, Fit, compute_exponent
from jaxtyping import Float
from plot import plot_fits, plot_runs
from report_page import write_report_page
from trials import FLOOR_ROWS

from hmm_datasets.files import write_json
from hmm_datasets.intervals import half_width
from hmm_datasets.report.tables import Table
from hmm_datasets.training.plan.law import Law, Runs, best_of, fit_law, tokens_for

REPLICATES = 50
"""Draws of the losses of runs, from which intervals are computed."""

Result = dict[str, Any]
"""A process, see [`write_report`]."""


class Truth(NamedTuple):
    """Of a compute.

    Attributes:
        compute (`float`): FLOPs.
        lowest (`float`): the loss of the best size.
        sizes, lost (`np.ndarray` of shape `(S,)`): logarithms of sizes, and what each loses beside the best one.
    """

    compute: float
    lowest: float
    sizes: Float[np.ndarray, "S"]
    lost: Float[np.ndarray, "S"]


Errors = dict[str, float]
"""Of a fit: of the `floor`, the `exponent`, and for each compute beyond of the loss and of the size."""


def write_report(folder: Path, results: Sequence[Result], settings: Mapping[str, Any]) -> None:
    """Write `report.json`, `report.md`, the pictures and the laws; print the tables.

    Args:
        folder (`Path`): folder of the experiment.
        results (sequence of `dict`): for each process its `name`, `folder`, `floor` with its `standard_error`, whether
            it `is_planned` alone, the `runs` that are fitted and those `beyond`, and the `plans`.
        settings (mapping): those of the experiment.
    """
    for result in results:
        rows = zip(*law_of(result, [*result["runs"], *result["beyond"]])[:4], strict=True)
        named = [dict(zip(("parameters", "tokens", "loss", "flops"), map(float, row), strict=True)) for row in rows]
        write_json(folder / result["folder"] / "law.json", {"floor": result["floor"], "runs": named})
    compared = [result for result in results if not result["is_planned"]]
    measured = {result["name"]: errors_of(result) for result in compared}
    simulated = {result["name"]: errors_of(result, simulated=True) for result in compared}
    tables = [laws_table(results), summary_table("Errors", measured)]
    tables += [errors_table(result, measured[result["name"]]) for result in compared]
    tables += [summary_table("Errors where the law holds exactly", simulated), plans_table(results)]
    figures = {"settings": dict(settings), "results": list(results), "errors": measured, "simulated": simulated}
    laws = {result["name"]: reference(result) for result in results}
    pictures = {"scaling.png": partial(plot_runs, results, laws), "fits.png": partial(plot_fits, compared, measured)}
    others = [f"{result['folder']}/law.json" for result in results]
    write_report_page(folder, tables, figures, pictures, others=others)


def law_of(result: Result, runs: Sequence[dict[str, Any]] | None = None) -> Runs:
    """Runs of a process, by default those that are fitted, with the known floor."""
    names = ("parameters", "tokens", "excess", "flops")
    rows = [[run[name] for name in names] for run in (result["runs"] if runs is None else runs)]
    parameters, tokens, excess, flops = np.array(rows, float).T
    return Runs(parameters, tokens, result["floor"] + excess, flops, result["floor"])


def reference(result: Result) -> Law:
    """The law of all runs of a process, by variable projection with the known floor."""
    return fit_law(law_of(result, [*result["runs"], *result["beyond"]]))


def means_of(result: Result) -> tuple[Runs, Float[np.ndarray, "R"], float]:
    """The fitted runs, means over seeds, what compute each was to take, and the standard deviation of the logarithm of
    an excess over seeds.
    """
    cells: dict[tuple[float, int], list[dict[str, Any]]] = {}
    for run in result["runs"]:
        cells.setdefault((run["compute"], run["width"]), []).append(run)
    means = [{**runs[0], "excess": np.mean([run["excess"] for run in runs])} for runs in cells.values()]
    logs = [np.log([run["excess"] for run in runs]) for runs in cells.values() if len(runs) > 1]
    spread = np.sqrt(np.mean([log.var(ddof=1) for log in logs])) if logs else np.nan
    return law_of(result, means), np.array([compute for compute, _ in cells]), float(spread)


def errors_of(result: Result, *, simulated: bool = False) -> dict[str, list[Errors]]:
    """The errors of each way of fitting, of the runs and then of replicates of them.

    Each replicate has other errors of the same spread as the seeds of a size. Simulated runs are those of the
    [`reference`] instead, whose exponent and predictions are the truth then.
    """
    runs, computes, spread = means_of(result)
    floor, law, generator = result["floor"], reference(result), np.random.default_rng(0)
    seeds = len(result["runs"]) / len(computes)
    if simulated:
        runs = runs._replace(losses=law.loss(runs.parameters, runs.tokens))
    excess, errors = runs.losses - floor, {}
    noises = [np.zeros(len(excess))]
    if np.isfinite(spread):
        noises += [spread / np.sqrt(seeds) * generator.standard_normal(len(excess)) for _ in range(REPLICATES)]
    truths = simulated_truths(runs, law, result) if simulated else measured_truths(result)
    for number, noise in enumerate(noises):
        drawn = runs._replace(losses=floor + excess * np.exp(noise))
        for (name, method), known in itertools.product(METHODS.items(), (False, True)):
            quick = partial(method, starts=((0.3, 0.3),)) if number and name.endswith("Huber") else method
            fit = quick(drawn._replace(floor=floor if known else None), computes)
            label = f"{name}, floor {'known' if known else 'free'}"
            if fit is not None and (number == 0 or label in errors):
                errors.setdefault(label, []).append(error_of(fit, floor, law, truths))
    return errors


def measured_truths(result: Result) -> dict[str, Truth]:
    """Of the runs beyond the fitted computes, by compute."""
    truths = {}
    for plan in result["plans"]:
        runs = [run for run in result["beyond"] if run["compute"] == plan["compute"]]
        sizes, excess = np.array(sorted((run["parameters"], run["excess"]) for run in runs)).T
        lowest = float(excess.min())
        truths[f"{plan['compute']:.3g}"] = Truth(
            plan["compute"], result["floor"] + lowest, np.log(sizes), excess - lowest
        )
    return truths


def simulated_truths(runs: Runs, law: Law, result: Result) -> dict[str, Truth]:
    """Those of a law, of sizes over four decades."""
    truths = {}
    for plan in result["plans"]:
        compute = plan["compute"]
        best, _, lowest = best_of(law, compute, runs)
        sizes = best * np.geomspace(0.01, 100, 400)
        losses = law.loss(sizes, tokens_for(compute, sizes, runs))
        truths[f"{compute:.3g}"] = Truth(compute, lowest, np.log(sizes), losses - lowest)
    return truths


def error_of(fit: Fit, floor: float, law: Law, truths: Mapping[str, Truth]) -> Errors:
    """The errors of a fit: predicted minus true, and what the size that it picks loses."""
    exponent = compute_exponent(law)
    errors = {"floor": fit.floor - floor, "exponent": fit.exponent - exponent}
    for name, truth in truths.items():
        size, loss = fit.best(truth.compute)
        errors |= {
            f"loss {name}": loss - truth.lowest,
            f"size {name}": float(np.interp(np.log(size), truth.sizes, truth.lost)),
        }
    return errors


def laws_table(results: Sequence[Result]) -> Table:
    """The laws of all runs."""
    rows = []
    for result in results:
        runs, law = [*result["runs"], *result["beyond"]], reference(result)
        exponent = compute_exponent(law)
        excess = [run["excess"] for run in runs]
        cells = [f"{law.size_exponent:.3f}", f"{law.token_exponent:.3f}", f"{exponent:.3f}"]
        fitted = np.array([law.loss(run["parameters"], run["tokens"]) for run in runs]) - result["floor"]
        cells.append(f"{100 * np.sqrt(np.mean(np.log(fitted / excess) ** 2)):.0f}")
        spread = means_of(result)[2]
        cells.append("-" if np.isnan(spread) else f"{100 * spread:.0f}")
        floor = f"{result['floor']:.4f} ± {half_width(result['standard_error'], FLOOR_ROWS):.4f}"
        rows.append([result["name"], str(len(runs)), floor, f"{max(excess):.3f} to {min(excess):.3f}", *cells])
    header = ["process", "runs", "floor, nats per symbol", "excess", "alpha", "beta", "a", "misfit, %", "seeds, %"]
    note = (
        "Variable projection with the known floor, of all runs: the excess is A N^-alpha + B D^-beta, the best size "
        "grows with the power a of compute. misfit: root mean square of the law's relative errors; seeds: the spread "
        "of an excess over seeds"
    )
    return Table("Laws", header, rows, note)


def errors_table(result: Result, errors: Mapping[str, list[Errors]]) -> Table:
    """The errors of each way of fitting on one process."""
    names = list(next(iter(errors.values()))[0])
    rows = [
        [label, *(with_interval([one[name] for one in found]) for name in names)] for label, found in errors.items()
    ]
    note = (
        "floor, a and losses: predicted minus found; size: what the size that is picked loses beside the best that "
        "was run. All but a in nats per symbol. ± 95%, over replicates of the runs, with the noise of seeds"
    )
    return Table(result["name"], ["fit", *map(heading, names)], rows, note)


def summary_table(title: str, by_process: Mapping[str, Mapping[str, list[Errors]]]) -> Table:
    """The mean over processes of the absolute errors of each way of fitting."""
    labels = list(dict.fromkeys(label for errors in by_process.values() for label in errors))
    names = list(next(iter(next(iter(by_process.values())).values()))[0])
    rows = []
    for label in labels:
        known = [errors[label] for errors in by_process.values() if label in errors]
        cells = []
        for name in names:
            count = min(map(len, known))
            means = [float(np.mean([abs(errors[number][name]) for errors in known])) for number in range(count)]
            cells.append(with_interval(means))
        rows.append([label, f"{len(known)} of {len(by_process)}", *cells])
    return Table(f"{title}, absolute, mean over processes", ["fit", "fitted", *map(heading, names)], rows)


def plans_table(results: Sequence[Result]) -> Table:
    """What `plan --law` planned, and what was found."""
    rows = []
    for result in results:
        for plan in (plan for plan in result["plans"] if "width" in plan):
            alike = [run for run in result["beyond"] if run["compute"] == plan["compute"]]
            (found,) = [run for run in alike if run["width"] == plan["width"]]
            loss, excess = found["excess"] + result["floor"], found["excess"]
            low, value, high = (plan["loss"][name] - result["floor"] for name in ("low", "value", "high"))
            is_inside = plan["loss"]["low"] <= loss <= plan["loss"]["high"]
            sizes = [f"{plan['parameters'][name]:,.0f}" for name in ("value", "low", "high")]
            cells = [f"{sizes[0]} ({sizes[1]} to {sizes[2]})", f"{found['parameters']:,}", f"{value:.4f}"]
            cells += [f"{low:.4f} to {high:.4f}", f"{excess:.4f}", "yes" if is_inside else "no"]
            rows.append([f"{result['name']}, {plan['compute']:.3g}", *cells])
    header = ["process, FLOPs", "planned parameters", "run with", "excess", "95%", "found", "inside"]
    return Table("Plans", header, rows, "Excess over the floor in nats per symbol; the law of `plan --law`")


def heading(name: str) -> str:
    """The column of an error."""
    return {"floor": "floor", "exponent": "a"}.get(name, f"{name} FLOPs")


def with_interval(values: Sequence[float]) -> str:
    """The first value with half the width of 95% of the others."""
    if len(values) < 2:
        return f"{values[0]:.4f}"
    low, high = np.quantile(values[1:], [0.025, 0.975])
    return f"{values[0]:.4f} ± {(high - low) / 2:.4f}"
