"""The experiment on scaling laws: its ways of fitting on exact surfaces, and its run from command to report."""

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from experiments import imports_of, load

from hmm_datasets.errors import InputError
from hmm_datasets.files import read_json
from hmm_datasets.hmm.loading import load_source
from hmm_datasets.training.plan.law import Law, Runs, best_of

fits, trials, report, run = (load("scaling", name) for name in ("fits", "trials", "report", "run"))

SYMMETRIC, ASYMMETRIC = Law(1.69, 400, 0.31, 400, 0.31), Law(1.69, 400, 0.45, 400, 0.15)


def surface(law: Law, floor: float | None = None, reach: float = 8.0, shift: float = 1.0):
    """Exact losses of nine sizes around the best one of each of five computes, and these computes."""
    computes, sizes = np.repeat(np.geomspace(1e17, 1e21, 5), 9), np.tile(np.geomspace(1 / reach, reach, 9), 5)
    powers = law.size_exponent + law.token_exponent
    ratio = law.size_exponent * law.size_factor / (law.token_exponent * law.token_factor)
    parameters = shift * sizes * ratio ** (1 / powers) * (computes / 6) ** (law.token_exponent / powers)
    tokens = computes / 6 / parameters
    return Runs(parameters, tokens, law.loss(parameters, tokens), computes, floor), computes


@pytest.mark.parametrize("floor", [None, 1.69])
@pytest.mark.parametrize("law", [SYMMETRIC, ASYMMETRIC])
@pytest.mark.parametrize("method", [fits.huber, fits.projection, fits.latest, fits.longer])
def test_laws_of_exact_surfaces_are_recovered(method, law, floor):
    runs, computes = surface(law, floor)
    fit = method(runs, computes)
    exponent = law.token_exponent / (law.size_exponent + law.token_exponent)
    assert fit.floor == pytest.approx(1.69, abs=2e-3)
    assert fit.exponent == pytest.approx(exponent, abs=2e-3)
    size, loss = fit.best(1e23)
    best, _, lowest = best_of(law, 1e23, runs)
    assert loss == pytest.approx(lowest, abs=2e-3)
    assert size == pytest.approx(best, rel=0.05)


def test_parabolas_are_exact_on_symmetric_surfaces_and_biased_on_others():
    # Czech et al., arXiv:2603.22339: the vertex of a parabola is exact where both exponents agree; else the factor of
    # the size is wrong, the more the wider the grid, while its exponent is right if grids are centred.
    runs, computes = surface(SYMMETRIC, 1.69)
    fit = fits.parabolas(runs, computes)
    assert fit.exponent == pytest.approx(0.5, abs=1e-9)
    assert fit.best(1e21)[0] == pytest.approx(best_of(SYMMETRIC, 1e21, runs)[0], rel=5e-3)
    errors = []
    for reach in (2.0, 16.0):
        runs, computes = surface(ASYMMETRIC, 1.69, reach)
        fit = fits.parabolas(runs, computes)
        assert fit.exponent == pytest.approx(0.25, abs=1e-3)
        errors.append(abs(np.log(fit.best(1e21)[0] / best_of(ASYMMETRIC, 1e21, runs)[0])))
    assert errors[0] < 0.05 < errors[1]


@pytest.mark.outside(
    "https://github.com/OpenAgentsInc/psionic/issues/1103",
    "parabolas of isoFLOP curves, refused without a minimum inside",
    "no fit by parabolas there; exact exponents where both are equal",
)
def test_computes_without_a_minimum_among_their_sizes_have_no_vertex():
    runs, computes = surface(SYMMETRIC, reach=2.0, shift=50.0)
    assert fits.parabolas(runs, computes) is None
    assert fits.smallest(runs, computes).exponent == pytest.approx(0.5, abs=1e-9)


@pytest.mark.outside(
    "https://github.com/epoch-research/analyzing-chinchilla",
    "what approach 3 finds in the 240 runs read from Chinchilla's figure",
    "E 1.8172, alpha 0.347, beta 0.367, as the replication published",
)
@pytest.mark.outside(
    "https://github.com/marin-community/marin/pull/749",
    "a search that does not stop early on the mean of Huber losses",
    "losses are summed, and the published optimum is reached",
)
def test_approach_3_finds_what_the_replication_of_chinchilla_found():
    # Besiroglu et al., arXiv:2404.10102: A 482.01, B 2085.43, E 1.8172, alpha 0.3478, beta 0.3658.
    path = Path(__file__).parents[1] / "training" / "plan" / "chinchilla_runs.csv"
    rows = [[float(cell) for cell in row] for row in list(csv.reader(path.open()))[1:]]
    parameters, flops, losses = np.array(rows).T
    law = fits.huber_law(Runs(parameters, flops / 6 / parameters, losses, flops), starts=((0.3, 0.3),))
    assert law.floor == pytest.approx(1.8172, abs=1e-3)
    assert law.size_exponent == pytest.approx(0.3478, abs=2e-3)
    assert law.token_exponent == pytest.approx(0.3658, abs=3e-3)
    assert law.size_factor == pytest.approx(482.01, rel=0.02)
    assert law.token_factor == pytest.approx(2085.43, rel=0.05)


@pytest.mark.outside(
    "https://github.com/marin-community/marin/issues/8096",
    "the loss by compute with a pinned floor as tested code, and speedups",
    "its law is fitted with the known floor; a speedup of 4 is found as 4",
)
def test_the_frontier_has_the_pinned_floor_and_the_speedup_of_the_example():
    # The law of https://github.com/marin-community/marin/issues/8003; with a pinned floor and power a speedup is
    # ((L_worse - floor) / (L_better - floor)) ** (1 / power).
    computes = np.geomspace(1e18, 1e20, 5)
    losses = 1.6 + 72.6 * computes**-0.0897
    best = np.stack([1e8 * (computes / 1e18) ** 0.46, losses], 1)
    fit = fits.frontier(computes, best, 1.6)
    size, loss = fit.best(1e22)
    assert size == pytest.approx(1e8 * 1e4**0.46, rel=1e-6)
    assert loss == pytest.approx(1.6 + 72.6 * 1e22**-0.0897, abs=1e-3)
    speedup = ((fit.best(1e19)[1] - 1.6) / (fit.best(4e19)[1] - 1.6)) ** (1 / 0.0897)
    assert speedup == pytest.approx(4, rel=1e-2)


def test_sizes_are_those_with_a_sensible_number_of_tokens():
    sizes = trials.sizes_of(1e10, 16)
    assert [size.width for size in sizes] == [8, 12, 16, 24, 32]
    assert trials.sizes_of(3e12, 16)[-1].parameters > 1e6
    for size in sizes:
        tokens = size.steps(1e10) * trials.BATCH_SIZE * (trials.LENGTH + 1)
        assert tokens * size.flops == pytest.approx(1e10, rel=0.02)
    near = trials.nearest_size(50_000, 16)
    assert near.parameters == pytest.approx(50_000, rel=0.2)


def test_the_floor_is_the_exact_loss_of_rows():
    process = load_source("golden_mean")
    found = trials.floor_of(process)
    exact = process.optimal_loss(trials.LENGTH).nats.mean()
    assert abs(found["floor"] - exact) < 4 * found["standard_error"]
    assert found["standard_error"] < 1e-3


SMALL = ["--states", "0", "--processes", "golden_mean", "--planned", "mess3", "--computes", "3e8", "1e9", "3e9"]


@pytest.mark.thorough
def test_an_experiment_ends_with_a_report_and_is_continued_from_its_runs(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(report, "REPLICATES", 3)
    settings = run.ScalingSettings(
        str(tmp_path), 0, ["chain_mixture(3, 4, alpha=0.3)"], ["mess3"], [3e8, 1e9, 3e9], [0, 1]
    )
    with imports_of("scaling"):
        run.main(settings)
    first = read_json(tmp_path / "report.json")
    mixture, planned = first["results"]
    assert {run["seed"] for run in mixture["runs"]} == {0, 1}
    assert {run["seed"] for run in planned["runs"]} == {0}
    assert {run["compute"] for run in mixture["beyond"]} == {3e10, 9e10}
    assert len(planned["beyond"]) == 2
    for result in first["results"]:
        kept = read_json(tmp_path / result["folder"] / "law.json")
        assert kept["floor"] == result["floor"]
        assert len(kept["runs"]) == len(result["runs"]) + len(result["beyond"])
        assert all(run["excess"] > 0 for run in result["runs"])
    known = next(found for label, found in first["errors"][mixture["name"]].items() if label.endswith("known"))
    assert known[0]["floor"] == 0
    assert len(known) == 1 + report.REPLICATES
    text = (tmp_path / "report.md").read_text()
    assert "Errors where the law holds exactly" in text
    with imports_of("scaling"):
        run.main(settings)
    assert read_json(tmp_path / "report.json") == first
    assert "already done" in capfd.readouterr().out  # of its workers


def test_settings_that_cannot_be_fitted_are_refused():
    for name, value in (("computes", [1e9, 1e9, 3e9]), ("computes", [1e9, 3e9]), ("seeds", [])):
        with pytest.raises(InputError, match=name):
            run.ScalingSettings("out", **{name: value})
    with pytest.raises(InputError, match="processes and planned"):
        run.ScalingSettings("out", processes=["mess3"], planned=["mess3"])
    with pytest.raises(InputError, match="processes and planned"):
        run.ScalingSettings("out", states=0, processes=[])


@pytest.mark.slow
def test_workers_end_with_an_experiment_that_is_killed(tmp_path):
    command = [
        sys.executable,
        "-m",
        "hmm_datasets.cli",
        "experiment",
        "scaling",
        "--output_dir",
        str(tmp_path),
        *SMALL,
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    workers: list[psutil.Process] = []
    deadline = time.monotonic() + 120
    while not list(tmp_path.rglob("runs/*.json")) and time.monotonic() < deadline:
        time.sleep(0.5)
    workers = psutil.Process(process.pid).children(recursive=True)
    assert workers
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert not alive
