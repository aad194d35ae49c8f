"""The tokenizing recipes as programs that are started, killed and started again."""

import hashlib
import importlib
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from hmm_datasets.errors import InputError
from hmm_datasets.text.stream import TokenStream

pytestmark = pytest.mark.thorough

SAMPLES = ("--corpus", "tinystories-sample", "--conversations", "instructions-sample")
SMALL = (*SAMPLES, "--vocab_size", 600, "--shard_tokens", 10_000)


def digests(folder) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "run.json")
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def tokens(program, succeeded, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokens") / "a"
    succeeded(program.run("recipes/tokenize_corpus.py", "--output_dir", folder, *SMALL))
    return folder


def test_text_and_conversations_are_token_streams_with_their_bytes(tokens):
    for name in ("text/train", "text/test", "chat/train", "chat/test"):
        stream = TokenStream(tokens / name)
        stream.verify()
        assert stream.index.num_bytes > stream.num_tokens
        assert all(shard.num_tokens >= 10_000 for shard in stream.index.shards[:-1])
    assert len(TokenStream(tokens / "text" / "train").index.shards) > 30


@pytest.mark.parametrize("stream", ["text/train", pytest.param("chat/train", marks=pytest.mark.slow)])
def test_a_recipe_that_was_killed_ends_with_the_same_bytes(program, succeeded, tokens, tmp_path, stream):
    folder = tmp_path / "a"
    command = ["recipes/tokenize_corpus.py", "--output_dir", folder, *SMALL]
    process = subprocess.Popen(
        [sys.executable, *map(str, command)],
        cwd=program.root,
        env=program.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 500
    while not (folder / f"{stream}.unfinished" / "00001.ds").exists() and time.monotonic() < deadline:
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (folder / stream).exists()
    succeeded(program.run(*command))
    assert digests(folder) == digests(tokens)


def test_datatroves_pipeline_gives_the_same_tokens_as_ours(program, succeeded, tokens, tmp_path):
    command = [
        "recipes/tokenize_with_datatrove.py",
        "--tokenizer",
        tokens / "tokenizer",
        "--output_dir",
        tmp_path / "a",
    ]
    result = succeeded(program.run(*command, "--executor", "local", "--tasks", 1))
    for split in ("train", "test"):
        one, other = TokenStream(tmp_path / "a" / split), TokenStream(tokens / "text" / split)
        assert f"{split}: {one.num_documents:,} documents" in result.stdout
        assert np.array_equal(one.read(0, one.num_tokens), other.read(0, other.num_tokens))
        documents = np.arange(one.num_documents)
        assert np.array_equal(one.bounds(documents)[1], other.bounds(documents)[1])
        assert one.index.num_bytes == other.index.num_bytes
        assert one.index.tokenizer_hash == other.index.tokenizer_hash


def test_a_folder_of_another_run_is_refused(program, tokens):
    before = digests(tokens)
    result = program.run("recipes/tokenize_corpus.py", "--output_dir", tokens, *SAMPLES, "--vocab_size", 600)
    assert result.returncode == 2
    assert "data.shard_tokens was 10000 and is 100000000" in result.stderr
    assert digests(tokens) == before


@pytest.fixture
def recipe(program, monkeypatch):
    monkeypatch.syspath_prepend(program.root / "recipes")
    return importlib.import_module("tokenize_with_datatrove")


@pytest.mark.outside(
    "https://github.com/NVIDIA/srt-slurm/pull/29",
    "compute nodes whose jobs need another virtual environment than the login node",
    "env_command of tokenize --executor slurm runs on the node before Python",
)
def test_the_slurm_executor_gets_what_it_needs(recipe, tmp_path):
    settings = recipe.ClusterSettings(
        **{"output_dir": str(tmp_path), "tokenizer": "t", "executor": "slurm", "tasks": 7, "workers": 3},
        **{"partition": "cpu", "time": "1:00:00", "env_command": "source .venv-compute/bin/activate"},
    )
    executor = recipe.executor(settings, [], settings.tasks, str(tmp_path / "logs"))
    arguments = executor.get_sbatch_args()
    assert (arguments["partition"], arguments["time"]) == ("cpu", "1:00:00")
    assert (arguments["cpus-per-task"], arguments["mem-per-cpu"]) == (1, "2G")
    assert (executor.world_size, executor.workers) == (7, 3)
    assert "\nsource .venv-compute/bin/activate\nset -xe" in executor.get_launch_file_contents(arguments, "run")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"executor": "pbs"}, "executor is 'pbs', expected local, slurm or ray"),
        ({"executor": "slurm", "time": "1:00:00"}, "needs partition and time"),
        ({"tasks": 0}, "tasks is 0"),
    ],
)
def test_settings_that_no_executor_takes_are_refused(recipe, changes, told):
    with pytest.raises(InputError, match=told):
        recipe.ClusterSettings(output_dir="a", tokenizer="t", **changes)
