"""The fitting recipe under the launcher gives the same HMM on any number of processes."""

import json
import shlex
import subprocess

import pytest

from hmm_datasets.hmm.model import HMM

pytestmark = pytest.mark.thorough

RECIPE = ("recipes/fit_hmm.py", "--num_states", 6, "--length", 16, "--vocabulary_size", 60, "--batch_size", 40)


def test_two_processes_that_are_stopped_are_continued_by_one_to_the_same_hmm(program, succeeded, tmp_path):
    settings = (*RECIPE, "--update_every", 2, "--num_restarts", 2, "--restart_epochs", 2)
    settings = (*settings, "--tolerance", 0, "--patience", 10**6)
    # The signal reaches one of the two ranks, and both stop.
    history = shlex.quote(str(tmp_path / "two" / "fit" / "history.jsonl"))
    wait = f"until [ $(grep -c . {history}) -gt 6 ] 2> /dev/null; do sleep 0.05; done"
    killer = subprocess.Popen(f"{wait}; pkill -TERM -n -f {shlex.quote(str(tmp_path / 'two'))}", shell=True)
    stopped = succeeded(program.launch("cpu2", *settings, "--output_dir", tmp_path / "two", "--max_epochs", 10**6))
    killer.wait(timeout=500)
    assert f"{tmp_path / 'two'}: saved and stopped (" in stopped.stdout
    assert not (tmp_path / "two" / "summary.json").exists()
    epochs = 2 + max(int(path.name.removeprefix("epoch-")) for path in (tmp_path / "two" / "fit").glob("epoch-*"))
    succeeded(program.launch("cpu1", *settings, "--output_dir", tmp_path / "two", "--max_epochs", epochs))
    succeeded(program.launch("cpu1", *settings, "--output_dir", tmp_path / "one", "--max_epochs", epochs))
    assert (tmp_path / "two" / "plots" / "log_likelihood.png").exists()
    one, two = (HMM.from_pretrained(tmp_path / name / "hmm") for name in ("one", "two"))
    assert one == two
    records = [json.loads((tmp_path / name / "run.json").read_text()) for name in ("one", "two")]
    assert [record["world_size"] for record in records] == [1, 1]
    assert records[0]["settings"]["update_rule"] == "stochastic"
    summaries = [json.loads((tmp_path / name / "summary.json").read_text()) for name in ("one", "two")]
    same = ("epochs", "best_epoch", "train_log_likelihood", "test_log_likelihood", "entropy_rate")
    assert [summaries[0][key] for key in same] == [summaries[1][key] for key in same]


def test_bad_settings_give_an_error_of_one_line(program, tmp_path):
    result = program.run(*RECIPE, "--output_dir", tmp_path / "run", "--tolerance", -1)
    assert result.returncode == 2
    assert result.stderr.strip().splitlines()[-1] == ("error: --tolerance is -1; expected 0 or more")
    assert not (tmp_path / "run").exists()
