"""Fine-tuning on private conversations: nothing is sent anywhere, and which files contain them."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from hmm_datasets.text.tokenizers.bpe import train_bpe
from hmm_datasets.training.model_configs import model_config

SECRET = "my account is 4711-08-15"
PROGRAM = Path(__file__).with_name("offline_chat.py")
NOT_SET = ("HF_HUB_OFFLINE", "HF_HUB_DISABLE_TELEMETRY", "HF_UPDATE_DOWNLOAD_COUNTS", "DO_NOT_TRACK", "CI")


@pytest.fixture(scope="module")
def tuned(tmp_path_factory, child_environment):
    """A folder with a model, conversations, a run on them, and homes of libraries; and what the network was asked."""
    folder = tmp_path_factory.mktemp("private")
    tokenizer = train_bpe(["Who is number 7? It is number 12 of them all."] * 8, 280, show_progress=False)
    torch.manual_seed(0)
    config = model_config("1m", vocab_size=len(tokenizer), max_length=64, eos_token_id=tokenizer.eos_token_id)
    config.num_hidden_layers = 1
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    with open(folder / "tickets.csv", "w", newline="") as file:
        rows = ((n, r, x) for n in range(40) for r, x in (("customer", f"{n}: {SECRET}"), ("agent", f"Hello {n}.")))
        csv.writer(file).writerows([("ticket_id", "author", "body"), *rows])
    settings = {
        **{"model": str(folder / "model"), "conversations": str(folder / "tickets.csv")},
        **{"output_dir": str(folder / "run"), "max_steps": 2, "global_batch_size": 4, "max_length": 64},
        **{"per_device_train_batch_size": 4, "save_steps": 1, "use_cpu": True},
    }
    for name in ("home", "tmp"):
        (folder / name).mkdir()
    environment = {name: value for name, value in child_environment.items() if name not in NOT_SET}
    environment |= {"HF_HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp")}
    done = subprocess.run(
        [sys.executable, PROGRAM, json.dumps(settings)], env=environment, capture_output=True, text=True, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout.splitlines()[-1])


@pytest.mark.launch
@pytest.mark.outside(
    "https://github.com/huggingface/trl/pull/5758",
    "trainers of TRL report to huggingface.co when they are made",
    "those of this package do not, whatever the environment says",
)
@pytest.mark.outside(
    "https://github.com/axolotl-ai-cloud/axolotl/issues/1285",
    "train a model of this machine on a file of this machine while the Hub is down",
    "no connection is tried",
)
def test_nothing_is_asked_of_the_network(tuned):
    assert tuned[1] == []


@pytest.mark.launch
def test_the_conversations_are_in_their_file_in_answers_and_in_evaluations(tuned):
    folder, _ = tuned
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    with_secret = {name for name in files if SECRET.encode() in (folder / name).read_bytes()}
    assert with_secret == {"tickets.csv", "run/answers.jsonl", "run/evaluation/items/chat.jsonl"}
    assert not any(name.startswith(("home/", "tmp/")) for name in files)
