# What works, and what refuses in one line, without the names that only POSIX systems have

import json
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import contextlib, io, json, sys
sys.path.insert(0, {tests!r})
import as_on_windows
as_on_windows.install()

import numpy as np
from hmm_datasets import HMM, fit_hmm, processes
from hmm_datasets.cli import main
from hmm_datasets.hmm.fitting.settings import FitSettings
from hmm_datasets.files import append_jsonl, atomic_folder, overwrite, read_log, write_json, read_json

def command(*words):
    sys.argv = ["hmm-datasets", *words]
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        try:
            code = main()
        except SystemExit as end:
            code = end.code
    return [code or 0, errors.getvalue().strip().splitlines()[-1:] if code else []]

found = {{}}
found["sample"] = command("sample", "mess3", "--num_sequences", "6", "--length", "8", "--output", "a.npy")
hmm = processes.mess3()
for _ in range(2):
    hmm.save_pretrained("hmm")
found["same"] = HMM.from_pretrained("hmm").fingerprint() == hmm.fingerprint()
found["drawn"] = bool((np.load("a.npy") == hmm.sample(6, 8)).all())
settings = FitSettings(num_states=2, max_epochs=2, save_every=1)
fit = fit_hmm(hmm.sample(50, 10).astype(int), settings, checkpoint_dir="fit", show_progress=False)
found["fit"] = fit.hmm.num_states
for number in range(3):
    append_jsonl("log.jsonl", {{"n": number}})
    overwrite(__import__("pathlib").Path("beat.json"), f'{{{{"n": {{number}}}}}}'.encode().ljust(64))
found["log"] = [row["n"] for row in read_log("log.jsonl")] + [read_json("beat.json")["n"]]
found["describe"] = command("describe", "hmm")
found["pretrain"] = command(
    "pretrain", "--hmm", "mess3", "--length", "8", "--output_dir", "run", "--max_steps", "2", "--model", "1m",
    "--per_device_train_batch_size", "2", "--report_to", "none",
)
found["supervise"] = command("supervise", "--output_dir", "run", "--", "true")
found["preflight"] = command("preflight", ".")
found["launch"] = command("pretrain", "--launch", "cpu2", "--hmm", "mess3", "--length", "8", "--output_dir", "run2")
print(json.dumps(found))
"""


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/crewAIInc/crewAI/issues/4062",
    "start a program on Windows that handles SIGHUP",
    "signals that the system lacks are left out",
)
@pytest.mark.outside(
    "https://github.com/datafolklabs/cement/issues/346",
    "import a package on Windows that names SIGHUP at its top",
    "signals that the system lacks are left out",
)
def test_without_posix_one_process_works_and_what_needs_several_refuses_in_one_line(tmp_path):
    code = CODE.format(tests=str(Path(__file__).parent))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    end = "needs signals and sessions of processes, which Windows does not have; use WSL"
    assert found == {
        "sample": [0, []],
        "same": True,
        "drawn": True,
        "fit": 2,
        "log": [0, 1, 2, 2],
        "describe": [0, []],
        "pretrain": [0, []],
        "supervise": [2, [f"error: supervise: {end}"]],
        "preflight": [2, [f"error: preflight: {end}"]],
        "launch": [2, [f"error: --launch (without it a recipe runs in one process): {end}"]],
    }
    assert (tmp_path / "run" / "summary.json").is_file()
