"""The settings of BLOOM's tr1-13B-base: their plans, and a small run in two jobs."""

import pytest
from experiments import load

from hmm_datasets.files import read_json, read_jsonl, read_yaml
from hmm_datasets.operations.planning import plan_recipe
from hmm_datasets.runtime.shipped import shipped
from hmm_datasets.training.plan.batch_schedule import BatchSchedule


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "billions"), [("1.3b", 1.415), ("13b", 13.10)])
def test_the_full_plans_are_those_of_300_billion_tokens(name, billions):
    found = plan_recipe("pretrain", ["--config", f"tr1/{name}.yaml"], num_processes=16, assumed_vocab_size=50_257)
    assert found["parameters"] / 1e9 == pytest.approx(billions, rel=1e-3)
    assert (found["global_batch_size"], len(found["batch_ramp"]), found["batch_ramp"][0]) == (1024, 63, "16:4961")
    assert 300e9 <= found["tokens"] < 300e9 + 1024 * 2048
    assert found["steps"] == 23_456 + -(-(found["rows"] - 5_000_528) // 1024)
    assert found["time"]["cost"] == pytest.approx(found["time"]["device_hours"] * 2.5)
    assert found["memory"]["zero3"]["total"] < 80 * 2**30
    assert (found["memory"]["ddp"]["total"] < 80 * 2**30) == (name == "1.3b")
    told = f"{found['tokens']:,} | {found['flops']:.3e} | {found['memory']['zero3']['total'] / 2**30:.1f} GiB |"
    assert told in shipped("recipes/experiments/tr1/README.md").read_text(encoding="utf-8")


def test_the_warm_up_ends_after_the_rows_of_the_published_one():
    schedule = BatchSchedule.parse(["16+16:5_000_000"], 1024)
    for name in ("1.3b", "13b"):
        assert read_yaml(shipped(f"recipes/experiments/tr1/{name}.yaml"))["warmup_steps"] == schedule.steps_for_rows(
            216_320
        )


def test_each_job_but_the_last_has_a_time_limit():
    program = vars(load("tr1"))
    commands = [command for _, command in program["stages"](program["TR1Settings"](jobs=3))]
    assert ["--time_limit" in command for command in commands] == [False, True, True, False, False]
    assert commands[1] == f"{commands[3]} --time_limit 0:01:30"


@pytest.mark.thorough
@pytest.mark.slow
def test_two_jobs_consume_the_planned_tokens_on_the_ramp(program, succeeded, tmp_path):
    command = (
        "recipes/experiments/tr1/run.py",
        "--config",
        "recipes/experiments/tr1/small.yaml",
        "--output_dir",
        tmp_path / "out",
    )
    said = succeeded(program.run(*command, "--job_time", "0:00:50", timeout=900)).stdout
    model = tmp_path / "out" / "model"
    plan, summary = read_json(model / "plan.json"), read_json(model / "summary.json")
    assert (summary["steps"], summary["tokens"]) == (plan["steps"], plan["tokens"])
    assert len(plan["batch_ramp"]) == 15
    rows = [row for row in read_jsonl(model / "history.jsonl") if "loss" in row]
    assert rows[-1]["loss"] < rows[0]["loss"]
    assert "Job 2 of 2" in said
