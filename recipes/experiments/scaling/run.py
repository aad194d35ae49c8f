"""Do scaling laws predict what larger models lose, and what is it worth to know the floor?

    hmm-datasets experiment scaling --config scaling/small.yaml [--seeds 0 1 --processes mess3 ...]

On text the irreducible loss is a parameter of the fit. Here it is the loss of the best predictor of a known process,
so that a fit can be asked for it, and can be told. Small Llamas of several sizes are trained for several computes on
sequences of each process: an HMM fitted to the characters of stories, and those that are named (of a family the HMM of
its first sequence). Chinchilla's three approaches (Hoffmann et al., arXiv:2203.15556) and variable projection (Czech
et al., arXiv:2603.22339) are fitted to what they lose, with the floor free and with the floor known. Each says what
the best model of 10 and of 30 times the largest compute is, and its loss; then models of these computes are trained,
and those that `hmm-datasets plan --law` plans, whose interval is tested on other processes too, `planned`.

`report.md` in the output folder has the tables, `scaling.png` the excess over the optimum by compute and size,
`fits.png` the predictions beside what was found, and the folder of each process `law.json`, the runs as `plan --law`
reads them. When started again the experiment continues.
"""

import itertools
from collections.abc import Iterator
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hmm_datasets.errors import InputError
from hmm_datasets.runtime.program import run
from hmm_datasets.runtime.settings import setting

if TYPE_CHECKING:
    from trials import Size

BEYOND = (10, 30)
"""Multiples of the largest fitted compute that are predicted, and run."""


@dataclass
class ScalingSettings:
    """Settings of the experiment."""

    output_dir: str = setting(MISSING, "Output folder.")
    states: int = setting(
        500, "Hidden states of an HMM that is fitted to the characters of stories; 0 for none.", least=0
    )
    processes: list[str] = setting(["chain_mixture(8, 16, alpha=0.2)"], "Processes: names, folders or calls.")
    planned: list[str] = setting(
        ["physics_of_language_models('cfg3b')"],
        "Processes of which only the planned sizes are run beyond the fitted computes, and one seed before.",
    )
    computes: list[float] = setting([3e9, 1e10, 3e10], "FLOPs of the runs that are fitted.")
    seeds: list[int] = setting([0], "Seeds of the runs that are fitted; beyond them the first one.")

    def __post_init__(self):
        for name, least in (("computes", 3), ("seeds", 1)):
            values = getattr(self, name)
            if len(values) < least or len(set(values)) < len(values) or min(values) < 0:
                raise InputError(f"{name} is {values}; expected {least} or more different numbers, 0 or more")
        named = [*self.processes, *self.planned]
        if len(set(named)) < len(named) or not (self.processes or self.states):
            raise InputError(f"processes and planned are {named}; expected different ones, and one to fit, or states")


def main(settings: ScalingSettings) -> None:
    """Run the fitted computes, fit, run what was predicted, report."""
    from report import law_of, write_report
    from sources import folder_name, named_process, story_source
    from trials import Trial, floor_of, nearest_size, results_of, sizes_of

    from hmm_datasets.runtime.progress import progress_bar
    from hmm_datasets.training.plan.law import planned_by

    folder = Path(settings.output_dir)
    sources = {(name, folder_name(name)): named_process(name) for name in (*settings.processes, *settings.planned)}
    if settings.states:
        stories = story_source(folder / "stories", settings.states)
        sources = {(stories.name, stories.folder): stories.hmm} | sources
    results = []
    for (name, place), process in sources.items():
        process.save_pretrained(folder / place / "process")
        result = {"name": name, "symbols": process.num_symbols, "is_planned": name in settings.planned}
        results.append({**result, "folder": place, "process": process.fingerprint(), **floor_of(process)})

    def run_trials(chosen: "list[list[tuple[float, Size, int]]]", title: str) -> Iterator[list[dict[str, Any]]]:
        trials = [
            Trial(str(folder / result["folder"]), result["process"], compute, size.width, size.steps(compute), seed)
            for result, runs in zip(results, chosen, strict=True)
            for compute, size, seed in runs
        ]
        with progress_bar(len(trials), " runs", desc=title) as bar:
            done = results_of(trials, lambda: bar.update(1))
            for runs in chosen:
                yield list(itertools.islice(done, len(runs)))

    fitted = [
        [
            (compute, size, seed)
            for compute in settings.computes
            for size in sizes_of(compute, result["symbols"])
            for seed in (settings.seeds[:1] if result["is_planned"] else settings.seeds)
        ]
        for result in results
    ]
    for result, runs in zip(results, run_trials(fitted, "fitted runs"), strict=True):
        result["runs"] = runs
    beyond = []
    for result in results:
        result["plans"] = []
        chosen = []
        for multiple in BEYOND:
            compute = multiple * max(settings.computes)
            sizes = [] if result["is_planned"] else sizes_of(compute, result["symbols"])
            try:
                plan = planned_by(law_of(result), compute)
            except InputError as error:
                print(f"{result['name']}: no plan for {compute:.3g} FLOPs: {error}", flush=True)
                plan = {}
            else:
                sizes.insert(0, nearest_size(plan["parameters"]["value"], result["symbols"]))
                plan["width"] = sizes[0].width
            result["plans"].append({"compute": compute, **plan})
            chosen += [(compute, size, settings.seeds[0]) for size in dict.fromkeys(sizes)]
        beyond.append(chosen)
    for result, runs in zip(results, run_trials(beyond, "runs beyond"), strict=True):
        result["beyond"] = runs
    write_report(folder, results, vars(settings))


if __name__ == "__main__":
    run(main)
