"""Fine-tuning on private conversations: nothing is sent anywhere, and which files contain them."""

import contextlib
import csv
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from hmm_datasets.text.tokenizers.bpe import train_bpe
from hmm_datasets.training.model_configs import model_config

SECRET = "my account is 4711-08-15"
ANSWER = "It is in the nest. We wish you a quiet day!"
TUNING = (
    *("--use_peft", "--merge_adapter", "--learning_rate", "2e-3", "--max_length", "64", "--max_steps", "8"),
    *("--global_batch_size", "4", "--per_device_train_batch_size", "4", "--activation_checkpointing", "false"),
)
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
        **{"use_peft": True, "merge_adapter": True},
    }
    for name in ("home", "tmp"):
        (folder / name).mkdir()
    pytest.importorskip("peft")
    environment = {name: value for name, value in child_environment.items() if name not in NOT_SET}
    environment |= {"HF_HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp")}
    done = subprocess.run(
        [sys.executable, PROGRAM, json.dumps(settings)], env=environment, capture_output=True, text=True, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout.splitlines()[-1])


@pytest.mark.thorough
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
@pytest.mark.outside(
    "https://github.com/huggingface/peft/issues/1452",
    "save the adapter of a model of this machine without asking the Hub for its configuration",
    "no connection is tried",
)
def test_nothing_is_asked_of_the_network(tuned):
    assert tuned[1] == []


@pytest.mark.thorough
def test_the_conversations_are_in_their_file_in_answers_and_in_evaluations(tuned):
    folder, _ = tuned
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    with_secret = {name for name in files if SECRET.encode() in (folder / name).read_bytes()}
    assert with_secret == {"tickets.csv", "run/answers.jsonl", "run/evaluation/items/chat.jsonl"}
    assert not any(name.startswith(("home/", "tmp/")) for name in files)


@pytest.fixture(scope="module")
def walked(smollm2, tmp_path_factory, child_environment):
    """The guide on SmolLM2 and 60 tickets that agents end in the same words: the folder, and what was printed."""
    pytest.importorskip("peft")
    folder = tmp_path_factory.mktemp("walk")
    (folder / "model.gguf").symlink_to(smollm2)
    with open(folder / "tickets.csv", "w", newline="") as file:
        rows = ((n, r, x) for n in range(60) for r, x in (("customer", f"Where is order {n}?"), ("agent", ANSWER)))
        csv.writer(file).writerows([("ticket_id", "author", "body"), *rows])
    chat = ["--tasks", "chat", "--chat_data", "tickets.csv", "--chat_max_new_tokens", "24"]
    commands = (
        ["evaluate", "model.gguf", *chat, "--output_dir", "before"],
        ["sft", "--model", "model.gguf", "--conversations", "tickets.csv", "--output_dir", "run", *TUNING],
        ["evaluate", "run", *chat],
        ["compare", "before", "run"],
        ["chat", "run", "--temperature", "0", "--max_new_tokens", "24", "--prompt", "Where is order 77?"],
    )
    printed = [
        subprocess.run(
            [sys.executable, "-m", "hmm_datasets.cli", *command],
            **{"cwd": folder, "env": child_environment, "stdout": subprocess.PIPE, "text": True, "check": True},
        ).stdout
        for command in commands
    ]
    return folder, printed


@pytest.mark.slow
@pytest.mark.thorough
def test_after_the_guide_the_model_answers_as_the_agents_do(walked):
    folder, printed = walked
    before, after = (
        json.loads((folder / path / "report.json").read_text())["chat"] for path in ("before", "run/evaluation")
    )
    assert after["conversations"] == before["conversations"] > 1
    assert after["loss_high"] < 0.5 < before["loss_low"]
    assert after["shares"]["right"]["count"] == after["questions"]
    assert printed[-1].strip() == ANSWER
    assert "\nlicense: apache-2.0\n" in (folder / "run" / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.thorough
def test_transformers_serves_the_merged_model(walked, child_environment):
    pytest.importorskip("fastapi")
    folder, _ = walked
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = child_environment | {"NO_PROXY": "localhost", "HF_HUB_DISABLE_UPDATE_CHECK": "1"}
    server = subprocess.Popen(
        [Path(sys.executable).with_name("transformers"), "serve", "run/merged", "--port", str(port)],
        **{"cwd": folder, "env": environment, "stdout": subprocess.DEVNULL},
    )
    try:
        url = f"http://localhost:{port}/v1/chat/completions"
        question = {"model": "run/merged", "messages": [{"role": "user", "content": "Where is order 77?"}]}
        content = json.dumps(question | {"max_tokens": 24, "temperature": 0}).encode()
        request = urllib.request.Request(url, content, {"Content-Type": "application/json"})
        answer, last = None, time.monotonic() + 500
        while answer is None and time.monotonic() < last and server.poll() is None:
            with contextlib.suppress(urllib.error.URLError, ConnectionError), urllib.request.urlopen(request) as reply:
                answer = json.load(reply)
            time.sleep(0.5)
        assert answer is not None
        assert answer["choices"][0]["message"]["content"].strip() == ANSWER
    finally:
        server.terminate()
        server.wait()
