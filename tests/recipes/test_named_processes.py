"""A run on a process named as a call saves it, compares its fingerprint when it resumes, and is evaluated on it."""

import pytest

from hmm_datasets import load_source, processes
from hmm_datasets.files import read_json
from hmm_datasets.operations.verification import verify

pytestmark = pytest.mark.thorough

NAME, NAMED = "process:mess3(x=0.05, a=0.85)", processes.mess3(x=0.05, a=0.85)


def test_a_run_saves_the_process_that_it_names_and_is_evaluated_on_it(program, succeeded, tmp_path):
    output = tmp_path / "run"

    def pretrain(name, steps):
        data = ("--hmm", name, "--length", 8, "--num_test_sequences", 8, "--model", "1m", "--max_steps", steps)
        batches = ("--global_batch_size", 4, "--per_device_train_batch_size", 4, "--save_steps", 1)
        return program.run("recipes/pretrain.py", *data, *batches, "--output_dir", output)

    first = succeeded(pretrain(NAME, 2))
    assert "[transformers]" not in first.stderr, "nothing that a user cannot change"
    assert "Warning" not in first.stderr
    assert load_source(output / "process") == NAMED
    assert read_json(output / "run.json")["data"]["hmm"] == NAMED.fingerprint()
    assert all(found.ok for found in verify(output))

    other = pretrain("process:mess3(0.15,0.6)", 3)
    assert other.returncode == 2
    assert "data.hmm" in other.stderr
    assert load_source(output / "process") == NAMED
    succeeded(pretrain("mess3(0.05, 0.85)", 3))  # another way to write the same process

    succeeded(
        program.run(
            "recipes/evaluate_model.py",
            *("--model", output, "--tasks", "optimum", "--num_sequences", 8, "--output_dir", tmp_path / "measured"),
        )
    )
    assert read_json(tmp_path / "measured" / "report.json")["optimum"]["fingerprint"] == NAMED.fingerprint()
