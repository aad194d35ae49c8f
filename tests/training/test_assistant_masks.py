"""The loss of fine-tuning is on what the assistant says, token by token, with every chat template."""

import pytest
import torch
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM
from trl.chat_template_utils import is_chat_template_prefix_preserving, qwen2_5_chat_template

from hmm_datasets.errors import InputError
from hmm_datasets.text.tokenizers.bpe import train_bpe
from hmm_datasets.text.tokenizers.chat_templates import end_of_turn
from hmm_datasets.text.tokenizers.named_templates import NAMES, set_chat_template
from hmm_datasets.training.post_training.trainers import FineTuner
from hmm_datasets.training.settings import SFTSettings
from hmm_datasets.training.vocabulary import add_embeddings

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Who is it?"},
    {"role": "assistant", "content": "It is Tom."},
    {"role": "user", "content": "How many are they?"},
    {"role": "assistant", "content": '<tool_call>\n{"name": "count", "arguments": {}}\n</tool_call>'},
    {"role": "tool", "content": "three"},
    {"role": "assistant", "content": "They are three."},
]
SAID = [message["content"] for message in TALK if message["role"] == "assistant"]
WRITTEN = {
    "default": ("", "<|end|>"),
    "chatml": ("", "<|im_end|>"),
    "llama3": ("", "<|eot_id|>"),
    # TRL's marks begin before the line break that begins an answer, and end after the one that follows it.
    "qwen2.5": ("\n", "<|im_end|>\n"),
    "qwen3": ("<think>\n\n</think>\n\n", "<|im_end|>\n"),
}
"""What a template writes before and after the words of the assistant that is its to say."""


def tokenizer_for(template: str | None):
    tokenizer = train_bpe([message["content"] for message in TALK] * 9, 300, show_progress=False)
    return tokenizer, [] if template is None else set_chat_template(tokenizer, template)


def trained_pieces(tokenizer, new, folder, **settings) -> tuple[list[str], str]:
    """The stretches of text that the loss is on, and the whole text, as the trainer has prepared them."""
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=300, **sizes))
    add_embeddings(model, tokenizer, new)
    trainer = FineTuner(
        model=model,
        args=SFTSettings(str(folder), max_steps=1, global_batch_size=1, per_device_train_batch_size=1,
                         report_to="none", **settings),
        train_dataset=Dataset.from_list([{"messages": TALK}]),
        processing_class=tokenizer,
    )  # fmt: skip
    row = trainer.train_dataset[0]
    pieces, before = [], -100
    for token, label in zip(row["input_ids"], row["labels"], strict=True):
        assert label in (token, -100)
        if label != -100:
            pieces = [*pieces, []] if before == -100 else pieces
            pieces[-1].append(token)
        before = label
    return [tokenizer.decode(piece) for piece in pieces], tokenizer.decode(row["input_ids"])


@pytest.mark.thorough
@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("template", NAMES)
def test_the_loss_is_on_exactly_what_the_assistant_says_and_on_the_end_of_its_turn(template, packing, tmp_path):
    tokenizer, new = tokenizer_for(template)
    found, text = trained_pieces(tokenizer, new, tmp_path, packing=packing, max_length=512)
    before, after = WRITTEN[template]
    assert found == [f"{before}{words}{after}" for words in SAID]
    assert all(message["content"] in text for message in TALK)
    assert tokenizer.convert_ids_to_tokens(end_of_turn(tokenizer)) == after.strip()


@pytest.mark.parametrize("template", NAMES)
def test_what_the_assistant_says_follows_the_prompt_that_generation_begins_with(template):
    """And the special tokens of the template are single tokens, of which none is made of bytes."""
    tokenizer, new = tokenizer_for(template)
    prompt = tokenizer.apply_chat_template(TALK[:2], add_generation_prompt=True, tokenize=False)
    whole = tokenizer.apply_chat_template(TALK[:3], tokenize=False)
    assert whole.startswith(prompt)
    assert whole[len(prompt) :].strip().removeprefix("<think>\n\n</think>\n\n").startswith(SAID[0])
    assert all(len(tokenizer.encode(token)) == 1 for token in new)
    assert end_of_turn(tokenizer) in tokenizer.all_special_ids


@pytest.mark.parametrize("template", ["default", "chatml", "qwen2.5", "qwen3"])
def test_a_template_with_tool_turns_writes_earlier_turns_the_same_when_more_follow(template):
    assert is_chat_template_prefix_preserving(tokenizer_for(template)[0])


def test_a_template_that_trl_knows_is_marked_by_it(tmp_path):
    tokenizer, new = tokenizer_for("qwen2.5")
    tokenizer.chat_template = qwen2_5_chat_template
    found, _ = trained_pieces(tokenizer, new, tmp_path)
    assert found == [f"\n{words}<|im_end|>\n" for words in SAID]


def test_the_bases_own_template_is_trained_on_if_marked_and_else_refused_with_remedies_that_work(tmp_path):
    tokenizer, _ = tokenizer_for(None)
    assert trained_pieces(tokenizer, [], tmp_path)[0] == [f"{words}<|end|>" for words in SAID]
    tokenizer.chat_template = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
    with pytest.raises(InputError) as caught:
        trained_pieces(tokenizer, [], tmp_path)
    told = str(caught.value)
    assert "its chat template has no {% generation %} marks" in told
    assert "--chat_template default or chatml or llama3" in told
    assert "--assistant_only_loss false" in told
    (everything,), text = trained_pieces(tokenizer, [], tmp_path, assistant_only_loss=False)
    assert everything == text
    tokenizer.chat_template = None
    with pytest.raises(InputError, match="its tokenizer has no chat template, which conversations need; choose"):
        trained_pieces(tokenizer, [], tmp_path)


@pytest.mark.thorough
def test_noise_on_embeddings_changes_the_loss_in_training_and_not_in_evaluation(tmp_path):
    """NEFTune (Jain et al., 2023)."""
    tokenizer, _ = tokenizer_for(None)
    rows = Dataset.from_list([{"messages": TALK}])
    found = {}
    for noise in (None, 50.0):
        torch.manual_seed(0)
        sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
        trainer = FineTuner(
            model=LlamaForCausalLM(LlamaConfig(vocab_size=300, initializer_range=0.5, **sizes)),
            args=SFTSettings(str(tmp_path / str(noise)), max_steps=1, global_batch_size=1, learning_rate=0.0,
                             per_device_train_batch_size=1, logging_steps=1, report_to="none", save_strategy="no",
                             neftune_noise_alpha=noise),
            train_dataset=rows,
            eval_dataset=rows,
            processing_class=tokenizer,
        )  # fmt: skip
        trainer.train()
        found[noise] = trainer.state.log_history[0]["loss"], trainer.evaluate()["eval_loss"]
    assert found[None][0] == pytest.approx(found[None][1], rel=1e-5)
    assert abs(found[50.0][0] - found[None][0]) > 1e-3
    assert found[50.0][1] == pytest.approx(found[None][1], rel=1e-6)
