"""Turns that a chat template leaves out are counted, and refused if they are all of a kind."""

import json
from collections import Counter
from itertools import product
from pathlib import Path

import pytest
import trl
from datasets import Dataset
from transformers import LlamaConfig

from hmm_datasets.errors import InputError
from hmm_datasets.text.tokenizers.bpe import train_bpe
from hmm_datasets.text.tokenizers.chat_encoding import encode_conversation, encode_marked
from hmm_datasets.text.tokenizers.chat_templates import check_messages
from hmm_datasets.text.tokenizers.unwritten_turns import EARLIER_REASONING, count_unwritten
from hmm_datasets.training.post_training.tokenized import fitting_prompts, tokenized_conversations, tokenized_pairs
from hmm_datasets.training.settings import DPOSettings, SFTSettings

TEMPLATES = {path.stem: path.read_text() for path in (Path(trl.__file__).parent / "chat_templates").glob("*.jinja")}
NAME = "look_up"
TOOLS = [{"type": "function", "function": {"name": NAME, "description": "", "parameters": {"type": "object"}}}]
PHI_3 = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ '<|user|>\n' + m.content + '<|end|>\n' }}"
    "{% elif m.role == 'assistant' %}{{ '<|assistant|>\n' }}{% generation %}{{ m.content + '<|end|>' }}"
    "{% endgeneration %}{{ '\n' }}{% endif %}{% endfor %}"
)


@pytest.fixture(scope="module")
def tokenizer():
    tokenizer = train_bpe(["What is the answer? It is a question of words."] * 8, 290, show_progress=False)
    tokenizer.add_special_tokens({"bos_token": "<s>", "eos_token": "</s>"})
    return tokenizer


def conversation(system: int, turns: int, tools: str, reasoning: str) -> tuple[list, list, list[tuple[str, str]]]:
    """Messages, declarations of tools, and the kind of each turn with a word that no other has."""
    messages, turns_of = [], []

    def marked(kind: str, form: str = '{} it\'s\n\n  a "word", \\n {}.') -> str:
        word = f"Word{len(turns_of)}Only"
        turns_of.append((kind, word))
        return form.format(word, word)

    messages += [{"role": "system", "content": marked("system turns")} for _ in range(system)]
    for turn in range(turns):
        messages.append({"role": "user", "content": marked("user turns")})
        thoughts = "reasoning" if turn == turns - 1 else EARLIER_REASONING
        if tools != "none":
            call = {"name": "fetch", "arguments": {"city": marked("tool calls", "{}")}}
            said = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]}
            if tools == "as text":
                said = {"role": "assistant", "content": f"<tool_call>\n{json.dumps(call)}\n</tool_call>"}
                turns_of[-1] = ("assistant turns", turns_of[-1][1])
            messages.append(said)
            messages.append({"role": "tool", "name": NAME, "content": marked("tool turns", '{{"sky": "{}"}}')})
        answer = {"role": "assistant", "content": marked("assistant turns")}
        if reasoning == "as text":
            answer["content"] = f"<think>\n{marked(thoughts)}\n</think>\n\n{answer['content']}"
        elif reasoning == "apart":
            answer["reasoning_content"] = marked(thoughts)
        messages.append(answer)
    return messages, TOOLS if tools == "calls" else [], turns_of


CONVERSATIONS = [
    conversation(*form)
    for form in product((0, 1, 2), (1, 3), ("none", "calls", "as text"), ("none", "as text", "apart"))
]


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/huggingface/transformers/issues/30545",
    "to see that the template of Phi-3 writes no system turn",
    "the conversation is refused with its row: the chat template leaves out all system turns",
)
@pytest.mark.outside(
    "https://github.com/ollama/ollama/issues/3848",
    "a system prompt that Phi-3 reads",
    "refused, since the template leaves it out",
)
@pytest.mark.outside(
    "https://github.com/raullenchai/Rapid-MLX/issues/1765",
    "to see that the template of gpt-oss drops system turns in the middle of a conversation",
    "they are counted in one line, or refused where the conversation has no other system turn",
)
@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_what_a_template_leaves_out_is_what_a_search_for_each_word_does_not_find(tokenizer, name):
    template = TEMPLATES[name]
    for messages, tools, turns in CONVERSATIONS:
        try:
            written = tokenizer.apply_chat_template(
                messages, tools=tools or None, chat_template=template, tokenize=False
            )
        except Exception:  # templates raise many types
            with pytest.raises(InputError, match="the chat template refuses the conversation"):
                encode_conversation(tokenizer, messages, tools=tools, template=template)
            continue
        missing = Counter(kind for kind, word in turns if word not in written)
        missing["declarations of tools"] = int(bool(tools) and NAME not in written)
        there = Counter(kind for kind, _ in turns) | Counter({"declarations of tools": len(tools)})
        dropped = {kind for kind, count in (+missing).items() if count == there[kind] and kind != EARLIER_REASONING}
        if dropped:
            with pytest.raises(InputError, match=f"leaves out all ({'|'.join(dropped)}) of a conversation") as caught:
                encode_conversation(tokenizer, messages, tools=tools, template=template)
            assert "\n" not in str(caught.value)
        else:
            assert count_unwritten(written, messages, tools) == +missing


def test_turns_of_the_same_words_have_to_stand_each_at_a_place_of_its_own():
    same = [{"role": role, "content": "No."} for role in ("system", "user", "assistant")]
    assert not count_unwritten("<s>No.<u>No.<a>No.", same)
    with pytest.raises(InputError, match="leaves out all"):
        count_unwritten("<u>No.<a>No.", same)
    with pytest.raises(InputError, match="leaves out all"):
        count_unwritten("<s>I know.<u>No.<a>No.", same)


def test_what_a_model_said_before_its_next_answer_is_counted_but_not_refused():
    messages = [{"role": "user", "content": "One"}, {"role": "assistant", "content": "Two"}]
    messages.append({"role": "user", "content": "Three"})
    assert count_unwritten("One Three", messages, before_answer=True) == {"assistant turns": 1}
    with pytest.raises(InputError, match="leaves out all assistant turns"):
        count_unwritten("One Three", messages)
    with pytest.raises(InputError, match="leaves out all user turns"):
        count_unwritten("Two", messages, before_answer=True)


def rows(*texts: str | None) -> list[dict]:
    """A question after a system turn, where there is one."""
    system = [[] if text is None else [{"role": "system", "content": text}] for text in texts]
    return [[*beginning, {"role": "user", "content": "2 + 2?"}] for beginning in system]


@pytest.mark.outside(
    "https://github.com/sgl-project/sglang/issues/40082",
    "that a turn which the template does not write is refused, not dropped",
    "refused before the run by sft, dpo and grpo, with the row and the first words of the turn",
)
def test_every_way_to_tokens_refuses_a_template_that_drops_all_system_turns(tokenizer, tmp_path):
    tokenizer = train_bpe(["2 + 2? 4 words"] * 8, 271, show_progress=False)
    tokenizer.chat_template = PHI_3
    answer = [{"role": "assistant", "content": "4"}]
    sft = SFTSettings(output_dir=str(tmp_path), use_cpu=True, bf16=False)
    dpo = DPOSettings(output_dir=str(tmp_path), use_cpu=True, bf16=False)
    chats = Dataset.from_list([{"messages": prompt + answer} for prompt in rows(None, "Be brief.")])
    pairs = [{"prompt": prompt, "chosen": answer, "rejected": answer} for prompt in rows(None, "Be brief.")]
    prompts = Dataset.from_list([{"prompt": prompt} for prompt in rows(None, "Be brief.")])
    for tokenized in (
        lambda: tokenized_conversations(chats, tokenizer, sft, packing=False),
        lambda: tokenized_pairs(Dataset.from_list(pairs), tokenizer, dpo),
        lambda: fitting_prompts(prompts, tokenizer, LlamaConfig(), None),
    ):
        with pytest.raises(InputError, match=r"^train row 1: .* all system turns .*\('Be brief\.'\)"):
            tokenized()
    with pytest.raises(InputError, match="all system turns"):
        check_messages(tokenizer, rows("Be brief.")[0])
    with pytest.raises(InputError, match="all system turns"):
        encode_marked(tokenizer, chats[1]["messages"], PHI_3)


def test_a_corpus_with_turns_left_out_is_named_in_one_line_with_their_count(tokenizer, tmp_path, capsys):
    thought = [{"role": "assistant", "content": f"<think>\nIt is {number}.\n</think>\n\nFour"} for number in "45"]
    question = {"role": "user", "content": "2 + 2?"}
    chats = Dataset.from_list([{"messages": [question, thought[0], question, thought[1]]}] * 3)
    tokenizer.chat_template = TEMPLATES["qwen3"]
    settings = SFTSettings(output_dir=str(tmp_path), use_cpu=True, bf16=False, assistant_only_loss=False)
    tokenized_conversations(chats, tokenizer, settings, packing=False)
    assert capsys.readouterr().err.splitlines()[-1] == (
        "train: the chat template leaves out or changes the words of: 3 reasoning of earlier turns"
    )
