"""A run consumes exactly the tokens of its plan; and its memory and time."""

import contextlib
import datetime
import json

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM, default_data_collator

from hmm_datasets.cli import main
from hmm_datasets.data.packing import count_tokens
from hmm_datasets.errors import InputError
from hmm_datasets.hmm import processes
from hmm_datasets.operations.planning import plan_recipe
from hmm_datasets.runtime.run_identity import write_identity
from hmm_datasets.runtime.shipped import local_or_shipped
from hmm_datasets.text.stream import write_tokens
from hmm_datasets.training import linear_cross_entropy
from hmm_datasets.training.checkpoints.skipped_rows import Rollback, rows_identity
from hmm_datasets.training.fused_loss import LabelScores, set_loss_output
from hmm_datasets.training.model_configs import ModelSettings, model_config
from hmm_datasets.training.plan import memory
from hmm_datasets.training.plan.flops import flops_per_token
from hmm_datasets.training.plan.memory import REDUCE_BUCKET, STRATEGIES, memory_per_rank, peak_activations
from hmm_datasets.training.plan.rate import read_rate
from hmm_datasets.training.run import train_and_save
from hmm_datasets.training.settings import PretrainSettings
from hmm_datasets.training.sources import DataSettings
from hmm_datasets.training.trainer import Pretrainer


@pytest.fixture(scope="module")
def hmm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hmm")
    processes.mess3(0.15, 0.6).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    """Streams of 2,000 and 300 tokens in documents of 1 to 40, and a tokenizer that fits them."""
    from hmm_datasets.text.tokenizers.bpe import train_bpe

    folder = tmp_path_factory.mktemp("tokens")
    tokenizer = train_bpe(["one two three four"] * 9, 270)
    tokenizer.save_pretrained(folder / "tokenizer")
    generator = np.random.default_rng(0)
    for split, total in (("train", 2_000), ("test", 300)):
        documents, size = [], 0
        while size < total:
            documents.append(generator.integers(0, 255, generator.integers(1, min(40, total - size) + 1)))
            size += len(documents[-1]) + 1
        write_tokens(documents, folder / split, vocab_size=270, eos_id=256, tokenizer_hash="none", corpus="numbers")
    return folder


def pretraining(folder, **settings):
    return PretrainSettings(
        str(folder), **{"global_batch_size": 4, "per_device_train_batch_size": 2, "report_to": "none"} | settings
    )


def run(data, settings):
    """Train as recipes/pretrain.py does."""
    model = LlamaForCausalLM(ModelSettings("d1").config(data))
    plan = settings.plan(data, model)
    trainer = Pretrainer(model=model, args=settings, plan=plan, data_collator=default_data_collator)
    return plan, train_and_save(trainer, settings={}, data=data.identity)


@pytest.mark.thorough
@pytest.mark.parametrize("packed", [False, True])
def test_a_run_on_text_consumes_exactly_the_tokens_of_its_plan(packed, tokens, tmp_path):
    data = DataSettings(tokens=str(tokens), tokenizer=str(tokens / "tokenizer"), length=32, packed=packed).load()
    plan, summary = run(data, pretraining(tmp_path, train_tokens=1_000, batch_ramp=["2:3"]))
    assert summary["tokens"] == summary["planned_tokens"] == plan.tokens
    assert plan.tokens_at(plan.steps - 1) < 1_000 <= plan.tokens
    # The tokens of the rows: all but padding, which has the last position and no label.
    rows = [plan.train_rows()[index] for index in range(plan.rows)]
    padding = sum(
        int(((row["labels"] == -100) & (row["position_ids"] == 31)).sum()) for row in rows if "position_ids" in row
    )
    assert plan.tokens == 32 * plan.rows - padding
    assert (padding > 0) == packed
    stored = json.loads((tmp_path / "plan.json").read_text())
    assert stored == plan.to_dict()
    (corpus,) = stored["corpora"]
    assert corpus["tokens"] == data.stream.num_tokens
    assert corpus["epochs"] == plan.rows / data.rows_per_epoch


@pytest.mark.thorough
@pytest.mark.parametrize("packed", [False, True])
def test_rows_that_are_passed_over_are_not_counted_and_the_run_reads_as_many_further(packed, tokens, tmp_path):
    """A run that went back twice, on rows of unequal numbers of tokens, to the end of an epoch and beyond."""
    data = DataSettings(tokens=str(tokens), tokenizer=str(tokens / "tokenizer"), length=32, packed=packed).load()
    settings = pretraining(tmp_path, num_train_epochs=1)
    before = settings.plan(data, LlamaForCausalLM(ModelSettings("d1").config(data)))
    rollbacks = [Rollback(step=2, checkpoint=1, first=3, end=9), Rollback(step=4, checkpoint=3, first=14, end=15)]
    write_identity(tmp_path, rows_identity(rollbacks))
    plan, summary = run(data, pretraining(tmp_path, num_train_epochs=1))
    assert (plan.steps, plan.rows) == (before.steps, before.rows)
    assert len(plan.train_rows()) >= plan.rows + 7 > data.rows_per_epoch
    kept = [index for index in range(plan.rows + 7) if not (3 <= index < 9 or index == 14)]
    rows = plan.train_rows()
    counted = [int(count_tokens({name: column[None] for name, column in rows[index].items()})) for index in kept]
    assert summary["tokens"] == summary["planned_tokens"] == plan.tokens == sum(counted)
    assert [plan.tokens_at(step) for step in (1, 3)] == [sum(counted[:4]), sum(counted[:12])]
    assert json.loads((tmp_path / "plan.json").read_text())["passed_over_rows"] == 7
    assert [one["end"] for one in summary["passed_over"]] == [9, 15]


def test_a_run_that_did_not_consume_the_planned_tokens_fails(hmm, tmp_path):
    data = DataSettings(hmm=hmm, length=7).load()
    settings = pretraining(tmp_path, max_steps=2)
    model = LlamaForCausalLM(ModelSettings("d1").config(data))
    plan = settings.plan(data, model)
    trainer = Pretrainer(model=model, args=settings, plan=plan)
    trainer.train_dataset = DataSettings(hmm=hmm, length=8).load().rows(8)
    with pytest.raises(InputError, match="the model is saved, but 2 steps consumed 72 tokens, and the plan says 64"):
        train_and_save(trainer, settings={}, data={})
    LlamaForCausalLM.from_pretrained(tmp_path)
    assert json.loads((tmp_path / "summary.json").read_text())["planned_tokens"] == 64


def test_epochs_are_whole_and_no_row_is_repeated_within_one(tokens, tmp_path):
    data = DataSettings(tokens=str(tokens), tokenizer=str(tokens / "tokenizer"), length=32).load()
    settings = pretraining(tmp_path, num_train_epochs=1)
    plan = settings.plan(data, LlamaForCausalLM(ModelSettings("d1").config(data)))
    assert data.rows_per_epoch - 4 < plan.rows <= data.rows_per_epoch
    rows = plan.train_rows()
    assert len({tuple(rows[index]["input_ids"].tolist()) for index in range(plan.rows)}) == plan.rows
    assert settings.max_steps == plan.steps


@pytest.mark.thorough
def test_the_plan_of_a_settings_file(hmm, tmp_path):
    path, launch = tmp_path / "a.yaml", tmp_path / "launch.yaml"
    path.write_text(
        f"hmm: {hmm}\nlength: 15\nmodel: d2\noutput_dir: {tmp_path}\nglobal_batch_size: 32\n"
        "per_device_train_batch_size: 4\nprice_per_hour: 3.0\n"
    )
    launch.write_text("num_processes: 4\n")  # of GPUs, which have bfloat16
    found = plan_recipe("pretrain", ["--config", str(path), "--assumed_rate", "H200:0.5"], launch_config=launch)
    model = LlamaForCausalLM(model_config("d2", vocab_size=4, max_length=16))
    parameters = sum(weight.numel() for weight in model.parameters())
    assert (found["parameters"], found["flops_per_token"]) == (parameters, flops_per_token(model, 16))
    assert found["budget"] == {"tokens_per_parameter": 20}
    assert (found["world_size"], found["gradient_accumulation_steps"], found["tokens_per_step"]) == (4, 2, 512)
    assert 20 * parameters <= found["tokens"] == found["steps"] * 512 < 20 * parameters + 512
    time = found["time"]
    assert time["tokens_per_second"] == pytest.approx(4 * 0.5 * 989.4e12 / found["flops_per_token"])
    assert time["seconds"] == pytest.approx(found["flops"] / (4 * 0.5 * 989.4e12))
    assert time["cost"] == pytest.approx(4 * 3.0 * time["seconds"] / 3600)
    assert datetime.datetime.fromisoformat(time["ends"]) >= datetime.datetime.now() - datetime.timedelta(minutes=5)
    assert found["precision"] == "bf16"
    assert set(found["memory"]) == {"ddp", "fsdp2", "zero1", "zero2", "zero3"}
    assert found["memory"]["zero2"]["optimizer"] == 12 * -(-parameters // 4)
    with pytest.raises(InputError, match=r"global_batch_size 32 is not a multiple of world size 3 x per_device"):
        plan_recipe("pretrain", ["--config", str(path)], num_processes=3)


@pytest.mark.thorough
def test_a_plan_before_the_data_exist_is_the_plan_with_them(hmm, tokens, tmp_path):
    rest = f"length: 15\noutput_dir: {tmp_path / 'run'}\ntrain_tokens: 9000\nglobal_batch_size: 8\n"
    rest += "per_device_train_batch_size: 4\nassumed_rate: H100\n"
    exist = {"hmm": f"hmm: {hmm}\n", "text": f"tokens: {tokens}\ntokenizer: {tokens}/tokenizer\nepochs_ok: 5\n"}
    missing = {"hmm": "hmm: nowhere\n", "text": "tokens: nowhere/text\ntokenizer: nowhere/tokenizer\nepochs_ok: 5\n"}
    streams = "model: nowhere\nstreams: [a, b]\nweights: [0.3, 0.7]\npacked_streams: [b]\n"
    for kind in exist:
        path, later = tmp_path / "a.yaml", tmp_path / "b.yaml"
        path.write_text(exist[kind] + "model: d2\n" + rest)
        later.write_text(missing[kind] + "model: d2\n" + rest)
        found = plan_recipe("pretrain", ["--config", str(path)])
        vocabulary = found["parameters"] - found["parameters_without_embeddings"]
        symbols = vocabulary // (2 * 128) - (kind == "hmm")
        assumed = plan_recipe("pretrain", ["--config", str(later)], assumed_vocab_size=symbols)
        differing = {"corpora", "epochs", "time", "assumed_vocab_size"}
        assert {key: found[key] for key in found.keys() - differing} == {
            key: assumed[key] for key in assumed.keys() - differing
        }
        assert assumed["assumed_vocab_size"] == symbols
        later.write_text(streams + "epochs_ok: 5\n" + rest)
        midtrain = plan_recipe("midtrain", ["--config", str(later), "--model", "d2"], assumed_vocab_size=symbols)
        assert midtrain["parameters_without_embeddings"] == found["parameters_without_embeddings"]
    later.write_text(f"conversations: lima\nmodel: nowhere\noutput_dir: {tmp_path / 'run'}\n")
    with pytest.raises(InputError, match="lengths of conversations and preferences are not known"):
        plan_recipe("sft", ["--config", str(later)], assumed_vocab_size=10)


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("X9000", "assumed_rate is 'X9000'; expected a device"),
        ("H200:1.5", "device H200:1.5: expected a share"),
        ("tests", "assumed_rate tests: it has no history.jsonl"),
        (0.0, "assumed_rate is 0.0 tokens per second; expected a number above 0"),
    ],
)
def test_a_rate_that_is_not_known_is_refused(named, message):
    with pytest.raises(InputError) as caught:
        read_rate(named)
    assert message in str(caught.value)


def test_a_rate_measured_in_a_run_carries_over_by_flops(tmp_path):
    rows = [
        {"step": step, "tokens": 100 * step, "flops": 700.0 * 100 * step, "tokens_per_second_per_device": rate}
        for step, rate in ((1, 3.0), (2, 50.0), (3, 60.0), (4, 55.0))
    ]
    (tmp_path / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rate = read_rate(str(tmp_path))
    assert rate.tokens_per_second(flops_per_token=1_400, world_size=4) == pytest.approx(4 * 55 * 700 / 1_400)


# Memory


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("low", "low_weights"), [(False, False), (True, False), (True, True)], ids=["float32", "autocast", "low weights"]
)
@pytest.mark.parametrize("chunked", [False, True], ids=["all logits", "chunks"])
def test_activations_are_those_that_a_real_step_allocates(low, low_weights, chunked, monkeypatch):
    """The profiler's record of every allocation of a forward and backward pass, at its peak, at four layers."""
    from torch.profiler import ProfilerActivity, profile

    monkeypatch.setattr(linear_cross_entropy, "CHUNK_BYTES", 40 * 4 * 3000)
    config = model_config("d2", vocab_size=3000, max_length=64)
    config.num_hidden_layers = 4
    precision = {"low_precision": low, "low_weights": low_weights}
    told = peak_activations(config, micro_batch_size=4, length=64, chunked_loss=chunked, **precision)
    model = LlamaForCausalLM(config).to(torch.bfloat16 if low_weights else torch.float32)
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    tokens = torch.zeros(4, 64, dtype=torch.int64)
    asked = contextlib.nullcontext()
    if chunked:
        asked = set_loss_output(model).computing_losses_of(LabelScores(tokens, all_count=True))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        with asked, torch.autocast("cpu", torch.bfloat16, enabled=low and not low_weights):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
    changes = [event.nbytes() for event in record.profiler.kineto_results.events() if event.name() == "[memory]"]
    assert changes
    peak = int(np.cumsum(changes).max())
    assert told == pytest.approx(peak, rel=0.1)


@pytest.mark.thorough
def test_the_memory_of_a_plan_follows_the_setting_of_the_loss(tmp_path):
    """With all logits these count twice in float32; by default a large vocabulary has none of them."""
    path = tmp_path / "a.yaml"
    path.write_text(f"hmm: later\nlength: 256\nmodel: d1\noutput_dir: {tmp_path}\nper_device_train_batch_size: 16\n")

    def activations(*flags):
        plan = plan_recipe("pretrain", ["--config", str(path), *flags], assumed_vocab_size=50_000)
        return plan["memory"]["ddp"]["activations"]

    chunks = activations("--chunked_loss", "true")
    assert activations() == chunks
    assert activations("--chunked_loss", "false") - chunks > 1.5 * 16 * 256 * 50_000 * 4


@pytest.mark.thorough
def test_flex_attention_is_planned_without_its_kernel_also_for_models_that_have_no_sdpa(tmp_path, monkeypatch):
    """It would end this process, as it has no data to run on."""
    path = tmp_path / "a.yaml"
    path.write_text(f"hmm: later\nlength: 2048\nmodel: d1\noutput_dir: {tmp_path}\nattention: flex_attention\n")

    def planned() -> int:
        plan = plan_recipe("pretrain", ["--config", str(path)], assumed_vocab_size=50_000)
        return plan["memory"]["ddp"]["activations"]

    fused = planned()
    monkeypatch.setattr(LlamaForCausalLM, "_supports_sdpa", False)
    monkeypatch.setattr(memory, "_results", {})
    assert planned() > fused


def test_each_strategy_shards_what_its_table_says():
    sizes = {"parameters": 1_000, "world_size": 4, "activations": 7, "largest_layer": 50}
    found = {name: memory_per_rank(name, **sizes) for name in STRATEGIES}
    assert found["ddp"]["total"] == 4_000 + 8_000 + 8_000 + 7
    assert found["fsdp2"]["total"] == 1_000 + 1_000 + 2_000 + 7 + 2 * 4 * 50
    bucket = 4 * 50_000_000
    assert found["zero1"]["total"] == 4_000 + 4_000 + 3_000 + 7 + bucket
    assert found["zero2"]["total"] == 4_000 + 1_000 + 3_000 + 7 + 2 * bucket
    assert found["zero3"]["total"] == 1_000 + 1_000 + 3_000 + 7 + 4 * 1_000
    large = memory_per_rank("zero3", **sizes | {"parameters": 4_000_000_000}, low_precision=True)
    assert large["activations"] == 7 + 2 * 1_000_000_000
    assert memory_per_rank("ddp", **sizes | {"world_size": 1})["gradients"] == 4_000
    assert memory_per_rank("fsdp2", **sizes, reduces_once=True)["gradients"] == 1_000 + 4_000
    assert memory_per_rank("fsdp2", **sizes, reduces_once=True, low_precision=True)["gradients"] == 1_000 + 2_000


@pytest.mark.outside(
    "https://github.com/meta-pytorch/tnt/pull/1057",
    "to know that accumulation under FSDP2 keeps the gradients of the whole model: 52 GB more for 26e9 parameters",
    "`plan` counts them, and `sync_each_batch` takes them away",
)
def test_accumulation_under_fsdp2_keeps_the_gradients_of_the_whole_model():
    sizes = {"parameters": 26_000_000_000, "world_size": 16, "activations": 0, "low_precision": True}
    once, each = (memory_per_rank("fsdp2", **sizes, reduces_once=how)["gradients"] for how in (True, False))
    assert once - each == 52_000_000_000


@pytest.mark.parametrize("name", ["zero1", "zero1_offload", "zero2", "zero2_offload"])
def test_the_buckets_of_the_launch_configurations_are_those_of_the_plan(name):
    zero = json.loads(local_or_shipped(f"ds_configs/{name}.json").read_text())["zero_optimization"]
    assert zero["reduce_bucket_size"] == REDUCE_BUCKET
    assert zero.get("overlap_comm", False) == (zero["stage"] == 2), "two buckets"


@pytest.mark.outside(
    "https://github.com/deepspeedai/DeepSpeed/issues/6752",
    "a configuration of DeepSpeed that trains with weights and optimizer on NVMe disks",
    "`ds_configs/zero3_nvme.json`, whose names and values DeepSpeed takes",
)
def test_deepspeed_takes_the_configuration_for_nvme_disks():
    zero = json.loads(local_or_shipped("ds_configs/zero3_nvme.json").read_text())["zero_optimization"]
    optimizer, weights = zero["offload_optimizer"], zero["offload_param"]
    assert (optimizer["device"], weights["device"], weights["max_in_cpu"]) == ("nvme", "nvme", 0)
    zero_config = pytest.importorskip("deepspeed.runtime.zero.config")
    known = {name: value for name, value in zero.items() if value != "auto"}
    assert zero_config.DeepSpeedZeroConfig(**known).offload_optimizer.buffer_count == 4


@pytest.mark.thorough
def test_what_fits_the_assumed_device_is_marked(tmp_path, capsys):
    recipe = ["--config", "recipes/experiments/tr1/13b.yaml"]
    main(["plan", "pretrain", *recipe, "--assumed_vocab_size", "50257", "--num_processes", "16"])
    lines = capsys.readouterr().out.splitlines()
    (ranks,) = (" ".join(line.split()) for line in lines if line.startswith("possible ranks"))
    assert ranks == "possible ranks 1 2 4 8 16 for every batch"
    rows = {line.split()[0]: line.split()[-1] for line in lines if line.count(".") > 3}
    assert rows == {"ddp": "NO", "fsdp2": "yes", "zero1": "yes", "zero2": "yes", "zero3": "yes"}
    once = plan_recipe("pretrain", recipe, num_processes=16, assumed_vocab_size=50_257)["memory"]["fsdp2"]
    each = ["--accelerator_config", '{"gradient_accumulation_kwargs": {"sync_each_batch": true}}']
    always = plan_recipe("pretrain", recipe + each, num_processes=16, assumed_vocab_size=50_257)["memory"]["fsdp2"]
    assert once["gradients"] - always["gradients"] == 2 * 13_104_512_000


def test_attention_uses_the_chosen_implementation(hmm):
    data = DataSettings(hmm=hmm, length=7).load()
    for name in ("sdpa", "eager", "flex_attention"):
        assert LlamaForCausalLM(ModelSettings("d1", attention=name).config(data)).config._attn_implementation == name
    with pytest.raises(InputError, match="attention is 'flash'; expected one of sdpa, eager, flex_attention, flash_"):
        ModelSettings("d1", attention="flash")
