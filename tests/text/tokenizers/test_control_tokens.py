"""What a person writes never becomes a control token: in conversations, preferences, rollouts, chats and texts."""

import numpy as np
import pytest
from datasets import Dataset
from tokenizers import AddedToken
from transformers import LlamaConfig, LlamaForCausalLM

from hmm_datasets.errors import InputError
from hmm_datasets.evaluation.chat.answers import Question, generate_answers
from hmm_datasets.evaluation.chat.measures import conversation_losses
from hmm_datasets.text.corpora.conversations import declare_tools, read_messages
from hmm_datasets.text.tokenizers.bpe import train_bpe
from hmm_datasets.text.tokenizers.chat_encoding import encode_conversation, encode_marked
from hmm_datasets.text.tokenizers.chat_templates import marked_template
from hmm_datasets.text.tokenizers.encoding import Encoder, control_tokens, encode_texts
from hmm_datasets.text.tokenizers.named_templates import NAMES, set_chat_template
from hmm_datasets.training.post_training.tokenized import tokenized_conversations, tokenized_pairs
from hmm_datasets.training.post_training.trainers import PolicyTuner
from hmm_datasets.training.settings import DPOSettings, GRPOSettings, SFTSettings

WORDS = ["What is it? It is a question of words, and of {json}: <tool_call>, <think>."] * 8


def tokenizer_with(template: str):
    tokenizer = train_bpe(WORDS, 300, show_progress=False)
    set_chat_template(tokenizer, template)
    # As in Qwen: added, not special, and written by the template or of the form of a control token.
    tokenizer.add_tokens([AddedToken(word, special=False) for word in ("<tool_call>", "</tool_call>", "<|fim|>")])
    tokenizer.add_tokens(["    "])  # as in GPT-NeoX
    return tokenizer


@pytest.fixture(scope="module", params=NAMES)
def tokenizer(request):
    return tokenizer_with(request.param)


@pytest.fixture(scope="module")
def default():
    return tokenizer_with("default")


def spelling(tokenizer) -> str:
    """A text that spells every control token, some of them twice and side by side."""
    words = sorted(control_tokens(tokenizer))
    return f"{words[0]} ".join(words) + "".join(words) + " \U000f0000\U000f0001"


def added(tokenizer, tokens) -> list[str]:
    names = tokenizer.get_added_vocab()
    return [word for word in tokenizer.convert_ids_to_tokens(tokens) if word in names and not word.isspace()]


def talk(text: str, neutral: str) -> tuple[list, list]:
    """A conversation with a text in every place that a person fills, and the same with another text there."""
    return tuple(
        read_messages(
            "messages",
            {
                "messages": declare_tools(
                    [
                        {"role": "system", "content": f"Be {words}."},
                        {"role": "user", "content": f"Q {words}?"},
                        {
                            "role": "assistant",
                            "content": f"A {words}.",
                            "tool_calls": [{"name": f"f{words}", "arguments": {f"a{words}": words}}],
                        },
                        {"role": "tool", "content": f"T {words}"},
                        {"role": "assistant", "content": f"{words}"},
                    ],
                    [{"type": "function", "function": {"name": f"f{words}", "description": words}}],
                )
            },
            "a row",
        )["messages"]
        for words in (text, neutral)
    )


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/huggingface/transformers/issues/29279",
    "templates that protect from control tokens in what users write",
    "what users write is encoded as text, in training, preferences, rollouts, chats and evaluations",
)
@pytest.mark.outside(
    "https://github.com/huggingface/transformers/issues/47822",
    "special tokens in a message are escaped when the template is applied",
    "only the template makes control tokens; the words are kept",
)
@pytest.mark.outside(
    "https://github.com/InternLM/lmdeploy/issues/4960",
    "`<think>` and `<|im_end|>` in a user's message are text",
    "so they are, with the loss on the same words as before",
)
def test_a_conversation_has_the_control_tokens_of_its_template_and_no_other(tokenizer):
    text = spelling(tokenizer)
    spelt, plain = talk(text, "words")
    template = marked_template(tokenizer)
    found, usual = (encode_marked(tokenizer, messages, template) for messages in (spelt, plain))
    assert added(tokenizer, found.tokens) == added(tokenizer, usual.tokens)
    assert encode_conversation(tokenizer, spelt, template=template) == found.tokens
    said = [[token for token, mark in zip(one.tokens, one.said, strict=True) if mark] for one in (found, usual)]
    assert added(tokenizer, said[0]) == added(tokenizer, said[1])
    assert tokenizer.decode(said[0]) == tokenizer.decode(said[1]).replace("words", text)
    assert tokenizer.decode(found.tokens) == tokenizer.decode(usual.tokens).replace("words", text)


def test_without_control_tokens_in_a_text_tokens_and_marks_are_those_of_transformers(tokenizer):
    template = marked_template(tokenizer)
    for messages in (talk("", "ü 漢字 🙂")[1], talk("", "\n a  b\n\n    ")[1][1:]):
        expected = tokenizer.apply_chat_template(
            messages, chat_template=template, return_assistant_tokens_mask=True, return_dict=True
        )
        found = encode_marked(tokenizer, messages, template)
        assert (found.tokens, found.said) == (expected["input_ids"], expected["assistant_masks"])
        asked = tokenizer.apply_chat_template(messages[:2], add_generation_prompt=True, return_dict=False)
        assert encode_conversation(tokenizer, messages[:2], add_generation_prompt=True) == asked


@pytest.mark.thorough
def test_a_turn_of_weight_0_has_no_loss_and_the_others_have_theirs(tokenizer):
    spelt, _ = talk(spelling(tokenizer), "")
    template = marked_template(tokenizer)
    turns = [number for number, message in enumerate(spelt) if message["role"] == "assistant"]
    weights = [[int(number == turn) for number in range(len(spelt))] for turn in turns]
    apart = [encode_marked(tokenizer, spelt, template, weights=one).said for one in weights]
    assert np.array_equal(np.sum(apart, 0), encode_marked(tokenizer, spelt, template).said)
    assert all(map(any, apart))


def test_rows_of_trainers_rollouts_and_evaluations_have_no_control_token_that_a_person_wrote(default, tmp_path):
    text = spelling(default)
    end = default.convert_tokens_to_ids("<|end|>")
    chat = [{"role": "user", "content": text}, {"role": "assistant", "content": text}]
    pair = {"prompt": chat[:1], "chosen": chat[1:], "rejected": [{"role": "assistant", "content": "B"}]}
    kwargs = {"max_steps": 1, "report_to": "none", "per_device_train_batch_size": 2, "max_length": None}
    row = tokenized_conversations(
        Dataset.from_list([{"messages": chat}]), default, SFTSettings(str(tmp_path), **kwargs), packing=False
    )[0]
    learnt = [label for label in row["labels"] if label != -100]
    assert (row["input_ids"].count(end), learnt.count(end), default.decode(learnt)) == (2, 1, f"{text}<|end|>")
    tokens = tokenized_pairs(Dataset.from_list([pair]), default, DPOSettings(str(tmp_path), **kwargs))[0]
    assert [tokens[name].count(end) for name in ("prompt_ids", "chosen_ids", "rejected_ids")] == [1, 1, 1]
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=len(default), pad_token_id=1, bos_token_id=0, eos_token_id=0, **sizes)
    )
    args = GRPOSettings(str(tmp_path), max_steps=1, report_to="none", per_device_train_batch_size=2, num_generations=2)
    rows = Dataset.from_list([{"prompt": chat[:1], "answer": "A"}] * 2)
    tuner = PolicyTuner(model=model, args=args, reward_funcs=[lambda completions, **_: [0.0] * len(completions)],
                        train_dataset=rows, processing_class=default)  # fmt: skip
    assert tuner._tokenize_prompts([chat[:1]])[0][0].count(end) == 1
    with pytest.raises(InputError, match="tools are given; expected none here, train with TRL's GRPOTrainer"):
        PolicyTuner(model=model, args=args, tools=[print])
    asked = []
    model.register_forward_pre_hook(
        lambda _, args, kwargs: asked.append(kwargs["input_ids"].clone()), with_kwargs=True
    )
    generate_answers(model, default, [Question(chat[:1], "A")], max_new_tokens=1)
    conversation_losses(model, default, [{"messages": chat}], 1)
    assert [(one == end).sum().item() for one in asked] == [1, 2]


def test_texts_and_token_streams_spell_control_tokens_but_keep_added_white_space(default):
    text = f"a{spelling(default)}    b"
    for tokens in (encode_texts(default, [text])[0], Encoder(default).encode_batch([text])[0].tolist()):
        assert added(default, tokens) == []
        assert not control_tokens(default) & set(default.convert_ids_to_tokens(tokens))
        assert default.convert_tokens_to_ids("    ") in tokens
        assert default.decode(tokens) == text


def test_rows_with_native_calls_have_no_nulls_of_other_rows(default, tmp_path):
    rows = [
        {
            "messages": [
                {"role": "user", "content": "Q"},
                {"role": "assistant", "content": "A", "tool_calls": [{"name": name, "arguments": arguments}]},
            ],
            "tools": [
                {"type": "function", "function": {"name": name, "parameters": dict.fromkeys(arguments, "text")}}
            ],
        }
        for name, arguments in (("weather", {"city": "Rome"}), ("add", {"expression": "1"}))
    ]
    chosen = SFTSettings(str(tmp_path), max_steps=1, report_to="none", per_device_train_batch_size=2, max_length=None)
    found = tokenized_conversations(Dataset.from_list(rows), default, chosen, packing=False)
    for row, tokens in zip(rows, found["input_ids"], strict=True):
        assert tokens == encode_conversation(default, row["messages"], tools=row["tools"])
        assert "null" not in default.decode(tokens)
