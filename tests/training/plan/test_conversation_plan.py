"""`hmm-datasets plan` of fine-tuning: the rows and tokens that the trainer then trains on."""

import pytest
import torch
from tiny_runs import conversations
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from hmm_datasets.errors import InputError
from hmm_datasets.operations.planning import plan_recipe
from hmm_datasets.runtime.shipped import local_or_shipped
from hmm_datasets.text.tokenizers.bpe import train_bpe
from hmm_datasets.text.tokenizers.named_templates import set_chat_template
from hmm_datasets.training.model_configs import model_config
from hmm_datasets.training.post_training.conversations import conversation_splits, prepared_rows
from hmm_datasets.training.post_training.trainers import FineTuner
from hmm_datasets.training.settings import SFTSettings
from hmm_datasets.training.vocabulary import add_embeddings

COUNT = 40
WAYS = {
    "cut": {"max_length": 40},
    "cut at the beginning": {"max_length": 40, "truncation_mode": "keep_end"},
    "packed": {"packing": True, "max_length": 128},
    "whole, all words": {"max_length": 512, "assistant_only_loss": False},
}


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("base")
    texts = [message["content"] for row in conversations() for message in row["messages"]]
    tokenizer = train_bpe(texts, 400, show_progress=False)
    torch.manual_seed(0)
    LlamaForCausalLM(model_config("d2", vocab_size=len(tokenizer), max_length=512)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def settings_file(base, folder, **given) -> str:
    content = {
        "model": base,
        "conversations": "instructions-sample",
        "max_conversations": COUNT,
        "output_dir": folder / "run",
        "num_train_epochs": 3,
        "global_batch_size": 4,
        "per_device_train_batch_size": 2,
        "report_to": "none",
    }
    path = folder / "sft.yaml"
    path.write_text("".join(f"{name}: {value}\n" for name, value in (content | given).items()))
    return str(path)


def plan_of(file, *flags) -> dict:
    return plan_recipe("sft", ["--config", str(file), *flags])


@pytest.mark.thorough
@pytest.mark.parametrize("template", [None, "chatml"])
@pytest.mark.parametrize("given", WAYS.values(), ids=WAYS)
def test_the_plan_of_a_settings_file_is_that_of_the_trainer(base, given, template, tmp_path):
    chosen = {} if template is None else {"chat_template": template}
    found = plan_of(settings_file(base, tmp_path, **given, **chosen))
    tokenizer, model = AutoTokenizer.from_pretrained(base), AutoModelForCausalLM.from_pretrained(base)
    if template is not None:
        add_embeddings(model, tokenizer, set_chat_template(tokenizer, template))
    train, _ = conversation_splits("instructions-sample", max_conversations=COUNT)
    sizes = {"num_train_epochs": 3, "global_batch_size": 4, "per_device_train_batch_size": 2, "report_to": "none"}
    settings = SFTSettings(str(tmp_path / "run"), **sizes, **given)
    trainer = FineTuner(model=model, args=settings, train_dataset=train, processing_class=tokenizer)
    planned = trainer.plan.to_dict()
    assert planned == {name: found[name] for name in planned}
    rows, expected = prepared_rows(train, tokenizer, settings), trainer.plan.data._rows
    assert [row["labels"] for row in rows] == [row["labels"] for row in expected]
    assert found["memory"]["ddp"]["optimizer"] == 8 * found["parameters"]


@pytest.mark.thorough
def test_the_plan_with_an_adapter_counts_what_is_trained(base, tmp_path):
    pytest.importorskip("peft")
    plain = plan_of(settings_file(base, tmp_path))
    found = plan_of(settings_file(base, tmp_path, use_peft="true", lora_r=2), "--assumed_rate", "H200")
    trained = found["parameters"] - plain["parameters"]
    assert 0 < trained < plain["parameters"] / 10
    assert found["memory"]["ddp"]["optimizer"] == 8 * trained
    assert found["memory"]["ddp"]["gradients"] == 4 * trained
    assert found["tokens"] == plain["tokens"]
    matrices = plain["parameters"] - 400 * 128  # without the input embedding
    assert plain["flops_per_token"] - found["flops_per_token"] == 2 * matrices - 6 * trained
    assert found["time"]["seconds"] > 0
    with pytest.raises(InputError, match="use_peft: an adapter has no embeddings, but the chat template chatml needs"):
        plan_of(settings_file(base, tmp_path, use_peft="true", chat_template="chatml"))


@pytest.mark.thorough
@pytest.mark.parametrize(("packing", "rows"), [(False, 28), (True, 12)])
def test_a_budget_of_examples_counts_conversations_also_if_they_are_packed(base, tmp_path, packing, rows):
    given = {"packing": str(packing).lower(), "max_length": 128, "num_train_epochs": 0, "train_budget": "30 examples"}
    found = plan_of(settings_file(base, tmp_path, **given))
    assert found["budget"] == {"examples": 30}
    assert found["rows"] == rows
    assert found["epochs"] < 1


@pytest.mark.thorough
def test_the_shipped_settings_for_lima_are_three_epochs(base, tmp_path):
    """LIMA itself is given only to those who accept its terms, so another corpus stands for it."""
    assert "CC BY-NC-SA 4.0" in local_or_shipped("lima/sft.yaml", "recipes").read_text()
    flags = ["--model", base, "--conversations", "instructions-sample", "--output_dir", str(tmp_path)]
    found = plan_of("lima/sft.yaml", *flags)
    assert found["budget"] == {"num_train_epochs": 3}
    assert 2.5 < found["epochs"] <= 3
    assert found["tokens"] > 0
