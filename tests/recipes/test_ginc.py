"""In-context learning on GINC: predictors in the order that theory says, and the recipe."""

import pytest
from experiments import imports_of, load

from hmm_datasets.errors import InputError
from hmm_datasets.files import read_json

RECIPE, CONCEPTS = load("ginc"), load("ginc", "concepts")


@pytest.mark.thorough
def test_no_exact_predictor_of_documents_is_better_than_that_of_prompts():
    settings = RECIPE.GINCSettings("unused", num_prompts=120, steps=0)
    documents = CONCEPTS.ginc()
    exact = {"documents": documents, "leaky documents": CONCEPTS.ginc(leak=0.01)}
    with imports_of("ginc"):
        cells = {count: RECIPE.answered(settings, documents, exact, None, 3, count) for count in (0, 4)}
        again = RECIPE.answered(settings, documents, exact, None, 3, 4)
    means = {count: {who: right.mean() for who, right in cell.items()} for count, cell in cells.items()}
    assert means[0]["prompts"] == means[0]["documents"]  # the first tokens of a prompt are those of a document, nearly
    assert means[4]["prompts"] > means[4]["leaky documents"] > means[4]["documents"]
    assert means[4]["prompts"] > 0.95
    assert (cells[4]["prompts"] == again["prompts"]).all()


def test_wrong_settings_are_refused():
    with pytest.raises(InputError, match="num_prompts is 0"):
        RECIPE.GINCSettings("unused", num_prompts=0)


@pytest.mark.thorough
def test_the_experiment_runs_to_its_report(program, succeeded, tmp_path):
    tiny = ("--steps", 2, "--length", 16, "--width", 32, "--num_prompts", 8, "--output_dir", tmp_path)
    succeeded(program.run("recipes/experiments/ginc/run.py", "--config", "ginc/small.yaml", *tiny))
    content = read_json(tmp_path / "result.json")
    assert len(content["findings"]) == 4 * 4
    assert len(content["accuracy"]) == 4 * 8 * 4
    assert [one["published"] for one in content["findings"] if one["published"]] == [
        "GPT-2 0.537, LSTM 0.452",
        "GPT-2 0.768, LSTM 0.844",
        "GPT-2 0.835, LSTM 0.948",
        "GPT-2 0.847, LSTM 0.958",
    ]
    assert (tmp_path / "accuracy.png").stat().st_size > 5_000
