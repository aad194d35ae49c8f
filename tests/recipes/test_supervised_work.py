"""A fit of an HMM and a tokenization under a supervisor, killed, suspended and terminated in the middle."""

import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from hmm_datasets.files import file_digest
from hmm_datasets.hmm import processes
from hmm_datasets.operations.run_state import RunObserver
from hmm_datasets.runtime.events import read_events
from hmm_datasets.text.tokenizers.bpe import train_bpe

pytestmark = pytest.mark.thorough

SUPERVISE = ("supervise", "--first_delay", "0.1", "--max_delay", "0.2", "--hang_after", "2", "--patience", "1", "--")
KILL, SUSPEND, TERMINATE = signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM
ALL_FAULTS = pytest.param((KILL, SUSPEND, TERMINATE), marks=pytest.mark.slow, id="all")
ENDED_BY = {signal.SIGKILL: "killed", signal.SIGSTOP: "hang", signal.SIGTERM: "stopped"}


def disturb(program, folder, words, faults):
    """Supervise a recipe, and hit its process once with each signal, in an epoch or batch after the first."""
    slowly = [program.python, str(Path(__file__).with_name("slow_work.py"))]
    command = [program.python, "-m", "hmm_datasets.cli", *SUPERVISE, *slowly]
    log = folder.with_suffix(".log")
    supervisor = subprocess.Popen(
        [*command, *map(str, words), "--output_dir", str(folder)],
        cwd=program.root,
        env=program.environment,
        stdout=log.open("w"),
        stderr=subprocess.STDOUT,
    )
    said = []
    try:
        hit = []
        for fault in faults:
            hit.append(_working(folder, hit, log).process)
            os.kill(hit[-1], fault)
            if fault == signal.SIGSTOP:
                said.append(_watched(folder, "hanging"))
        assert supervisor.wait(120) == 0, log.read_text()[-3000:]
    finally:
        supervisor.kill()
    events = [event for event in read_events(folder) if event["kind"] not in ("start", "restart")]
    return events, said


def _watched(folder, state):
    deadline = time.monotonic() + 500
    while (found := RunObserver(folder).look()).state != state:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return found.reason


def _working(folder, hit, log):
    """The heartbeat of a process that was not hit yet, once it has begun its second epoch or batch."""
    deadline = time.monotonic() + 500
    while True:
        found = RunObserver(folder).look() if folder.is_dir() else None
        for rank in () if found is None or found.diagnosis is None else found.diagnosis.ranks:
            beat = rank.beat
            is_new = beat.is_alive_here and beat.process not in hit
            if is_new and beat.phase == "working" and beat.step is not None and beat.step > 1:
                return beat
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.05)


@pytest.mark.parametrize("faults", [pytest.param((SUSPEND,), id="one"), ALL_FAULTS])
def test_a_disturbed_fit_ends_with_the_tables_of_an_undisturbed_one(faults, program, succeeded, tmp_path):
    np.save(tmp_path / "tokens.npy", processes.random(12, 30, alpha=0.3, seed=1).sample(4_000, 64))
    words = [
        "recipes/fit_hmm.py",
        "--corpus",
        tmp_path / "tokens.npy",
        "--num_states",
        "24",
        "--max_epochs",
        "10",
        "--tolerance",
        "0",
    ]
    words += ["--save_every", "1"]
    events, said = disturb(program, tmp_path / "disturbed", words, faults)
    assert [event["kind"] for event in events] == [*(ENDED_BY[fault] for fault in faults), "finished"]
    assert "is suspended (as by SIGSTOP), in phase working of step" in said[0]
    assert all("rank 0 on" in event["message"] for event in events if event["kind"] in ("killed", "hang"))
    succeeded(program.run(*words, "--output_dir", tmp_path / "alone"))
    one, two = (file_digest(tmp_path / name / "hmm" / "model.safetensors") for name in ("disturbed", "alone"))
    assert one == two


@pytest.mark.parametrize("faults", [pytest.param((KILL, TERMINATE), id="two"), ALL_FAULTS])
def test_a_disturbed_tokenization_ends_with_the_tokens_of_an_undisturbed_one(faults, program, succeeded, tmp_path):
    letters = np.random.default_rng(0).integers(97, 123, (2_000, 7), dtype=np.uint8)
    letters[:, -1] = ord(" ")
    documents = [letters[rows].tobytes() for rows in np.random.default_rng(1).integers(0, 2_000, (12_000, 250))]
    (tmp_path / "corpus.txt").write_bytes(b"\n<|endoftext|>\n".join(documents))
    texts = (document.decode() for document in documents[:500])
    train_bpe(texts, vocab_size=1000, show_progress=False).save_pretrained(tmp_path / "tokenizer")
    words = [
        "recipes/tokenize_corpus.py",
        "--corpus",
        tmp_path / "corpus.txt",
        "--conversations",
        "none",
        "--shard_tokens",
        "1000000",
    ]
    words += ["--tokenizer", tmp_path / "tokenizer"]
    events, said = disturb(program, tmp_path / "disturbed", words, faults)
    # A tokenization keeps its shards and need not be asked to stop.
    expected = ["hang" if fault == SUSPEND else "killed" for fault in faults]
    assert [event["kind"] for event in events] == [*expected, "finished"]
    assert all("is suspended (as by SIGSTOP), in phase working of step" in reason for reason in said)
    succeeded(program.run(*words, "--output_dir", tmp_path / "alone"))
    one, two = (
        {
            str(path.relative_to(tmp_path / name)): file_digest(path)
            for path in (tmp_path / name / "text").rglob("*.ds")
        }
        for name in ("disturbed", "alone")
    )
    assert len(two) > 5
    assert one == two


def test_two_supervised_ranks_continue_from_before_a_checkpoint_in_which_a_bit_has_flipped(program, tmp_path):
    run, ranks = tmp_path / "run", ["-m", "torch.distributed.run", "--nproc_per_node", "2"]
    words = ["recipes/pretrain.py", "--hmm", "process:mess3(x=0.05,a=0.85)", "--model", "1m", "--length", "16"]
    words += ["--save_steps", "2", "--global_batch_size", "4", "--per_device_train_batch_size", "2"]
    words += ["--output_dir", str(run), "--report_to", "none"]
    given = {"cwd": program.root, "env": program.environment, "capture_output": True, "text": True, "timeout": 200}
    for steps in ("4", "6"):
        command = [program.python, "-m", "hmm_datasets.cli", "supervise", "--", program.python, *ranks, *words]
        done = subprocess.run([*command, "--max_steps", steps], **given)
        assert done.returncode == 0, done.stderr[-3000:]
        if steps == "4":
            optimizer = run / "checkpoint-4" / "optimizer.pt"
            data = bytearray(optimizer.read_bytes())
            data[len(data) // 2] ^= 1
            optimizer.write_bytes(data)
    assert f"{run}: continues from {run / 'checkpoint-2'}\n" in done.stdout
    kinds = [event["kind"] for event in read_events(run)]
    assert kinds == ["start", "finished", "start", "torn", "finished"], "the ranks started themselves again"
