"""A model that was published in bfloat16 is trained in float32, in every trainer, unless bfloat16 is asked for."""

import pytest
import torch
from safetensors.torch import load_file
from tiny_trainers import trainer_of
from transformers import AutoModelForCausalLM, AutoTokenizer

from hmm_datasets.errors import InputError
from hmm_datasets.files import read_json
from hmm_datasets.training.precision import types_of_weights
from hmm_datasets.training.run import train_and_save
from hmm_datasets.training.settings import PretrainSettings, SFTSettings

peft = pytest.importorskip("peft")


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


@pytest.mark.thorough
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


@pytest.mark.thorough
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


@pytest.mark.thorough
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
