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
    for wrong, message in (
        ({"example_lengths": [1]}, "example_lengths is"),
        ({"num_examples": []}, "num_examples is"),
        ({"num_prompts": 0}, "num_prompts is 0"),
    ):
        with pytest.raises(InputError, match=message):
            RECIPE.GINCSettings("unused", **wrong)


@pytest.mark.thorough
def test_the_experiment_runs_to_its_report(program, succeeded, tmp_path):
    tiny = ("--steps", 2, "--batch_size", 2, "--length", 16, "--width", 32, "--layers", 1, "--num_prompts", 8)
    small = ("--example_lengths", 3, 10, "--num_examples", 0, 2, "--output_dir", tmp_path)
    succeeded(program.run("recipes/experiments/ginc/run.py", "--config", "ginc/small.yaml", *tiny, *small))
    content = read_json(tmp_path / "result.json")
    assert len(content["findings"]) == 2 * 4
    assert len(content["accuracy"]) == 2 * 2 * 4
    assert [one["published"] for one in content["findings"] if one["published"]] == [
        "GPT-2 0.414, LSTM 0.424",
        "GPT-2 0.794, LSTM 0.951",
    ]
    assert (tmp_path / "accuracy.png").stat().st_size > 5_000
