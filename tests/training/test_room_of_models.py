"""Rows are limited to the positions of the model, and what does not fit is counted, named, or refused if it is all."""

import re

import pytest
from datasets import Dataset
from tiny_chat import message, save_tiny_chat
from transformers import LlamaConfig, LlamaForCausalLM

from hmm_datasets.errors import InputError
from hmm_datasets.training.post_training.tokenized import (
    fitting_prompts,
    limit_rows,
    tokenized_conversations,
    tokenized_pairs,
)
from hmm_datasets.training.post_training.trainers import FineTuner
from hmm_datasets.training.settings import DPOSettings, SFTSettings

ROOM = 64
LONG, SHORT = "one two three four " * 20, "one"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return save_tiny_chat(tmp_path_factory.mktemp("model"))


def settings(kind, folder, **given):
    return kind(str(folder), max_steps=1, report_to="none", per_device_train_batch_size=1, **given)


@pytest.mark.parametrize(("asked", "limited"), [(1024, ROOM), (None, ROOM), (32, 32)])
def test_rows_are_limited_to_the_positions_of_the_model_for_sft_and_dpo(asked, limited, tmp_path, capsys):
    for kind in (SFTSettings, DPOSettings):
        chosen = settings(kind, tmp_path, max_length=asked)
        limit_rows(chosen, LlamaConfig(max_position_embeddings=ROOM))
        assert chosen.max_length == limited
        said = "" if asked == 32 else f"max_length {ROOM}, not {asked}: the model has {ROOM} positions\n"
        assert capsys.readouterr().out == said


def test_fine_tuning_reads_at_most_as_many_tokens_as_the_model_has_positions(tokenizer, tmp_path, capsys):
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
    rows = [{"messages": message("user", SHORT) + message("assistant", LONG)}, {"messages": chats(2, 2)[1]}]
    for packing in (False, True):
        model = LlamaForCausalLM(
            LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=ROOM, pad_token_id=1, **sizes)
        )
        args = settings(SFTSettings, tmp_path, max_length=1024, packing=packing, global_batch_size=1)
        trainer = FineTuner(model=model, args=args, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)
        tokens = [trainer.train_dataset[number]["input_ids"] for number in range(len(trainer.train_dataset))]
        assert max(map(len, tokens)) == ROOM
        assert f"max_length {ROOM}, not 1024: the model has {ROOM} positions" in capsys.readouterr().out


def chats(count, long):
    """Conversations, of which every `long`-th has a question that fills the model."""
    texts = [LONG if number % long == 0 else SHORT for number in range(count)]
    return [message("user", text) + message("assistant", "two") for text in texts]


@pytest.mark.outside(
    "https://github.com/huggingface/trl/issues/6668",
    "to be told when truncation leaves no label, where the loss is 0.0 and the run looks successful",
    "such conversations are counted and named: 30 of 60 train conversations have no word of the assistant within "
    "max_length and are left out",
)
@pytest.mark.outside(
    "https://github.com/huggingface/trl/issues/1053",
    "no `nan` as held-out loss where instances are longer than the window",
    "if no row has a label left, training ends in one line before it begins",
)
def test_conversations_whose_prompt_fills_the_window_are_counted_and_named(tokenizer, tmp_path, capsys):
    chosen = settings(SFTSettings, tmp_path, max_length=ROOM)
    rows = Dataset.from_list([{"messages": chat} for chat in chats(60, 2)])
    assert len(tokenized_conversations(rows, tokenizer, chosen, packing=False)) == 30
    line = capsys.readouterr().out
    assert re.match(
        r"30 of 60 train conversations .* are left out \(rows 0, 2, 4, 6, 8, \.\.\.\); raise max_length", line
    )
    chosen.truncation_mode = "keep_end"
    assert len(tokenized_conversations(rows, tokenizer, chosen, packing=False)) == 60
    chosen.truncation_mode = "keep_start"
    with pytest.raises(InputError, match="all 30 eval conversations have no word of the assistant within max_length"):
        tokenized_conversations(rows.select(range(0, 60, 2)), tokenizer, chosen, packing=False, name="eval")


def test_pairs_whose_prompt_fills_the_window_are_counted_and_named(tokenizer, tmp_path, capsys):
    chosen = settings(DPOSettings, tmp_path, max_length=ROOM)
    rows = Dataset.from_list(
        [{"prompt": ask, "chosen": [say], "rejected": message("assistant", "six")} for *ask, say in chats(9, 3)]
    )
    assert len(tokenized_pairs(rows, tokenizer, chosen)) == 6
    assert "3 of 9 train pairs have a prompt that fills max_length and are left out" in capsys.readouterr().out
    with pytest.raises(InputError, match="all 3 train pairs have a prompt that fills max_length"):
        tokenized_pairs(rows.select(range(0, 9, 3)), tokenizer, chosen)


@pytest.mark.outside(
    "https://github.com/unslothai/unsloth/issues/1642",
    "GRPO does not fail where a prompt is longer than the model's window",
    "such prompts are left out with their count; if all are: all 4 train prompts leave no room for a completion",
)
def test_prompts_without_room_for_a_completion_are_counted_and_named(tokenizer, capsys):
    config = LlamaConfig(max_position_embeddings=ROOM)
    rows = Dataset.from_list([{"prompt": chat[:1], "answer": "two"} for chat in chats(8, 2)])
    assert len(fitting_prompts(rows, tokenizer, config, 16)) == 4
    assert "4 of 8 train prompts leave no room for a completion and are left out" in capsys.readouterr().out
    with pytest.raises(InputError, match="all 4 train prompts leave no room for a completion; the model has 64 pos"):
        fitting_prompts(rows.select(range(0, 8, 2)), tokenizer, config, 16)


def test_a_row_without_a_word_to_learn_from_is_named(tokenizer, tmp_path):
    rows = Dataset.from_list([{"messages": chats(2, 3)[1]}, {"messages": message("user", SHORT)}])
    with pytest.raises(InputError, match="train row 1: no word to learn from"):
        tokenized_conversations(rows, tokenizer, settings(SFTSettings, tmp_path), packing=False)
