"""A published model, SmolLM2-135M-Instruct in Q4_1, is read rightly, answers, is measured and is fine-tuned."""

import copy
import json
import math
import re
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from datasets import Dataset
from transformers import AutoModelForCausalLM

from hmm_datasets.evaluation.chat.chat_model import ChatModel
from hmm_datasets.evaluation.chat.sampling import Sampling
from hmm_datasets.evaluation.chat.session import answer_once
from hmm_datasets.evaluation.document_windows import DocumentWindows
from hmm_datasets.evaluation.text import measure_text
from hmm_datasets.files import file_digest, read_json
from hmm_datasets.text.tokenizers.chat_encoding import encode_conversation
from hmm_datasets.text.tokenizers.chat_templates import end_of_turn, marked_template, stop_tokens
from hmm_datasets.training.post_training.conversations import prepared_rows
from hmm_datasets.training.post_training.trainers import FineTuner
from hmm_datasets.training.pretrained import load_pretrained
from hmm_datasets.training.run import train_and_save
from hmm_datasets.training.settings import SFTSettings

pytestmark = pytest.mark.thorough

PAGES = Path(__file__).parents[2] / "docs"
TALK = [
    {"role": "user", "content": "What is 2 + 2?"},
    {"role": "assistant", "content": "It is 4."},
    {"role": "user", "content": "Sure?"},
    {"role": "assistant", "content": "Yes."},
]


@pytest.fixture(scope="module")
def loaded(smollm2) -> ChatModel:
    return ChatModel(str(smollm2), Sampling(temperature=0, max_new_tokens=16))


def test_special_tokens_and_the_end_of_a_turn_are_those_that_were_published(loaded):
    tokenizer, model = loaded.tokenizer, loaded.model
    assert tokenizer.convert_ids_to_tokens([0, 1, 2]) == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert (tokenizer.unk_token_id, tokenizer.bos_token_id) == (0, 1)
    assert tokenizer.eos_token_id == tokenizer.pad_token_id == end_of_turn(tokenizer) == 2
    assert stop_tokens(tokenizer, model.generation_config) == [2]
    assert len(tokenizer) == model.config.vocab_size == 49152
    assert tokenizer.encode("a<|im_end|>", add_special_tokens=True)[-1] == 2
    assert encode_conversation(tokenizer, TALK[:1])[:2] == [1, *tokenizer.encode("system")]


def test_text_is_cut_at_every_digit_and_comes_back(loaded):
    """No token of the vocabulary has a digit beside anything else, so the tokenizer was trained on text cut so."""
    tokenizer = loaded.tokenizer
    texts = [page.read_text(encoding="utf-8") for page in sorted(PAGES.rglob("*.md"))]
    assert [tokenizer.decode(tokens) for tokens in tokenizer(texts)["input_ids"]] == texts
    assert {token for token in tokenizer.get_vocab() if re.search(r"[0-9]", token)} == set("0123456789")
    assert tokenizer.tokenize("x12  34") == ["x", "1", "2", "ĠĠ", "3", "4"]


def test_it_answers_in_its_own_chat_template_and_stops(loaded, capsys):
    answer_once(loaded, "What is the capital of France?", None)
    assert capsys.readouterr().out.strip() == "The capital of France is Paris."


def test_the_loss_on_text_is_that_of_a_plain_loop(loaded):
    tokenizer, model = loaded.tokenizer, loaded.model
    text = (PAGES / "reference" / "glossary.md").read_text(encoding="utf-8")[:1500]
    windows = DocumentWindows([text], tokenizer, 256, 255)
    found = measure_text(model, tokenizer, windows, Accelerator(cpu=True), batch_size=2)
    tokens, nats = [tokenizer.bos_token_id, *tokenizer.encode(text)], 0.0
    for end in range(256, len(tokens) + 255, 255):
        last = min(end, len(tokens))
        window = torch.tensor([tokens[max(0, last - 256) : last]])
        with torch.no_grad():
            logits = model(window).logits[0, :-1]
        losses = torch.nn.functional.cross_entropy(logits, window[0, 1:], reduction="none")
        nats += losses[end - 255 - last :].sum().item() if last < end else losses.sum().item()
    assert found["num_tokens"] == len(tokens) - 1
    assert found["nats_per_token"] == pytest.approx(nats / (len(tokens) - 1), abs=1e-4)
    assert found["bits_per_byte"] == pytest.approx(nats / math.log(2) / len(text.encode()), abs=1e-4)
    assert found["nats_per_token"] < 4


def test_a_lora_run_has_the_loss_on_the_assistants_words_and_a_card_that_names_the_file(smollm2, loaded, tmp_path):
    tokenizer = loaded.tokenizer
    own = tokenizer.chat_template
    settings = SFTSettings(
        str(tmp_path), max_steps=2, global_batch_size=1, per_device_train_batch_size=1, max_length=128,
        activation_checkpointing=False, report_to="none", use_peft=True, lora_r=2, learning_rate=1e-3
    )  # fmt: skip
    rows = Dataset.from_list([{"messages": TALK}] * 2)
    prepared = prepared_rows(rows, tokenizer, settings)[0]
    said = [token for token, label in zip(prepared["input_ids"], prepared["labels"], strict=True) if label != -100]
    assert tokenizer.decode(said) == "It is 4.<|im_end|>Yes.<|im_end|>"
    assert prepared["input_ids"] == tokenizer.apply_chat_template(TALK, return_dict=False)
    assert marked_template(tokenizer) != own
    trainer = FineTuner(
        model=copy.deepcopy(loaded.model), args=settings, train_dataset=rows, processing_class=tokenizer
    )
    assert trainer.train_dataset[0]["labels"] == prepared["labels"]
    train_and_save(trainer, settings={"model": str(smollm2)}, data={"count": 2}, base=str(smollm2))
    assert (tmp_path / "chat_template.jinja").read_text() == own
    assert json.loads((tmp_path / "adapter_config.json").read_text())["base_model_name_or_path"] == str(smollm2)
    base = read_json(tmp_path / "run.json")["lineage"]["base"]
    assert (base["weights"], base["quantization"]) == ({smollm2.name: file_digest(smollm2)}, "Q4_1")
    card = (tmp_path / "README.md").read_text()
    assert smollm2.name in card
    assert file_digest(smollm2) in card
    assert "Q4_1, read into float32" in card
    assert "\nlicense: apache-2.0\n" in card, "as the file states"
    tuned = load_pretrained(AutoModelForCausalLM, str(tmp_path))
    tokens = torch.tensor([prepared["input_ids"]])
    losses = [model(tokens, labels=torch.tensor([prepared["labels"]])).loss.item() for model in (loaded.model, tuned)]
    assert losses[1] < losses[0]
