"""The fitting recipe under the launcher gives the same HMM on any number of processes."""

import json

import pytest

from hmm_datasets.hmm.model import HMM

pytestmark = pytest.mark.launch

RECIPE = ("recipes/fit_hmm.py", "--num_states", 6, "--length", 16, "--vocabulary_size", 60, "--batch_size", 40)


def test_two_processes_fit_the_same_hmm_as_one_and_resume_from_its_checkpoint(program, succeeded, tmp_path):
    settings = (*RECIPE, "--update_every", 2, "--init", "contexts", "--num_restarts", 2, "--restart_epochs", 2)
    succeeded(program.launch("cpu1", *settings, "--output_dir", tmp_path / "one", "--max_epochs", 5))
    succeeded(program.launch("cpu1", *settings, "--output_dir", tmp_path / "two", "--max_epochs", 3))
    succeeded(program.launch("cpu2", *settings, "--output_dir", tmp_path / "two", "--max_epochs", 5))
    one, two = (HMM.from_pretrained(tmp_path / name / "hmm") for name in ("one", "two"))
    assert one == two
    records = [json.loads((tmp_path / name / "run.json").read_text()) for name in ("one", "two")]
    assert [record["world_size"] for record in records] == [1, 2]
    assert records[0]["settings"]["step_exponent"] == 0.6
    summaries = [json.loads((tmp_path / name / "summary.json").read_text()) for name in ("one", "two")]
    same = ("epochs", "best_epoch", "train_log_likelihood", "test_log_likelihood", "entropy_rate")
    assert [summaries[0][key] for key in same] == [summaries[1][key] for key in same]


def test_bad_settings_give_an_error_of_one_line(program, tmp_path):
    result = program.run(*RECIPE, "--output_dir", tmp_path / "run", "--step_exponent", 0.2)
    assert result.returncode == 2
    assert result.stderr.strip().splitlines()[-1] == (
        "error: step_exponent is 0.2; expected more than 0.5 and at most 1"
    )
    assert not (tmp_path / "run").exists()
