import os
import shutil
import signal
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from tiny_runs import trainer
from transformers import LlamaForCausalLM

from hmm_datasets.data.sequences import HMMSequences
from hmm_datasets.errors import InputError
from hmm_datasets.files import read_json, write_digests, write_json
from hmm_datasets.hmm import processes
from hmm_datasets.runtime.run_identity import check_identity
from hmm_datasets.training.checkpoints.inspection import verify_checkpoint
from hmm_datasets.training.model_configs import model_config
from hmm_datasets.training.run import train_and_save
from hmm_datasets.training.settings import PretrainSettings
from hmm_datasets.training.trainer import Pretrainer


def train(folder, model="1m", max_steps=6, **settings):
    rows = HMMSequences(processes.mess3(0.15, 0.6), 7)
    settings = {"save_steps": 1, "logging_steps": 100, "report_to": "none"} | settings
    args = PretrainSettings(
        str(folder), max_steps=max_steps, global_batch_size=4, per_device_train_batch_size=4, **settings
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(model_config(model, vocab_size=rows.vocab_size, max_length=8))
    training = Pretrainer(model=model, args=args, train_dataset=rows)
    return train_and_save(training, settings={}, data={"stream": 1})


def steps(folder):
    return sorted(int(path.name.split("-")[1]) for path in folder.glob("checkpoint-*"))


@pytest.mark.thorough
def test_the_newest_and_every_kth_checkpoint_are_kept_and_deletions_are_logged(tmp_path, capsys):
    train(tmp_path, save_total_limit=2, keep_every=3)
    assert steps(tmp_path) == [3, 5, 6]
    told = capsys.readouterr()
    lines = [line for line in (told.out + told.err).splitlines() if "deleted" in line]
    assert [line.split(":")[0].split()[-1] for line in lines] == ["checkpoint-1", "checkpoint-2", "checkpoint-4"]
    assert "the newest 2 and those of steps divisible by 3 are kept" in lines[0]


@pytest.mark.thorough
def test_checkpoints_at_log_spaced_steps_are_kept_beside_the_newest(tmp_path):
    train(tmp_path, max_steps=9, save_strategy="no", save_steps=500, saves_per_doubling=2, save_total_limit=1)
    assert steps(tmp_path) == [1, 2, 3, 4, 6, 8]
    train(tmp_path / "also", max_steps=6, save_steps=5, saves_per_doubling=1, save_total_limit=1)
    assert steps(tmp_path / "also") == [1, 2, 4, 6]
    with pytest.raises(InputError, match="saves_per_doubling is -1"):
        train(tmp_path / "wrong", saves_per_doubling=-1)


@pytest.mark.thorough
def test_without_a_limit_nothing_is_deleted(tmp_path):
    train(tmp_path, max_steps=3)
    assert steps(tmp_path) == [1, 2, 3]


@pytest.mark.thorough
def test_the_best_checkpoint_stays_and_is_known_after_a_resume(tmp_path):
    rows = HMMSequences(processes.mess3(0.15, 0.6), 7)
    held_out = HMMSequences(processes.mess3(0.15, 0.6), 7, first=1 << 63, num_sequences=8)
    args = PretrainSettings(
        str(tmp_path),
        max_steps=4,
        global_batch_size=4,
        per_device_train_batch_size=4,
        learning_rate=10.0,  # so large that every step increases the loss
        eval_strategy="steps",
        eval_steps=1,
        save_steps=1,
        save_total_limit=1,
        metric_for_best_model="loss",
        greater_is_better=False,
        report_to="none",
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(model_config("1m", vocab_size=rows.vocab_size, max_length=8))
    training = Pretrainer(model=model, args=args, train_dataset=rows, eval_dataset=held_out)
    train_and_save(training, settings={}, data={})
    best = training.state.best_global_step
    assert set(steps(tmp_path)) == {best, 4}
    state = read_json(tmp_path / "checkpoint-4" / "trainer_state.json")
    assert state["best_model_checkpoint"] == str(tmp_path / f"checkpoint-{best}")


@pytest.mark.thorough
def test_a_checkpoint_is_no_larger_than_weights_and_optimizer_states(tmp_path):
    """Float32 weights and Adam's two moments: 12 bytes per parameter, and 2%."""
    summary = train(tmp_path, model="3m", max_steps=1)
    report = verify_checkpoint(tmp_path / "checkpoint-1")
    assert report.ok
    assert report.total_bytes <= 1.02 * 12 * summary["parameters"]["total"]


@pytest.mark.thorough
def test_an_unfinished_checkpoint_of_a_killed_run_is_ignored_and_removed(tmp_path):
    train(tmp_path, max_steps=2)
    torn = tmp_path / ".unfinished" / "checkpoint-3"
    shutil.copytree(tmp_path / "checkpoint-2", torn)
    (torn / "optimizer.pt").unlink()
    assert train(tmp_path, max_steps=3)["resumed_from"] == "checkpoint-2"
    assert not (tmp_path / ".unfinished").exists()
    assert steps(tmp_path) == [1, 2, 3]


SUSPENDED = """
import os, signal, sys
from tiny_runs import trainer
from hmm_datasets.training.run import train_and_save
from hmm_datasets.training.trainer import Pretrainer

class Suspended(Pretrainer):
    def save_model_files(self, *args):
        super().save_model_files(*args)
        if self.state.global_step == 3:
            print(os.getpid(), flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)

run = trainer(sys.argv[1], kind=Suspended, save_strategy="steps", save_steps=1)
train_and_save(run, settings={}, data={"rows": 200})
"""


@pytest.mark.thorough
def test_a_run_that_another_process_has_finished_while_it_was_suspended_changes_nothing(
    tmp_path, warm_python, child_environment
):
    """It is in the middle of saving step 3: the Trainer writes a checkpoint file by file, without asking anybody."""
    folder, environment = tmp_path / "run", child_environment | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [warm_python, "-c", SUSPENDED, str(folder)]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        process = next(int(line) for line in child.stdout if line.strip().isdigit())
        (folder / ".lock").unlink()  # as another machine does after a minute of silence
        other = trainer(folder, save_strategy="steps", save_steps=1)
        assert train_and_save(other, settings={}, data={"rows": 200})["resumed_from"] == "checkpoint-2"
        before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
        os.kill(process, signal.SIGCONT)
        _, errors = child.communicate(timeout=500)
    assert child.returncode == 1
    assert f"process {process} ends, and writes nothing more" in errors
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()} == before
    assert not list(folder.glob(".*"))


@pytest.mark.thorough
def test_a_run_resumes_from_the_newest_good_checkpoint_behind_an_incomplete_one(tmp_path):
    train(tmp_path, max_steps=3)
    path = tmp_path / "checkpoint-3" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert train(tmp_path, max_steps=4)["resumed_from"] == "checkpoint-2"


@pytest.mark.thorough
def test_a_checkpoint_that_lacks_files_of_a_rank_is_incomplete(tmp_path):
    train(tmp_path, max_steps=2)
    write_json(
        tmp_path / "checkpoint-2" / "identity.json",
        read_json(tmp_path / "checkpoint-2" / "identity.json")
        | {"written_by": {"framework": "plain data parallelism", "processes": 2}},
    )
    problems = verify_checkpoint(tmp_path / "checkpoint-2").problems
    assert problems[1] == "rng_state_1.pth: missing, but 2 processes wrote it"
    assert train(tmp_path, max_steps=3)["resumed_from"] == "checkpoint-1"


@pytest.mark.thorough
def test_a_checkpoint_of_another_framework_is_refused(tmp_path):
    train(tmp_path, max_steps=1)
    path = tmp_path / "checkpoint-1" / "identity.json"
    write_json(path, read_json(path) | {"written_by": {"framework": "DeepSpeed ZeRO 2", "processes": 1}})
    write_digests(path.parent)
    expected = r"checkpoint-1: written under DeepSpeed ZeRO 2 by 1 processes, but this run is under plain data"
    with pytest.raises(InputError, match=expected):
        train(tmp_path, max_steps=2)


@pytest.mark.thorough
def test_weights_without_the_state_of_the_optimizer_are_not_resumed_from(tmp_path):
    train(tmp_path, max_steps=1, save_only_model=True)
    assert verify_checkpoint(tmp_path / "checkpoint-1").ok
    with pytest.raises(InputError, match="checkpoint-1: has weights but no optimizer state"):
        train(tmp_path, max_steps=2)


@pytest.mark.thorough
def test_resuming_at_step_a_million_computes_no_row_before_it(tmp_path):
    """The checkpoint of step 2 is changed to claim step 1,000,000; skipping row by row would take minutes."""
    train(tmp_path, max_steps=2)
    far = tmp_path / "checkpoint-1000000"
    shutil.copytree(tmp_path / "checkpoint-2", far)
    state = read_json(far / "trainer_state.json")
    state["stateful_callbacks"]["RunTotals"]["attributes"]["rows"] = 4_000_000
    tokens = 4_000_000 * 8
    write_json(far / "trainer_state.json", state | {"global_step": 1_000_000, "num_input_tokens_seen": tokens})
    write_digests(far)
    asked = []
    view = HMMSequences.__getitems__
    try:
        HMMSequences.__getitems__ = lambda self, indices: asked.extend(indices) or view(self, indices)
        summary = train(tmp_path, max_steps=1_000_002)
    finally:
        HMMSequences.__getitems__ = view
    assert summary["resumed_from"] == "checkpoint-1000000"
    assert asked[:8] == list(range(4_000_000, 4_000_008))
    assert summary["tokens"] == 1_000_002 * 4 * 8


def test_the_names_of_differences_between_identities(tmp_path):
    before = {"data": {"seed": 1, "hmm": "a"}, "settings": {"learning_rate": 0.1}}
    now = {"data": {"seed": 2, "hmm": "a"}, "settings": {"learning_rate": 0.2}}
    check_identity("x", before, before)
    with pytest.raises(InputError) as caught:
        check_identity("x", before, now)
    assert "data.seed was 1 and is 2; settings.learning_rate was 0.1 and is 0.2" in str(caught.value)
    assert "--allow_changed data.seed settings.learning_rate" in str(caught.value)
    with pytest.raises(InputError, match=r"data\.seed was 1"):
        check_identity("x", before, now, ["settings.learning_rate"])
    check_identity("x", before, now, ["settings.learning_rate", "data.seed"])


@pytest.mark.thorough
def test_a_resumed_run_of_another_shape_of_model_is_refused(tmp_path):
    train(tmp_path, max_steps=1)
    with pytest.raises(InputError, match=r"model\.hidden_size was 128 and is 256"):
        train(tmp_path, model="3m", max_steps=2)
    weights = load_file(tmp_path / "checkpoint-1" / "model.safetensors")
    assert weights["model.embed_tokens.weight"].shape[1] == 128, "nothing was overwritten"


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/h2oai/h2o-llmstudio/pull/298",
    "train models whose padding token is also the end token, whose embedding llama2 then ignores",
    "the embedding of the padding token is trained where the token occurs",
)
def test_a_beginning_token_that_also_pads_is_trained_after_a_reload(tmp_path):
    config = model_config("1m", vocab_size=4, max_length=8, bos_token_id=3, pad_token_id=3)
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    model = LlamaForCausalLM.from_pretrained(tmp_path / "model")
    assert model.get_input_embeddings().padding_idx == 3
    before = model.get_input_embeddings().weight.detach().clone()
    sizes = {"max_steps": 2, "global_batch_size": 4, "per_device_train_batch_size": 4}
    args = PretrainSettings(str(tmp_path / "later"), **sizes, weight_decay=0.0, report_to="none")
    training = Pretrainer(model=model, args=args, train_dataset=HMMSequences(processes.mess3(0.15, 0.6), 7))
    train_and_save(training, settings={}, data={"stream": 1})
    changed = (model.get_input_embeddings().weight != before).any(dim=1)
    assert changed.all(), changed
