"""The experiment on in-context learning of languages: its stages and plans, and all of it in a slow test."""

import re

import pytest
from experiments import load

from hmm_datasets.errors import InputError
from hmm_datasets.files import read_json, write_json, write_yaml
from hmm_datasets.hmm.families import load_source
from hmm_datasets.hmm.model import HMM
from hmm_datasets.operations.stage_inputs import check_cells
from hmm_datasets.operations.sweeps.file import read_sweep
from hmm_datasets.runtime.command_line import parse_settings
from hmm_datasets.runtime.shipped import EXPERIMENTS, shipped

FOLDER = shipped(EXPERIMENTS) / "icll"


RECIPE, COMPARE, COSTS = load("icll"), load("icll", "compare"), load("icll", "sweep_costs")


def settings(config: str, *flags: str):
    return parse_settings(RECIPE.ICLLSettings, arguments=["--config", str(FOLDER / config), *flags])[0]


def sweep_of(content: dict, path):
    write_yaml(path, content)
    return read_sweep(path)


@pytest.mark.thorough
def test_the_full_experiment_is_planned_without_its_data(tmp_path):
    chosen = settings("full.yaml", "--output_dir", str(tmp_path / "icll"))
    assert len(sweep_of(RECIPE.models_sweep(chosen, tmp_path), tmp_path / "models.yaml").cells) == 3 * 2 * 3
    one = settings(
        "full.yaml",
        "--output_dir",
        str(tmp_path / "icll"),
        "--hmms",
        "H500-E200",
        "--kinds",
        "permuted",
        "--plan",
        "H200",
    )
    RECIPE.stand_ins(one, tmp_path)  # the six sources cost the same
    found = COSTS.plans_of(sweep_of(RECIPE.models_sweep(one, tmp_path), tmp_path / "models.yaml"))
    assert len(found) == 3
    for plan in found.values():
        assert plan["tokens"] == pytest.approx(5e9, rel=1e-4)
        assert plan["precision"] == "bf16"
        assert plan["memory"]["ddp"]["total"] < 141e9
    assert 20 < 6 * COSTS.device_hours(found) < 30
    fits = sweep_of(RECIPE.fits_sweep(chosen), tmp_path / "fits.yaml")
    assert [cell.settings["num_states"] for cell in fits.cells] == [500, 200, 500]


def test_small_sources_are_an_hmm_and_a_family_with_and_without_exact_distribution(tmp_path):
    chosen = settings("small.yaml", "--output_dir", str(tmp_path))
    RECIPE.stand_ins(chosen, tmp_path)
    names = {f"{name}-{kind}" for name in ("H4-E100", "H8-E100", "H16-E100") for kind in ("plain", "permuted")}
    sources = {path.name: load_source(str(path)) for path in (tmp_path / "sources").iterdir()}
    assert sources.keys() == names
    exact = {name for name, source in sources.items() if isinstance(source, HMM) or source.has_exact_distribution}
    assert names - exact == {"H8-E100-permuted", "H16-E100-permuted"}
    sweep = sweep_of(RECIPE.models_sweep(chosen, tmp_path), tmp_path / "models.yaml")
    check_cells(sweep)
    assert len(sweep.cells) == 6


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--hmms", "500-100"), "hmms has '500-100'; expected names such as H500-E100"),
        (("--kinds", "plain", "mixed"), "kinds has 'mixed'; expected some of plain, permuted"),
        (
            ("--pretrain", "--lerning_rate 1e-3"),
            "pretrain: unknown flag --lerning_rate; did you mean --learning_rate?",
        ),
        (("--pretrain", "--fp16"), "unknown flag --fp16; if it is the value of --pretrain, write --pretrain=--fp16"),
        (("--pretrain", "--optimizer muon adamw"), "pretrain: adamw: not the value of any flag"),
        (("--pretrain", "--hmm process:mess3"), "pretrain: --hmm is decided by the experiment itself; leave it out"),
        (
            ("--plan", "H200", "--pretrain", "--assumed_rate T4"),
            "pretrain: --assumed_rate is decided by the experiment",
        ),
    ],
)
def test_wrong_settings_are_refused(flags, message, tmp_path):
    with pytest.raises(InputError, match=re.escape(message)):
        RECIPE.models_sweep(settings("small.yaml", *flags), tmp_path)


def test_every_model_is_trained_with_the_flags_of_pretraining(tmp_path):
    flags = ("--pretrain=--learning_rate=1e-3 --fp16 --batch_ramp 8:10 16:10 --optimizer adamw",)
    expected = {"learning_rate": 1e-3, "fp16": True, "batch_ramp": ["8:10", "16:10"], "optimizer": "adamw"}
    expected |= {"global_batch_size": 32, "per_device_train_batch_size": 16, "length": 64, "train_tokens": 200_000}
    chosen = settings("small.yaml", *flags)
    for cell in sweep_of(RECIPE.models_sweep(chosen, tmp_path), tmp_path / "models.yaml").cells:
        assert {name: cell.settings[name] for name in expected} == expected
    planned = RECIPE.models_sweep(settings("small.yaml", *flags, "--plan", "T4"), tmp_path)["settings"]
    assert (planned["assumed_rate"], planned["bf16"]) == ("T4", False), "the plan is of float16"


@pytest.mark.thorough
def test_results_of_exact_and_inexact_sources_are_shown_together(tmp_path):
    cells = []
    for name, floor in (("H16-E9-permuted", "oracle"), ("H4-E9-permuted", "bayes"), ("H4-E9-plain", "bayes")):
        kl = {predictor: {"kl": 0.5} for predictor in (floor, "bigram", "uniform")}
        optimum = {"cross_entropy": {"model": {"cross_entropy": 2.0}}, "floor": floor, "kl": kl}
        optimum["bayes_gap"] = {"bayes_gap": 0.25, "standard_error": 0.01}
        report = {"model": {"parameters": 1000}, "optimum": optimum}
        write_json(tmp_path / name / "run" / "evaluation" / "report.json", report)
        chosen = {"hmm": f"somewhere/{name}", "model": "1m", "seed": 0}
        cells.append({"folder": str(tmp_path / name), "settings": chosen, "state": "finished"})
    rows = COMPARE.results(cells)
    assert [(row["kind"], row["states"]) for row in rows] == [("permuted", 4), ("permuted", 16), ("plain", 4)]
    shown = COMPARE.divergences_table(rows).rows
    assert [row[4:6] for row in shown] == [["-", "0.5000"], ["0.5000", "-"], ["-", "0.5000"]]
    assert [row[6] for row in COMPARE.quality_table(rows).rows] == ["bayes", "oracle", "bayes"]
    COMPARE.draw(rows, tmp_path / "icll.png")
    assert (tmp_path / "icll.png").stat().st_size > 5_000
    with pytest.raises(InputError, match="the model is not finished"):
        COMPARE.results([{**cells[0], "state": "failed"}])


@pytest.mark.thorough
@pytest.mark.slow
def test_the_small_experiment_ends_in_its_report(program, succeeded, tmp_path):
    small = ("--hmms", "H4-E100", "H8-E100", "--train_tokens", 20_000, "--num_sequences", 16)
    command = (
        "recipes/experiments/icll/run.py",
        "--config",
        "recipes/experiments/icll/small.yaml",
        *small,
        "--output_dir",
        tmp_path,
    )
    said = succeeded(program.run(*command, timeout=900)).stdout
    rows = read_json(tmp_path / "report.json")["models"]
    floors = {(row["states"], row["kind"]): row["floor"] for row in rows}
    assert floors == {
        (4, "plain"): "bayes",
        (8, "plain"): "bayes",
        (4, "permuted"): "bayes",
        (8, "permuted"): "oracle",
    }
    assert all(row["excess"] > 0 and row["kl"]["bigram"] > 0 for row in rows)
    assert (tmp_path / "icll.png").stat().st_size > 5_000
    assert "Quality of the models by number of states" in said
