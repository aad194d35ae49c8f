"""The card of a run that was evaluated, from its commands."""

import pytest
from huggingface_hub import ModelCard

from hmm_datasets.files import read_json


@pytest.mark.thorough
def test_the_card_of_an_evaluated_run_has_the_evaluation_with_its_errors(program, succeeded, tmp_path):
    run = tmp_path / "run"
    sizes = ["--hmm", "mess3", "--length", "12", "--model", "d1", "--num_test_sequences", "16", "--max_steps", "10"]
    sizes += ["--global_batch_size", "4", "--per_device_train_batch_size", "4", "--report_to", "none"]
    sizes += ["--logging_steps", "1"]  # from ten losses on they are drawn
    succeeded(program.run("recipes/pretrain.py", *sizes, "--output_dir", str(run)))
    assert (run / "plots" / "loss.png").stat().st_size > 1000
    text = ModelCard.load(run / "README.md").text
    assert "| Held-out cross-entropy |" in text
    assert "| *Optimal predictor on the same sequences* |" in text
    wanted = ["--num_sequences", "32", "--tasks", "optimum"]
    assert (
        "results are in the card"
        in succeeded(program.run("recipes/evaluate_model.py", "--model", str(run), *wanted)).stdout
    )
    gap = read_json(run / "evaluation" / "report.json")["optimum"]["bayes_gap"]
    text = ModelCard.load(run / "README.md").text
    shown = f"| {gap['bayes_gap']:.5g} | {gap['standard_error']:.2g} | nats/token |"
    assert f"| Excess over the optimal loss {shown}" in text
