"""Commands that write: on a full disk, on a read-only one, and beside another that writes the same."""

import json
import re
import shutil
import subprocess

import numpy as np
import pytest
from tiny_chat import WORDS, message, save_tiny_chat

from hmm_datasets.files import digest_problems, write_jsonl
from hmm_datasets.hmm import processes

SIZE = "60m"
TINY = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
STEPS = ("--global_batch_size", 2, "--per_device_train_batch_size", 2, "--save_steps", 2, "--report_to", "none")
PRETRAIN = ("pretrain", "--hmm", "MADE/mess3", "--model", "MADE/tiny.json", "--length", 16, *STEPS, "--max_steps")
EVALUATE = ("evaluate", "--model", "MADE/run", "--targets", "MADE/mess3", "--num_sequences", 8, "--length", 16)
FIT = ("fit", "MADE/tokens.npy", "--num_states", 3, "--max_epochs", 2, "--output_dir")
PRETRAIN_TEXT = ("pretrain", "--tokens", "MADE/tokens/text", "--tokenizer", "MADE/tokens/tokenizer")
PRETRAIN_TEXT += ("--model", "MADE/text.json", "--length", 16, *STEPS, "--max_steps", 2)
MIDTRAIN = ("midtrain", "--model", "MADE/text", "--streams", "MADE/tokens/text", "--weights", 1, *STEPS)
TOKENIZE = ("tokenize", "--corpus", "MADE/corpus.txt", "--conversations", "none", "--vocab_size", 290, "--output_dir")
# The words of each command, and what it works on in place, on the disk. MADE is a folder on another disk.
WRITING = {
    "fit": (*FIT, "DISK/new"),
    "sample": ("sample", "MADE/mess3", "--num_sequences", 900, "--output", "DISK/new.npy"),
    "tokenize": (*TOKENIZE, "DISK/new"),
    "pretrain": (*PRETRAIN, 4, "--output_dir", "DISK/new"),
    "pretrain, going on": (*PRETRAIN, 6, "--output_dir", "DISK/run"),
    "midtrain": (*MIDTRAIN, "--max_steps", 2, "--output_dir", "DISK/new"),
    "sft": ("sft", "--model", "MADE/chat", "--conversations", "MADE/chat.jsonl", *STEPS, "--output_dir", "DISK/new"),
    "evaluate": (*EVALUATE, "--output_dir", "DISK/new"),
    "evaluate again": (*EVALUATE, "--output_dir", "DISK/evaluation"),
    "compare": ("compare", "MADE/evaluation", "MADE/another", "--output_dir", "DISK/new"),
    "configs": ("configs", "copy", "demo/pretrain_hmm.yaml", "DISK/new.yaml"),
    "benchmark": ("benchmark", "MADE/run", "--process", "mess3", "--num_sequences", 4, "--output_dir", "DISK/new"),
    "sweep": ("sweep", "DISK/sweep.yaml"),
    "supervise": ("supervise", "--output_dir", "DISK/new", "--", "true"),
    "convert": ("checkpoint", "convert", "MADE/run/checkpoint-2", "DISK/new", "--to", "hf"),
    "slim": ("checkpoint", "slim", "DISK/run"),
    "prune": ("checkpoint", "slim", "--keep", 1, "DISK/run"),
}
IN_PLACE = {"pretrain, going on": "run", "evaluate again": "evaluation", "sweep": "sweep.yaml"}
IN_PLACE |= {"slim": "run", "prune": "run"}
CASES = [(name, state) for name in WRITING for state in ("full", "read-only")]
CASES.remove(("supervise", "full"))  # it goes on, and writes its events once there is room


# What is made of others, when it is first needed.
MADE = {
    "run": (*PRETRAIN, 4, "--output_dir", "MADE/run"),
    "evaluation": (*EVALUATE, "--output_dir", "MADE/evaluation"),
    "another": (*EVALUATE, "--data_seed", 5, "--output_dir", "MADE/another"),
    "fit": (*FIT, "MADE/fit"),
    "tokens": (*TOKENIZE, "MADE/tokens"),
    "text": (*PRETRAIN_TEXT, "--output_dir", "MADE/text"),
}


class Commands:
    """Runs commands with MADE and DISK in their words; makes what they read first."""

    def __init__(self, program, succeeded, made):
        self.program, self.succeeded, self.made = program, succeeded, made

    def need(self, name):
        """The path of something below MADE, which is made if it is not there."""
        if name in MADE and not (self.made / name).exists():
            self.succeeded(self.run(MADE[name], None))
        return self.made / name

    def words(self, words, disk):
        """`-m hmm_datasets.cli ...`, for a disk."""
        for word in map(str, words[:-1]):
            if word.startswith("MADE/"):
                self.need(word.split("/")[1])
        paths = {"MADE": str(self.made), "DISK": str(disk)}
        return ["-m", "hmm_datasets.cli", *(re.sub("MADE|DISK", lambda found: paths[found[0]], str(w)) for w in words)]

    def run(self, words, disk):
        return self.program.run(*self.words(words, disk))

    def start(self, words, disk):
        program, streams = self.program, {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(
            [program.python, *self.words(words, disk)], cwd=program.root, env=program.environment, **streams
        )

    def put(self, name, disk):
        """Copy what a command works on in place to the disk."""
        kept = self.need(IN_PLACE.get(name, "nothing"))
        if kept.is_dir():
            shutil.copytree(kept, disk / kept.name)
        elif kept.exists():
            (disk / kept.name).write_text(kept.read_text().replace("DISK", str(disk)))


@pytest.fixture(scope="module")
def commands(program, succeeded, tmp_path_factory):
    made = tmp_path_factory.mktemp("made")
    processes.mess3(0.15, 0.6).save_pretrained(made / "mess3")
    np.save(made / "tokens.npy", processes.mess3(0.15, 0.6).sample(20, 16))
    (made / "corpus.txt").write_text("\n<|endoftext|>\n".join(f"The cat sat on mat {n}. It ran." for n in range(300)))
    (made / "tiny.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 4, **TINY}))
    (made / "text.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 290, **TINY}))
    settings = f"settings: {{corpus: {made}/tokens.npy, num_states: 3, max_epochs: 2}}"
    sweep = f"recipe: fit\noutput_dir: DISK/new\n{settings}\ngrid: {{seed: [0, 1]}}\n"
    (made / "sweep.yaml").write_text(sweep)
    save_tiny_chat(made / "chat")
    rows = [{"messages": [*message("user", "Say"), *message("assistant", word)]} for word in WORDS] * 2
    write_jsonl(made / "chat.jsonl", rows)
    return Commands(program, succeeded, made)


def contents(folder):
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "filler")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def refused(result, code=2):
    """The one line of an error."""
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr, result.stderr
    (line,) = [line for line in result.stderr.splitlines() if "error: " in line]
    return line


def quick(names, *cases):
    """Cases of which few are in every run of the tests: all commands write through the same functions."""
    marks = () if cases[0] in names else pytest.mark.slow
    return pytest.param(*cases, id=" ".join(cases), marks=marks)


@pytest.mark.parametrize(("name", "state"), [quick(("fit", "configs", "sweep"), *case) for case in CASES])
def test_a_command_that_cannot_write_says_so_in_one_line_and_changes_nothing(name, state, commands, small_disk):
    disk = small_disk(SIZE)
    (disk / "older").write_text("as it was")
    commands.put(name, disk)
    words = commands.words(WRITING[name], disk)
    if state == "full":
        (disk / "filler").write_bytes(bytes(shutil.disk_usage(disk).free))
    else:
        small_disk(SIZE, read_only=True)
    before = contents(disk)
    line = refused(commands.program.run(*words))
    print(line)
    assert str(disk) in line
    assert ("no room left on the disk" if state == "full" else "cannot be used (Read-only file system)") in line
    assert contents(disk) == before


@pytest.mark.thorough
@pytest.mark.parametrize("name", [quick(("fit",), name) for name in WRITING])
def test_of_two_that_write_at_once_one_is_refused_or_the_last_one_stays_whole(name, commands, tmp_path):
    for folder in ("alone", "together"):
        (tmp_path / folder).mkdir()
        commands.put(name, tmp_path / folder)
    commands.succeeded(commands.run(WRITING[name], tmp_path / "alone"))
    disk = tmp_path / "together"
    both = [commands.start(WRITING[name], disk) for _ in range(2)]
    ended = [subprocess.CompletedProcess(one.args, one.wait(120), *one.communicate()) for one in both]
    codes = sorted(one.returncode for one in ended)
    print(name, codes, *(refused(one) for one in ended if one.returncode))
    assert codes in ([0, 0], [0, 2])
    # What is set aside is in a folder that is named by the time.
    pattern, folders = r"\d{4}(-\d\d){2}_\d\d(-\d\d){2}", (tmp_path / "alone", disk)
    names = [{re.sub(pattern, "TIME", one) for one in contents(folder)} for folder in folders]
    assert names[0] == names[1]
    for digests in (path for path in disk.rglob("digests.json") if "set_aside" not in path.parts):
        assert digest_problems(digests.parent) == []
