"""LoRA: only the adapter is trained and saved, and a stopped run continues as an undisturbed one."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_runs import CONVERSATIONS, conversations
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaForCausalLM

from hmm_datasets.errors import InputError
from hmm_datasets.files import read_json, read_jsonl
from hmm_datasets.hub.kinds.recognition import detect_kind
from hmm_datasets.text.tokenizers.bpe import train_bpe
from hmm_datasets.training.content import weights_digest
from hmm_datasets.training.model_configs import model_config
from hmm_datasets.training.plan.flops import unit_flops
from hmm_datasets.training.post_training.lora import save_merged, with_adapter
from hmm_datasets.training.post_training.trainers import FineTuner
from hmm_datasets.training.pretrained import load_pretrained
from hmm_datasets.training.run import train_and_save
from hmm_datasets.training.settings import SFTSettings

pytest.importorskip("peft")


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("base")
    texts = [message["content"] for row in conversations() for message in row["messages"]]
    tokenizer = train_bpe(texts, 400, show_progress=False)
    torch.manual_seed(0)
    config = model_config("d1", vocab_size=len(tokenizer), max_length=48, pad_token_id=tokenizer.pad_token_id)
    model = LlamaForCausalLM(config)
    model.generation_config.eos_token_id = [0, 5]
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def trainer(base, folder, steps=6, **given) -> FineTuner:
    torch.manual_seed(1)
    settings = {
        "max_steps": steps,
        "global_batch_size": 4,
        "per_device_train_batch_size": 2,
        "max_length": 48,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "logging_steps": 1,
        "save_steps": 3,
        "report_to": "none",
        "use_peft": True,
        "lora_r": 4,
    }
    return FineTuner(
        model=AutoModelForCausalLM.from_pretrained(base),
        args=SFTSettings(str(folder), **settings | given),
        train_dataset=conversations(),
        processing_class=AutoTokenizer.from_pretrained(base),
    )


def run(base, folder, steps=6, **given):
    summary = train_and_save(trainer(base, folder, steps, **given), settings={}, data={"count": CONVERSATIONS},
                             base=base)  # fmt: skip
    losses = {row["step"]: row["loss"] for row in read_jsonl(folder / "history.jsonl") if "loss" in row}
    return summary, losses


@pytest.fixture(scope="module")
def undisturbed(base, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    return folder, *run(base, folder)


@pytest.mark.thorough
@pytest.mark.parametrize("packing", [False, True])
def test_a_stopped_run_continues_with_the_losses_and_adapter_of_an_undisturbed_one(
    packing, base, undisturbed, tmp_path
):
    given = {"packing": packing}
    if packing:
        whole = tmp_path / "whole"
        expected = whole, *run(base, whole, **given)
    else:
        expected = undisturbed
    folder = tmp_path / "stopped"
    run(base, folder, steps=3, **given)
    summary, losses = run(base, folder, **given)
    assert summary["resumed_from"] == "checkpoint-3"
    assert summary["tokens"] == summary["planned_tokens"] == expected[1]["tokens"]
    assert losses == expected[2]
    adapters = [load_file(one / "adapter_model.safetensors") for one in (folder, expected[0])]
    assert all(torch.equal(adapters[0][name], weight) for name, weight in adapters[1].items())
    with pytest.raises(InputError, match=r"settings.lora_r was 4 and is 8"):
        run(base, folder, steps=9, lora_r=8, **given)


@pytest.mark.thorough
def test_the_folder_has_the_adapter_a_card_and_where_generation_stops(base, undisturbed):
    folder, summary, losses = undisturbed
    assert losses[6] < losses[1]
    assert not (folder / "model.safetensors").exists()
    trained = sum(weight.numel() for weight in load_file(folder / "adapter_model.safetensors").values())
    assert summary["shard_sizes"][0]["optimized"] == trained < summary["parameters"]["total"] / 10
    assert GenerationConfig.from_pretrained(folder).eos_token_id == [0, 5]
    assert "fine-tun" in (folder / "README.md").read_text()
    assert not (folder / "checkpoint-3" / "README.md").exists()
    assert read_json(folder / "run.json")["lineage"]
    assert "adapter_model.safetensors" in detect_kind(folder).files
    assert load_pretrained(AutoConfig, str(folder)).hidden_size == load_pretrained(AutoConfig, base).hidden_size


def test_a_merged_model_computes_what_the_model_with_its_adapter_does(base, undisturbed):
    folder = undisturbed[0]
    merged = save_merged(folder)
    assert not (merged / "adapter_config.json").exists()
    tokens = torch.arange(30)[None]
    models = [AutoModelForCausalLM.from_pretrained(one) for one in (base, folder, merged)]
    with torch.no_grad():
        plain, adapted, whole = (model(tokens).logits for model in models)
    torch.testing.assert_close(whole, adapted, rtol=1e-4, atol=1e-5)
    assert (plain - whole).abs().max() > 0.01
    assert {*GenerationConfig.from_pretrained(merged).eos_token_id} == {0, 5}  # transformers before 5.18 repeats one
    assert AutoTokenizer.from_pretrained(merged).chat_template is not None


def test_weights_that_are_not_trained_cost_four_flops_a_token(base, tmp_path):
    model = trainer(base, tmp_path).model
    trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    frozen = (
        sum(weight.numel() for weight in model.parameters()) - trained - model.get_input_embeddings().weight.numel()
    )
    assert unit_flops(model)[0] == 6 * trained + 4 * frozen


def test_settings_that_make_no_sense_are_refused(tmp_path):
    for given, told in (
        ({"use_peft": True, "lora_r": 0}, "lora_r is 0; expected 1 or more"),
        ({"use_peft": True, "lora_dropout": 1.0}, "lora_dropout is 1; expected 0 or more, and less than 1"),
        ({"merge_adapter": True}, "merge_adapter is set, but has no effect without use_peft"),
    ):
        with pytest.raises(InputError, match=told):
            SFTSettings(str(tmp_path), **given)


def test_an_adapter_finds_its_model_from_any_folder(base, undisturbed, tmp_path, monkeypatch):
    monkeypatch.chdir(Path(base).parent)
    new = with_adapter(
        AutoModelForCausalLM.from_pretrained(Path(base).name),
        SFTSettings(str(tmp_path), use_peft=True, report_to="none", global_batch_size=8),
    )
    assert new.peft_config["default"].base_model_name_or_path == base
    # A folder of runs as they were written before, with paths from where they were trained, somewhere else.
    shutil.copytree(base, tmp_path / "moved" / "outputs" / "base")
    adapter = tmp_path / "moved" / "outputs" / "lora"
    shutil.copytree(undisturbed[0], adapter, ignore=shutil.ignore_patterns("checkpoint-*"))
    config = read_json(adapter / "adapter_config.json")
    (adapter / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": "outputs/base"}))
    (adapter / "digests.json").unlink()
    monkeypatch.chdir(tmp_path)
    tokens = torch.arange(12).view(1, -1)
    logits = [load_pretrained(AutoModelForCausalLM, str(one))(tokens).logits for one in (undisturbed[0], adapter)]
    torch.testing.assert_close(*logits)
    assert load_pretrained(AutoConfig, "moved/outputs/lora").hidden_size == 64
    assert weights_digest("moved/outputs/lora") == weights_digest(str(undisturbed[0]))
