"""Every experiment with other settings than its own: it runs, or refuses before it trains."""

import re

import pytest

from hmm_datasets.errors import InputError
from hmm_datasets.files import read_json
from hmm_datasets.operations.experiments import experiment_names, experiment_script
from hmm_datasets.operations.launching import declared_kinds, recipe_settings
from hmm_datasets.runtime.command_line import parse_settings, setting_names

WITHOUT_SEED = {
    "benchmark-models": "scores models that are published, on the held-out sequences of the benchmark",
    "chat-ladder": "its stages have the seeds of their YAML files",
    "leaky-tokenizer": "seeds",
    "tr1": "its jobs have the seeds of their YAML files",
    "wordplay": "its stages have the seeds of their YAML files",
    "zac-gpt": "its stages have the seeds of their YAML files",
}
SMALL = {"steps": 2, "batch_size": 4, "num_sequences": 16, "width": 8, "layers": 1, "heads": 1}
"""Settings of a run of a second, as far as an experiment has them."""

REFUSED = {
    "one state": (
        "factored-beliefs",
        ("--factors", "process:coin", "process:mess3"),
        "factors has process:coin, whose belief is the same after every symbol",
    ),
    "no memory": (
        "generalized-processes",
        ("--processes", "coin()"),
        "processes has coin(), whose predictive vectors are all the same",
    ),
    "twice": (
        "generalized-processes",
        ("--processes", "mess3()", "mess3(x=0.05, a=0.85)"),
        "processes has mess3 twice, as mess3(x=0.05, a=0.85) the second time",
    ),
    "one chain": ("nonergodic", ("--counts", 1), "counts is [1]; expected numbers of chains, 2 or more"),
    "letters": (
        "icl-transition",
        ("--models", "x", "--hmm", "random_chains(30, alpha=1.0)"),
        "with models expected at most 26 letters",
    ),
}


def command(name: str, folder: object, *flags: object) -> list[str]:
    names = setting_names(declared_kinds(experiment_script(name)))
    small = [word for key, value in SMALL.items() if key in names for word in (f"--{key}", value)]
    words = ["-m", "hmm_datasets.cli", "experiment", name, "--output_dir", folder, *small, *flags]
    return list(map(str, words))


@pytest.mark.parametrize("name", experiment_names())
def test_an_experiment_has_a_seed(name):
    names = setting_names(declared_kinds(experiment_script(name)))
    assert names & {"seed", "seeds"} or name in WITHOUT_SEED


@pytest.mark.outside(
    "https://github.com/sreerevanth/repopilot/issues/287",
    "a key of a file of settings that matches no flag, such as max_iteration for max_iterations",
    "is refused by its name, with the nearest setting if one is near; of experiments too, also one that has gone",
)
@pytest.mark.parametrize(
    ("name", "line", "expected"),
    [
        ("known-optimum", "dpo_steps: 150", "unknown setting 'dpo_steps'; did you mean steps?"),
        ("architectures", "recall_widths: [16, 32]", "unknown setting 'recall_widths'"),
        ("icl-transition", "zipf: 1.5", "unknown setting 'zipf'"),
        ("leaky-tokenizer", "warmup_step: 9", "unknown setting 'warmup_step'"),
        ("leaky-tokenizer", "vocab_size: 700", "unknown setting 'vocab_size'"),
        ("nonergodic", "learning_rate: 0.01", "unknown setting 'learning_rate'"),
        ("tinystories-hmm", "pseudocount: 0.05", "unknown setting 'pseudocount'"),
        ("zac-gpt", "weights: [0.3, 0.58, 0.12]", "unknown setting 'weights'"),
    ],
)
def test_a_setting_of_a_file_that_an_experiment_has_not_is_refused(name, line, expected, tmp_path):
    path = tmp_path / "old.yaml"
    path.write_text(f"output_dir: out\n{line}\n")
    with pytest.raises(InputError, match=re.escape(f"old.yaml: {expected}")):
        parse_settings(*recipe_settings(name), arguments=["--config", str(path)])


@pytest.mark.thorough
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_measured_is_refused_before_training(case, program, tmp_path):
    name, flags, expected = REFUSED[case]
    result = program.run(*command(name, tmp_path / "out", *flags))
    assert result.returncode == 2, result.stdout
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert expected in line
    assert not list((tmp_path / "out").rglob("*.safetensors")), "nothing was trained"


@pytest.mark.thorough
def test_two_parameters_of_one_process_have_folders_of_their_own(program, succeeded, tmp_path):
    """Also a process of two states, whose predictive vectors lie on a line."""
    calls = ("mess3(x=0.05, a=0.85)", "mess3(x=0.3, a=0.5)", "golden_mean(p=0.3)")
    flags = ("--processes", *calls, "--architectures", "gru", "--seed", 3)
    succeeded(program.run(*command("generalized-processes", tmp_path, *flags)))
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == [
        "golden_mean(p=0.3)-gru",
        "mess3(x=0.3,a=0.5)-gru",
        "mess3-gru",
    ]
    models = read_json(tmp_path / "result.json")["models"]
    assert [row["of_paper"] for row in models] == ["mess3(x=0.05, a=0.85)", None, None]
    findings = read_json(tmp_path / "result.json")["findings"]
    assert [one["published"] for one in findings[:2]] == ["all of 1", None]
