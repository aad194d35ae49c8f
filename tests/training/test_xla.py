"""torch_xla: what its devices compute, where it is installed, and what is refused before anything is written.

Runs are on its device CPU, which can have several chips; they are left out without torch_xla, which needs its version
of torch (`pip install torch_xla==2.9.0 torch==2.9.0`).
"""

import os
import shutil
import subprocess
import sys

import pytest

from hmm_datasets.errors import InputError
from hmm_datasets.files import read_json, read_jsonl
from hmm_datasets.operations import launching
from hmm_datasets.training import precision, settings
from hmm_datasets.training.settings import PretrainSettings

RUN = ("--hmm", "mess3", "--model", "d1", "--length", 15, "--global_batch_size", 16, "--save_steps", 3)
RUN += ("--per_device_train_batch_size", 8, "--num_test_sequences", 20, "--logging_steps", 1, "--max_steps", 6)


@pytest.fixture
def on_tpu(monkeypatch):
    """Settings are made as on a host with torch_xla and four chips."""
    for module in (settings, precision):
        monkeypatch.setattr(module, "xla_device", lambda: "TPU")
    monkeypatch.setattr(settings, "use_all_chips", lambda: 4)


def chosen(folder, **given):
    return PretrainSettings(
        str(folder / "run"), max_steps=1, **{"global_batch_size": 8, "per_device_train_batch_size": 8} | given
    )


@pytest.mark.outside(
    "https://github.com/huggingface/accelerate/issues/185",
    "bfloat16 on a TPU, where XLA_USE_BF16 made losses fall much slower, and fp16 was an error",
    "weights are kept in float32, which a TPU multiplies in bfloat16; bf16 and fp16 are refused in one line",
)
@pytest.mark.outside(
    "https://github.com/pytorch/xla/issues/7177",
    "attention under torch_xla's autocast, which ended in an error about dtypes",
    "bf16 is refused on XLA before anything is written, and the line says why",
)
@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_low_precision_is_refused_where_it_would_reach_the_weights(on_tpu, tmp_path, name):
    with pytest.raises(InputError, match=f"{name} is set by {name}, but torch_xla has no autocast for attention"):
        chosen(tmp_path, **{name: True})
    default = chosen(tmp_path)
    assert (default.mixed_precision, default.precision_origin) == ("no", "the default on XLA")
    assert default.optim == "adamw_torch", "the fused one knows no XLA"


def test_what_one_process_on_all_chips_cannot_do_is_refused_in_one_line(on_tpu, tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"per_device_train_batch_size is 6, but 4 chips .* a multiple of 4"):
        chosen(tmp_path, global_batch_size=6, per_device_train_batch_size=6)
    with pytest.raises(InputError, match="activation_checkpointing is set, but torch's does not know XLA"):
        chosen(tmp_path, activation_checkpointing=True)
    with pytest.raises(InputError, match=r"use_cpu is set, but torch_xla is installed.*USE_TORCH_XLA=0"):
        chosen(tmp_path, use_cpu=True)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="2 processes were started, but torch_xla is installed"):
        chosen(tmp_path, per_device_train_batch_size=4)
    assert not list(tmp_path.iterdir())


@pytest.mark.outside(
    "https://github.com/huggingface/diffusers/issues/5849",
    "accelerate launch on a TPU v3-8, which called main() without its settings: a TypeError",
    "one process without a launcher computes on all chips; a launch configuration for TPUs is refused in one line",
)
@pytest.mark.parametrize("kind", ["TPU", "XLA"])
def test_a_launch_configuration_for_tpus_is_refused_in_one_line(kind, tmp_path):
    theirs = tmp_path / "theirs.yaml"
    theirs.write_text(f"compute_environment: LOCAL_MACHINE\ndistributed_type: {kind}\nnum_processes: 8\n")
    for launched in (launching.start, lambda name, words: launching.launch_module("json.tool", words)):
        with pytest.raises(InputError, match="one process computes on all chips of a TPU; leave --launch out"):
            launched("recipes/pretrain.py", ["--launch", str(theirs), "--hmm", "mess3"])


@pytest.mark.outside(
    "https://github.com/huggingface/transformers/issues/29935",
    "train on all eight cores of a Kaggle TPU, where one process found that 1 is different from 8",
    "one process divides the rows of a batch among all chips, with the losses of one chip and of no XLA",
)
@pytest.mark.outside(
    "https://github.com/huggingface/accelerate/issues/2858",
    "gather objects on a TPU, which accelerate does not do",
    "one process has nothing to gather; the sizes of its shards are in the summary",
)
@pytest.mark.outside(
    "https://github.com/cambrian-mllm/cambrian/issues/76",
    "inference on a TPU, which ended in: Cannot set version_counter for inference tensor",
    "evaluations compute without inference mode, and give the figures of torch without XLA",
)
@pytest.mark.thorough
@pytest.mark.slow
def test_one_chip_four_chips_and_no_xla_have_the_same_losses_and_figures(tmp_path):
    pytest.importorskip("torch_xla")
    one, four = ({"USE_TORCH_XLA": "1", "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": chips} for chips in ("1", "4"))
    for name, xla in (("none", {}), ("one", one), ("four", four)):
        command("pretrain", *RUN, "--output_dir", tmp_path / name, **xla)
    shutil.copytree(tmp_path / "four", tmp_path / "resumed")
    shutil.rmtree(tmp_path / "resumed" / "checkpoint-6")
    (tmp_path / "resumed" / "summary.json").unlink()
    command("pretrain", *RUN, "--output_dir", tmp_path / "resumed", **four)
    expected = losses(tmp_path / "none")
    assert len(expected) == 6
    for name in ("one", "four", "resumed"):
        assert losses(tmp_path / name) == pytest.approx(expected, abs=1e-5), name
        summary = read_json(tmp_path / name / "summary.json")
        assert (summary["distributed_type"], summary["shard_sizes"][0]["rank"]) == ("XLA", 0)
    cross_entropies = []
    for xla in ({}, four):
        flags = ("--targets", "mess3", "--num_sequences", 8, "--tasks", "optimum", "--output_dir", tmp_path / "report")
        command("evaluate", tmp_path / "one", *flags, **xla)
        report = read_json(tmp_path / "report" / "report.json")
        cross_entropies.append(report["optimum"]["cross_entropy"]["model"]["by_position"])
    assert cross_entropies[0] == pytest.approx(cross_entropies[1], abs=1e-5)


def command(*words, **environment):
    words = [sys.executable, "-m", "hmm_datasets.cli", *map(str, words)]
    subprocess.run(words, env={**os.environ, **environment}, check=True, capture_output=True, text=True, timeout=500)


def losses(folder):
    """The loss of every step."""
    return [row["loss"] for row in read_jsonl(folder / "history.jsonl") if "loss" in row]
