"""Runs that torchtitan continues: shapes and rows always, its model and its trainer on the CPU where it is installed.

`pip install --no-deps torchtitan==0.3.0`, and then what recipes/torchtitan/README.md lists, makes none of these skip.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from rows_of_job import batches_of_rank, read_job
from safetensors import safe_open
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    default_data_collator,
    set_seed,
)
from write_job import torchtitan_shape, write_job

from hmm_datasets.cli import main
from hmm_datasets.data.sequences import HMMSequences
from hmm_datasets.errors import InputError
from hmm_datasets.files import read_json, write_json
from hmm_datasets.hmm import processes
from hmm_datasets.text.stream import write_tokens
from hmm_datasets.text.tokenizers.bpe import train_bpe
from hmm_datasets.training.model_configs import ModelSettings, new_model
from hmm_datasets.training.run import train_and_save
from hmm_datasets.training.settings import PretrainSettings
from hmm_datasets.training.sources import DataSettings
from hmm_datasets.training.trainer import Pretrainer

BATCH, STEPS, DONE = 8, 6, 2
PROGRAM = Path(__file__).parents[2] / "recipes" / "torchtitan" / "write_job.py"
SIZES = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48}


def pretrain(folder, data_settings, model, **given):
    """What recipes/pretrain.py does, in one process: six steps, with a checkpoint after the second."""
    settings = PretrainSettings(
        str(folder),
        **{"max_steps": STEPS, "global_batch_size": BATCH, "per_device_train_batch_size": 4, "learning_rate": 1e-2},
        **{"save_steps": DONE, "report_to": "none", "disable_tqdm": True, "logging_steps": 1} | given,
    )
    set_seed(1)
    model_settings = ModelSettings(str(model))
    data = data_settings.load()
    trainer = Pretrainer(
        model=(model := new_model(model_settings.config(data))),
        args=settings,
        plan=settings.plan(data, model),
        processing_class=data.tokenizer,
        data_collator=default_data_collator,
    )
    train_and_save(trainer, settings={**asdict(data_settings), **asdict(model_settings)}, data=data.identity)
    return folder / f"checkpoint-{DONE}"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """Of a run on an HMM, whose model has grouped queries and tied embeddings."""
    folder = tmp_path_factory.mktemp("run")
    config = {"model_type": "llama", "num_hidden_layers": 2, "tie_word_embeddings": True, **SIZES}
    (folder / "model.json").write_text(json.dumps(config))
    return pretrain(folder / "run", DataSettings(hmm="mess3", length=15), folder / "model.json")


@pytest.fixture(scope="module")
def text_checkpoint(tmp_path_factory):
    """Of a run on token shards, which has read a third of its second epoch."""
    folder = tmp_path_factory.mktemp("text")
    tokenizer = train_bpe(["the cat sat on the mat and the dog ran"] * 9, 270, show_progress=False)
    tokenizer.save_pretrained(folder / "tokenizer")
    for split in ("train", "test"):
        documents = [[10 + (7 * document + place) % 250 for place in range(40)] for document in range(9)]
        write_tokens(
            documents,
            folder / "text" / split,
            **{"vocab_size": len(tokenizer), "eos_id": tokenizer.eos_token_id, "tokenizer_hash": "none"},
            **{"corpus": "made", "shard_tokens": 100},
        )
    config = {"model_type": "llama", "num_hidden_layers": 1, **SIZES}
    (folder / "model.json").write_text(json.dumps(config))
    data = DataSettings(tokens=str(folder / "text"), tokenizer=str(folder / "tokenizer"), length=24)
    return pretrain(folder / "run", data, folder / "model.json")


def names_and_shapes(shape):
    """What `Llama3StateDictAdapter.to_hf` of torchtitan 0.3.0 asks a folder of transformers for, by its model."""
    dim, hidden, head = shape["dim"], shape["hidden_dim"], shape["head_dim"]
    expected = {"model.embed_tokens.weight": [shape["vocab_size"], dim], "model.norm.weight": [dim]}
    if not shape["enable_weight_tying"]:
        expected["lm_head.weight"] = [shape["vocab_size"], dim]
    for number in range(shape["n_layers"]):
        layer = f"model.layers.{number}."
        expected |= {
            f"{layer}self_attn.q_proj.weight": [shape["n_heads"] * head, dim],
            f"{layer}self_attn.k_proj.weight": [shape["n_kv_heads"] * head, dim],
            f"{layer}self_attn.v_proj.weight": [shape["n_kv_heads"] * head, dim],
            f"{layer}self_attn.o_proj.weight": [dim, shape["n_heads"] * head],
            f"{layer}mlp.gate_proj.weight": [hidden, dim],
            f"{layer}mlp.up_proj.weight": [hidden, dim],
            f"{layer}mlp.down_proj.weight": [dim, hidden],
            f"{layer}input_layernorm.weight": [dim],
            f"{layer}post_attention_layernorm.weight": [dim],
        }
    return expected


def new_job(checkpoint, folder):
    write_job(checkpoint, folder)
    return folder


@pytest.mark.thorough
def test_a_checkpoint_becomes_a_job_with_the_shape_rows_and_settings_of_the_run(
    checkpoint, child_environment, tmp_path
):
    folder = tmp_path / "job"
    program = [sys.executable, str(PROGRAM), "--checkpoint", str(checkpoint), "--destination", str(folder)]
    done = subprocess.run(program, env=child_environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    command = (
        f"PYTHONPATH={folder} torchrun --nproc_per_node N -m torchtitan.train --module torchtitan_job --config job"
    )
    assert command in done.stdout
    content = read_json(folder / "job.json")
    assert content["model"] == {
        **{"dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "head_dim": 8, "hidden_dim": 48},
        **{"vocab_size": 4, "norm_eps": 1e-6, "initializer_range": 0.02, "enable_weight_tying": True},
        "rope": {"theta": 10000.0, "scaling": "none"},
    }
    assert content["data"] == {"hmm": "mess3", "length": 15, "data_seed": 0}
    assert content["rows"] == {"first": DONE * BATCH, "skipped": []}
    assert (content["training"]["global_batch_size"], content["training"]["steps"]) == (BATCH, STEPS - DONE)
    assert content["training"]["learning_rate"] == 1e-2
    with safe_open(folder / "model.safetensors", "pt") as weights:
        shapes = {name: weights.get_slice(name).get_shape() for name in weights.keys()}  # noqa: SIM118
    assert shapes == names_and_shapes(content["model"])
    for name in ("torchtitan_job.py", "rows_of_job.py"):
        compile((folder / name).read_text(), name, "exec")
    again = subprocess.run(program, env=child_environment, capture_output=True, text=True, timeout=500, check=False)
    assert again.returncode == 2
    assert f"error: {folder}: exists; give another folder for the job" in again.stderr


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/pytorch/torchtitan/issues/811",
    "a run that continues with a greater number of data-parallel ranks",
    "the state of the job's rows is one number, so any number of ranks continues with the same rows",
)
@pytest.mark.parametrize("name", ["checkpoint", "text_checkpoint"])
def test_ranks_together_read_the_rows_that_the_run_would_have_read_next(name, request, tmp_path):
    source = request.getfixturevalue(name)
    job = read_job(new_job(source, tmp_path / "job"))
    recorded = read_json(source.parent / "run.json")["settings"]
    data = DataSettings(**{key: recorded[key] for key in ("hmm", "tokens", "tokenizer", "length", "data_seed")}).load()
    rows = data.rows(STEPS * BATCH)
    for ranks, size, done in ((1, 8, 0), (1, 2, 1), (2, 4, 0), (2, 1, 1), (4, 2, 0), (8, 1, 2)):
        layout = {"first": done * BATCH, "size": size, "ranks": ranks, "length": job["row_length"] + 3}
        streams = [batches_of_rank(job["rows"], rank=rank, **layout) for rank in range(ranks)]
        for step in range(DONE + done, STEPS):
            read = [next(stream) for _ in range(BATCH // (ranks * size)) for stream in streams]
            tokens, labels = (torch.cat(parts) for parts in zip(*read, strict=True))
            expected = [rows[row] for row in range(step * BATCH, (step + 1) * BATCH)]
            assert torch.equal(tokens[:, :-3], torch.stack([row["input_ids"] for row in expected]))
            assert torch.equal(labels[:, :-4], torch.stack([row["labels"][1:] for row in expected]))
            assert (labels[:, -4:] == -100).all()
    with pytest.raises(InputError, match=r"rows have \d+ tokens, more than the length 8; set as many or more"):
        next(batches_of_rank(job["rows"], first=0, size=1, rank=0, ranks=1, length=8))


def test_rows_that_the_run_skips_are_skipped_in_the_job(checkpoint, tmp_path):
    folder = new_job(checkpoint, tmp_path / "job")
    content = read_json(folder / "job.json")
    first = content["rows"]["first"]
    write_json(folder / "job.json", content | {"rows": {"first": first, "skipped": [[first + 1, first + 3]]}})
    rows, all_rows = read_job(folder)["rows"], HMMSequences(processes.mess3(), 15).by_index()
    for number, index in enumerate((first, first + 3, first + 4)):
        assert torch.equal(rows[number]["input_ids"], all_rows[index]["input_ids"])


def test_other_data_than_those_of_the_run_are_refused(text_checkpoint, tmp_path):
    folder = new_job(text_checkpoint, tmp_path / "job")
    content = read_json(folder / "job.json")
    assert Path(content["data"]["tokens"]).is_absolute()
    write_json(folder / "job.json", content | {"data": content["data"] | {"data_seed": 1}})
    with pytest.raises(InputError, match=r"job.json: of another run: data.seed was 0 and is 1; restore the data$"):
        read_job(folder)


def rope(kind, **further):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, **further}}


LLAMA3 = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            GPT2Config(),
            "model_type is 'gpt2'; torchtitan's Llama has 'llama' there; use checkpoint convert --to hf",
        ),
        (MistralConfig(sliding_window=8), "model_type is 'mistral'"),
        (LlamaConfig(attention_bias=True), "attention_bias is True; torchtitan's Llama has False there"),
        (LlamaConfig(mlp_bias=True), "mlp_bias is True"),
        (LlamaConfig(hidden_act="gelu"), "hidden_act is 'gelu'; torchtitan's Llama has 'silu' there"),
        (LlamaConfig(attention_dropout=0.1), "attention_dropout is 0.1"),
        (LlamaConfig(**rope("linear", factor=2.0)), "rope_parameters are of type 'linear' with factor; torchtitan's"),
        (LlamaConfig(**rope("yarn", factor=2.0)), "rope_parameters are of type 'yarn' with"),
    ],
)
def test_models_that_torchtitans_llama_cannot_be_are_refused_by_name(config, message):
    with pytest.raises(InputError, match=f"^{re.escape(message)}"):
        torchtitan_shape(config)


def test_runs_that_a_job_cannot_continue_are_refused_and_leave_nothing(checkpoint, tmp_path):
    run = shutil.copytree(checkpoint.parent, tmp_path / "run")
    record = read_json(run / "run.json")

    def refused(settings, message):
        write_json(run / "run.json", record | {"settings": record["settings"] | settings})
        with pytest.raises(InputError, match=message):
            new_job(run / checkpoint.name, tmp_path / "job")
        assert not (tmp_path / "job").exists()

    streams = {"hmm": None, "streams": [str(tmp_path)], "weights": [1.0], "packed_streams": [str(tmp_path)]}
    refused(streams, r"checkpoint-2: its rows are packed, and the job has no mask that keeps documents apart$")
    refused({"batch_ramp": ["4:3"]}, r"checkpoint-2: its batch_ramp has not ended; convert a later checkpoint")
    refused({"hmm": None}, r"run.json names neither an HMM nor token streams; only runs of pretrain and midtrain")


@pytest.fixture(scope="module")
def torchtitan_job(checkpoint, tmp_path_factory):
    """The module that is copied beside a model, imported on the CPU."""
    pytest.importorskip("torchtitan", reason="torchtitan 0.3.0, see recipes/torchtitan/README.md")
    folder = new_job(checkpoint, tmp_path_factory.mktemp("module") / "job")
    spec = importlib.util.spec_from_file_location("torchtitan_job", folder / "torchtitan_job.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.outside(
    "https://github.com/pytorch/torchtitan/issues/335",
    "weights of transformers in torchtitan, whose rotary embeddings pair other features",
    "the logits in torchtitan's Llama are those of transformers, also with grouped queries and scaled embeddings",
)
@pytest.mark.outside(
    "https://github.com/pytorch/torchtitan/pull/2580",
    "tied embeddings of a Llama taken from Hugging Face and back",
    "a job keeps them tied; pipeline parallelism of such a model is refused by torchtitan",
)
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("further", [{}, {"num_key_value_heads": 1}, {"head_dim": 12}, rope("llama3", **LLAMA3)])
def test_the_logits_in_torchtitans_llama_are_those_of_transformers(tied, further, torchtitan_job):
    config = LlamaConfig(vocab_size=23, num_hidden_layers=2, **SIZES | further, tie_word_embeddings=tied)
    set_seed(0)
    ours = LlamaForCausalLM(config).eval()
    for weight in ours.parameters():  # also norms
        torch.nn.init.normal_(weight, std=0.5)
    weights = {name: weight for name, weight in ours.state_dict().items() if not (tied and name == "lm_head.weight")}
    shape = torchtitan_shape(config)
    assert {name: list(weight.shape) for name, weight in weights.items()} == names_and_shapes(shape)
    theirs = torchtitan_job.model(shape, 64)
    adapter, module = torchtitan_job.Llama3StateDictAdapter(theirs, None), theirs.build()
    module.init_states()
    module.load_state_dict(adapter.from_hf(dict(weights)))
    tokens = torch.arange(2 * 48).view(2, 48) * 7 % 23
    with torch.no_grad():
        expected = ours(tokens).logits
        assert expected.std() > 1
        assert torch.allclose(module(tokens), expected, atol=1e-5, rtol=1e-5)
    back = adapter.to_hf(module.state_dict())
    assert back.keys() == weights.keys()
    assert all(torch.equal(back[name], weight) for name, weight in weights.items())


def losses_here(folder, steps):
    """The losses of steps that a plain loop trains in one process, and the model after them."""
    job, model = read_job(folder), AutoModelForCausalLM.from_pretrained(folder)
    model.get_input_embeddings().padding_idx = None  # else the beginning token, saved as padding, is not trained
    settings = job["training"]
    betas = settings["adam_beta1"], settings["adam_beta2"]
    decay, eps = settings["weight_decay"], settings["adam_epsilon"]
    optimizer = torch.optim.AdamW(
        model.parameters(), settings["learning_rate"], betas=betas, eps=eps, weight_decay=decay
    )
    losses = []
    for step in range(steps):
        batch = default_data_collator([job["rows"][row] for row in range(step * BATCH, (step + 1) * BATCH)])
        loss = model(**batch).loss
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings["max_grad_norm"])
        optimizer.step()
    return losses, model


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/pytorch/torchtitan/issues/1661",
    "torchtitan on a CPU, for development on a laptop",
    "its trainer runs in two CPU processes, by FSDP2 or tensor parallelism, with the losses of a plain loop here",
)
@pytest.mark.outside(
    "https://github.com/pytorch/torchtitan/issues/305",
    "a model that torchtitan has trained, for Hugging Face",
    "its last checkpoint, with config.json and the tokenizer copied there, is a model of from_pretrained",
)
@pytest.mark.outside(
    "https://github.com/pytorch/torchtitan/issues/291",
    "a resumed run that skips the data it has trained on",
    "a job that resumes on another number of ranks reads the next rows",
)
def test_torchtitan_trains_on_the_same_rows_with_the_same_losses_and_gives_the_model_back(
    torchtitan_job, child_environment, tmp_path, capsys
):
    folder = torchtitan_job.FOLDER
    steps = STEPS - DONE
    expected, model = losses_here(folder, steps)

    def train(ranks, output, *flags):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
        command += [str(Path(__file__).with_name("torchtitan_on_cpu.py")), "--module", "torchtitan_job"]
        command += ["--config", "job", "--dump_folder", str(output), "--metrics.log_freq", "1"]
        command += ["--training.disable_cuda_graphs", "--training.mixed_precision_param", "float32"]
        command += ["--optimizer.implementation", "for-loop", "--dataloader.num_workers", "0"]
        command += ["--lr_scheduler.min_lr_factor", "1", "--training.local_batch_size", "2", *flags]
        path = os.pathsep.join([str(folder), child_environment["PYTHONPATH"], *sys.path])
        environment = child_environment | {"PYTHONPATH": path}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
        lines = re.findall(
            r"step: *(\d+).*?loss: *\S*?(\d+\.\d+)", re.sub(r"\x1b\[\d*m", "", done.stderr + done.stdout)
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return {int(step): float(loss) for step, loss in lines}

    def same(losses, first=1):
        assert losses.keys() == set(range(first, steps + 1))
        return all(abs(loss - expected[step - 1]) < 2e-5 for step, loss in losses.items())

    tensor = tmp_path / "tensor"
    assert same(train(2, tensor, "--parallelism.tensor_parallel_degree", "2"))
    # FSDP2 on two ranks, which saves after two steps, and then one rank that continues.
    sharded = tmp_path / "sharded"
    assert same(train(2, sharded, "--checkpoint.interval", "2"))
    shutil.rmtree(sharded / "checkpoint" / f"step-{steps}")
    assert same(train(1, sharded, "--checkpoint.interval", "2"), first=3)
    for output in (tensor, sharded):
        saved = output / "checkpoint" / f"step-{steps}"
        assert {"model-00001-of-00001.safetensors", "model.safetensors.index.json"} <= {
            x.name for x in saved.iterdir()
        }
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(folder / name, saved / name)
        back = AutoModelForCausalLM.from_pretrained(saved)
        for ours, theirs in zip(model.parameters(), back.parameters(), strict=True):
            assert torch.allclose(ours, theirs, atol=2e-4)
    arguments = ["--model", str(saved), "--targets", str(folder / "process"), "--tasks", "optimum"]
    arguments += ["--length", "15", "--num_sequences", "64", "--output_dir", str(tmp_path / "report")]
    assert main(["evaluate", *arguments]) == 0
    report = read_json(tmp_path / "report" / "report.json")["optimum"]
    tokens = HMMSequences(processes.mess3(), 15, first=report["first"], num_sequences=64)
    with torch.no_grad():
        loss = model(**default_data_collator([tokens[row] for row in range(64)])).loss.item()
    assert report["cross_entropy"]["model"]["cross_entropy"] == pytest.approx(loss, abs=1e-3)
