"""`hmm-datasets checkpoint`: what a run has, and moving it aside and back."""

import itertools
import json
import os
import re
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

from hmm_datasets.cli import main
from hmm_datasets.errors import InputError
from hmm_datasets.files import append_jsonl, read_json, read_jsonl, write_digests, write_json
from hmm_datasets.operations.checkpoints.slim import slim
from hmm_datasets.runtime.lock import exclusive_lock

pytestmark = pytest.mark.usefixtures("no_waiting")


@pytest.fixture
def no_waiting(monkeypatch):
    monkeypatch.setattr("hmm_datasets.runtime.lock.PATIENCE", 0.0)


def command(*words, code=0):
    assert main(["checkpoint", *map(str, words)]) == code


def failing(capsys, *words) -> str:
    with pytest.raises(SystemExit) as caught:
        main(["checkpoint", *map(str, words)])
    assert caught.value.code == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("error: ")
    assert "\n" not in error
    return error


def steps(folder):
    return sorted(int(path.name.split("-")[1]) for path in folder.glob("checkpoint-*"))


def content(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.thorough
def test_list_says_sizes_writer_tokens_loss_and_what_is_wrong(run, capsys):
    os.truncate(run / "checkpoint-4" / "model.safetensors", 90)
    append_jsonl(run / "history.jsonl", {"step": 6, "eval_loss": 1.5})
    command("list", run)
    out = capsys.readouterr().out
    lines = {line.split()[0]: line for line in out.splitlines()[2:5]}
    assert list(lines) == ["6", "4", "2"], "newest first"
    loss = next(row["loss"] for row in read_jsonl(run / "history.jsonl") if row["step"] == 2)
    assert f"{loss:.4f} train" in lines["2"]
    assert "1.5000 held out" in lines["6"]
    assert "plain data parallelism" in lines["6"]
    assert lines["4"].endswith("incomplete")
    assert lines["6"].endswith("complete")
    assert "checkpoint-4: model.safetensors: not a whole safetensors file" in out
    command("list", run, "--json")
    newest, _, oldest = json.loads(capsys.readouterr().out)
    assert newest["tokens"] == 6 * 8 * 16
    assert newest["weight_bytes"] == 67_200
    assert newest["bytes"] > 67_200
    assert (newest["framework"], newest["loss"]) == ("plain data parallelism", 1.5)
    assert oldest["can_resume"]
    # Of a run on rewards the held-out loss is zero whatever it has learned.
    append_jsonl(run / "history.jsonl", {"step": 6, "eval_loss": 0.0, "eval_reward": 0.25})
    command("list", run)
    assert "0.2500 reward, held out" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "words"), [("list", []), ("slim", []), ("slim", ["--keep", 1])])
def test_folders_without_a_run_are_refused_by_name(name, words, tmp_path, capsys):
    assert f"{tmp_path / 'nowhere'}: no such folder" in failing(capsys, name, tmp_path / "nowhere", *words)
    assert str(tmp_path) in failing(capsys, name, tmp_path, *words)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "model.bin").write_text("x")
    assert str(foreign) in failing(capsys, name, foreign, *words)


@pytest.mark.thorough
def test_pruned_checkpoints_are_listed_and_brought_back(run, go_on, capsys):
    before = content(run)
    command("slim", run, "--keep", 1)
    assert steps(run) == [6]
    assert f"{run / 'checkpoint-4'}: moved aside" in capsys.readouterr().out
    command("list", run)
    out = capsys.readouterr().out
    assert "set aside" in out
    assert "checkpoint-2, checkpoint-4" in out
    (aside,) = (run / "set_aside").iterdir()
    assert steps(aside) == [2, 4]
    command("restore", run)
    assert content(run) == before
    assert not (run / "set_aside").exists()
    assert go_on(run)["resumed_from"] == "checkpoint-6"


@pytest.mark.thorough
def test_slim_keeps_what_it_is_asked_to_and_what_the_run_resumes_from(run, capsys):
    before = content(run)
    command("slim", run, "--keep", 1, "--every", 4)
    assert steps(run) == [4, 6]
    assert not (run / "checkpoint-4" / "optimizer.pt").exists()
    command("restore", run)
    assert content(run) == before, "the pruned and the slimmed ones at once"
    state = read_json(run / "checkpoint-6" / "trainer_state.json")
    write_json(run / "checkpoint-6" / "trainer_state.json", state | {"best_global_step": 2})
    write_digests(run / "checkpoint-6")
    command("slim", run, "--keep", 1)
    assert steps(run) == [2, 6], "the best of the run by its metric_for_best_model"
    command("restore", run)
    write_json(run / "checkpoint-6" / "trainer_state.json", state)
    write_digests(run / "checkpoint-6")
    slim([run / "checkpoint-6"])
    os.truncate(run / "checkpoint-4" / "optimizer.pt", 90)
    command("slim", run, "--keep", 1)
    assert steps(run) == [2, 6], "checkpoint-6 has weights only, and checkpoint-4 is torn"
    assert (run / "checkpoint-2" / "optimizer.pt").exists()
    assert "--keep is 0; expected 1 or more" in failing(capsys, "slim", run, "--keep", 0)
    assert "--every is 4, but has no effect without keep" in failing(capsys, "slim", run, "--every", 4)
    for step in (2, 6):
        (run / f"checkpoint-{step}" / "trainer_state.json").unlink()
    assert "has no complete checkpoint-N to keep" in failing(capsys, "slim", run, "--keep", 1)


def test_a_folder_that_was_set_aside_may_be_deleted_by_hand(run, capsys):
    command("slim", run, "--keep", 2)
    (aside,) = (run / "set_aside").iterdir()
    assert f"to free the space, delete {aside}" in capsys.readouterr().out
    shutil.rmtree(aside)
    command("list", run)
    assert "set aside" not in capsys.readouterr().out
    assert "nothing is set aside" in failing(capsys, "restore", run)


def test_a_run_that_is_running_is_not_touched(run, capsys):
    code = (
        "import sys, time; from hmm_datasets.runtime.lock import exclusive_lock\n"
        "with exclusive_lock(sys.argv[1]): print('locked', flush=True); time.sleep(60)"
    )
    before = content(run)
    with subprocess.Popen([sys.executable, "-c", code, str(run)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "locked\n"
        for words in (["slim", run, "--keep", 1], ["slim", run]):
            assert f"process {other.pid} on " in failing(capsys, *words)
        other.kill()
    assert {path: data for path, data in content(run).items() if path.name != ".lock"} == before
    with exclusive_lock(run):
        pass


def test_what_exists_again_is_not_overwritten_by_bringing_back(run, capsys):
    command("slim", run, "--keep", 1)
    shutil.copytree(run / "checkpoint-6", run / "checkpoint-2")
    assert "checkpoint-2: exists" in failing(capsys, "restore", run)
    (aside,) = (run / "set_aside").iterdir()
    assert steps(aside) == [2, 4]
    write_json(aside / "set_aside.json", {})
    assert "set_aside.json: object missing required field reason; what" in failing(capsys, "restore", run)


@pytest.mark.thorough
def test_what_was_set_aside_names_nothing_outside_the_run(run, capsys):
    command("slim", run, "--keep", 1)
    (aside,) = (run / "set_aside").iterdir()
    record, victim = read_json(aside / "set_aside.json"), run.parent / "victim"
    victim.mkdir()
    for kind, name in itertools.product(("names", "replaced"), ("../../../victim", str(victim), "out/victim")):
        (aside / "out").unlink(missing_ok=True)
        (aside / "out").symlink_to(run.parent)
        write_json(aside / "set_aside.json", record | {"names": [name], "replaced": [name] * (kind == "replaced")})
        for words in (["restore", run], ["list", run]):
            assert f"{aside / 'set_aside.json'}: names '{name}'" in failing(capsys, *words)
    assert victim.is_dir()


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/NVIDIA-NeMo/Speech/issues/9967",
    "to keep optimizer states in the last N checkpoints only, which are six times as large as the others",
    "`checkpoint slim RUN --keep_newest N` removes them from the others; `restore` brings them back",
)
def test_slim_leaves_a_model_and_restore_brings_resuming_back(run, go_on, capsys):
    before = content(run)
    command("slim", run)
    out = capsys.readouterr().out
    sizes = {path.parts[0]: 0 for path in before}
    for path, data in before.items():
        sizes[path.parts[0]] += len(data)
    assert f"checkpoint-4: {sizes['checkpoint-4']:,} bytes before, 7" in out
    assert "checkpoint-6: " in out
    assert "(as it was)" in out
    assert not (run / "checkpoint-4" / "optimizer.pt").exists()
    assert "written_by" not in read_json(run / "checkpoint-4" / "identity.json")
    assert main(["verify", str(run)]) == 0
    command("list", run)
    assert "weights only" in capsys.readouterr().out
    from transformers import LlamaForCausalLM

    LlamaForCausalLM.from_pretrained(run / "checkpoint-4")
    command("restore", run)
    assert content(run) == before
    command("slim", run, "--keep_newest", 0)
    shutil.rmtree(run / "set_aside")
    with pytest.raises(InputError, match="has weights but no optimizer state"):
        go_on(run)


def test_what_slim_says_brings_everything_back(run, capsys):
    """It made an archive for each checkpoint, and named none of them."""
    before = content(run)
    command("slim", run, "--keep_newest", 0)
    said = re.search(r"bring back: hmm-datasets checkpoint (restore .*?);", capsys.readouterr().out)[1]
    assert said == f"restore {run}"
    command(*said.split())
    assert content(run) == before


def test_verify_reads_every_file(run, capsys):
    assert main(["verify", str(run)]) == 0
    assert f"resume from {run / 'checkpoint-6'}" in capsys.readouterr().out
    file = run / "checkpoint-6" / "optimizer.pt"
    data = bytearray(file.read_bytes())
    data[1000] ^= 1
    file.write_bytes(data)
    assert main(["verify", str(run)]) == 1
    out = capsys.readouterr().out
    assert f"BAD   {file}: SHA-256 is " in out
    assert f"resume from {run / 'checkpoint-4'}" in out
    assert main(["verify", str(run / "checkpoint-4")]) == 0
    assert main(["verify", str(run / "checkpoint-6")]) == 1


@pytest.mark.outside(
    "https://github.com/huggingface/transformers/issues/31283",
    "a function that checks whether a checkpoint is valid",
    "`verify` lists what is wrong and names the checkpoint that a run resumes from",
)
def test_verify_names_the_checkpoint_to_resume_from(tmp_path, capsys):
    for step in (1, 2):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        save_file({"a": torch.zeros(9)}, folder / "model.safetensors")
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    os.truncate(tmp_path / "checkpoint-2" / "model.safetensors", 90)
    assert main(["verify", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert f"BAD   {tmp_path / 'checkpoint-2' / 'model.safetensors'}: not a whole safetensors file" in out
    assert f"resume from {tmp_path / 'checkpoint-1'}" in out
    (tmp_path / "checkpoint-1" / "trainer_state.json").unlink()
    assert main(["verify", str(tmp_path)]) == 1
    assert "no checkpoint to resume from" in capsys.readouterr().out
