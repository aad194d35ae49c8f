"""A model that was published in bfloat16 is trained in float32, in every trainer, unless bfloat16 is asked for."""

from functools import partial

import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from tiny_chat import WORDS, message
from tiny_runs import random_rows
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.data.data_collator import default_data_collator

from hmm_datasets.errors import InputError
from hmm_datasets.files import read_json
from hmm_datasets.training.post_training.trainers import FineTuner, PolicyTuner, PreferenceTuner
from hmm_datasets.training.precision import types_of_weights
from hmm_datasets.training.run import train_and_save
from hmm_datasets.training.settings import DPOSettings, GRPOSettings, PretrainSettings, SFTSettings
from hmm_datasets.training.trainer import Pretrainer

peft = pytest.importorskip("peft")

ASKED = [(message("user", f"Say {one} and {two}."), one, two) for one in WORDS for two in WORDS if one != two]


def trainer_of(name, folder, model, tokenizer, **given):
    defaults = {
        "max_steps": 8,
        "global_batch_size": 8,
        "per_device_train_batch_size": 8,
        "learning_rate": 1e-5 if name in ("sft", "midtrain") else 1e-6,
        "bf16": False,
        "save_strategy": "no",
        "report_to": "none",
        "logging_steps": 8,
    }
    given = defaults | given
    if name == "midtrain":
        settings = PretrainSettings(str(folder), warmup_steps=0, **given)
        return Pretrainer(
            model=model, args=settings, train_dataset=random_rows(64), data_collator=default_data_collator
        )
    if name == "sft":
        rows = [{"messages": asked + message("assistant", f"{one} {two}")} for asked, one, two in ASKED]
        kind, settings = FineTuner, SFTSettings(str(folder), max_length=48, **given)
    elif name == "dpo":
        rows = [
            {"prompt": asked, "chosen": message("assistant", one), "rejected": message("assistant", two)}
            for asked, one, two in ASKED
        ]
        kind, settings = PreferenceTuner, DPOSettings(str(folder), max_length=48, **given)
    else:
        rows = [{"prompt": asked} for asked, _, _ in ASKED]
        kind = partial(PolicyTuner, reward_funcs=[lambda completions, **_: [len(str(one)) for one in completions]])
        settings = GRPOSettings(str(folder), num_generations=4, max_completion_length=8, **given)
    return kind(model=model, args=settings, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)


@pytest.fixture(scope="module")
def low(base, tmp_path_factory):
    """Folder of the tiny chat model in bfloat16."""
    folder = tmp_path_factory.mktemp("low")
    AutoModelForCausalLM.from_pretrained(base).bfloat16().save_pretrained(folder)
    AutoTokenizer.from_pretrained(base).save_pretrained(folder)
    return folder


def train(name, folder, low, tokenizer, loaded=None, **given):
    """Train the model; the trainer, the weights after it, and the share of its layers' weights that are others."""
    torch.manual_seed(0)
    trainer = trainer_of(name, folder, AutoModelForCausalLM.from_pretrained(low, dtype=loaded), tokenizer, **given)
    train_and_save(trainer, settings={}, data={}, base=str(low))
    before, after = load_file(low / "model.safetensors"), load_file(folder / "model.safetensors")
    layers = [key for key in before if ".layers." in key]
    changed = sum((before[key].float() != after[key].float()).sum().item() for key in layers)
    return trainer, after, changed / sum(before[key].numel() for key in layers)


def types_of_moments(trainer):
    states = trainer.optimizer.state.values()
    return {value.dtype for state in states for value in state.values() if value.dim()}


@pytest.mark.outside(
    "https://github.com/huggingface/sentence-transformers/pull/3773",
    "train a model that is published in bfloat16 with float32 weights, since transformers 5 loads it as it is",
    "weights and moments are float32 in every trainer; `--dtype bfloat16` asks for the other",
)
@pytest.mark.parametrize("name", ["sft", "dpo", "grpo", "midtrain"])
def test_every_trainer_changes_the_weights_of_a_bfloat16_model_at_small_learning_rates(name, low, tokenizer, tmp_path):
    trainer, after, share = train(name, tmp_path / "run", low, tokenizer)
    assert share > 0.99
    assert {weight.dtype for weight in after.values()} == types_of_moments(trainer) == {torch.float32}
    assert read_json(tmp_path / "run" / "run.json")["types"] == {"weights": "float32"}
    assert "| Precision | fp32; weights and moments in float32 |" in (tmp_path / "run" / "README.md").read_text()
    # It is the run of the same model in float32, to the bit.
    _, expected, _ = train(name, tmp_path / "wide", low, tokenizer, loaded=torch.float32)
    assert all(torch.equal(after[key], expected[key]) for key in after)


def test_bfloat16_weights_have_to_be_asked_for_and_lose_small_updates(low, tokenizer, tmp_path, monkeypatch):
    trainer, after, share = train("midtrain", tmp_path, low, tokenizer, loaded=torch.float32, dtype="bfloat16")
    assert share < 0.2
    assert {weight.dtype for weight in after.values()} == types_of_moments(trainer) == {torch.bfloat16}
    assert read_json(tmp_path / "run.json")["types"] == {"weights": "bfloat16"}
    with pytest.raises(InputError, match="dtype is 'float16'; expected float32 or bfloat16"):
        SFTSettings(str(tmp_path), dtype="float16")
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(InputError, match="dtype is bfloat16, but DeepSpeed and FSDP2 keep a float32 copy"):
        PretrainSettings(str(tmp_path), dtype="bfloat16")


def test_the_base_of_an_adapter_stays_as_its_file_has_it(low, tokenizer, tmp_path):
    def types(model):
        trainer = trainer_of("sft", tmp_path, model, tokenizer, **({} if hasattr(model, "peft_config") else lora))
        weights = trainer.model.named_parameters()
        assert all(("lora" in name) == weight.requires_grad for name, weight in weights)
        return types_of_weights(trainer.model)

    lora = {"use_peft": True}
    mixed = {"weights": "float32", "frozen": "bfloat16"}
    assert types(AutoModelForCausalLM.from_pretrained(low)) == mixed
    config = peft.LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear")
    made = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(low), config, autocast_adapter_dtype=False)
    assert types_of_weights(made) == {"weights": "bfloat16"}
    assert types(made) == mixed
    lora["dtype"] = "float32"
    assert types(AutoModelForCausalLM.from_pretrained(low)) == {"weights": "float32"}
