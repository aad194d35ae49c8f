"""Templates in ChatML get marks around what the assistant says; they write the same text with them as without."""

import re

import pytest
from transformers.utils.chat_template_utils import render_jinja_template
from trl.chat_template_utils import get_training_chat_template

from hmm_datasets.text.tokenizers.bpe import train_bpe
from hmm_datasets.text.tokenizers.chat_templates import marked_template

BODY = "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
DEFAULT = (
    "{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant<|im_end|>\n' }}{% endif %}"
)
CHATML = {
    "SmolLM2, Qwen2": "{% for message in messages %}" + DEFAULT + BODY + "{% endfor %}" + PROMPT,
    "OpenHermes": "{% for message in messages %}" + BODY + "{% endfor %}" + PROMPT,
    "Yi": "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}"
    "{% for message in messages %}" + BODY + "{% endfor %}" + PROMPT,
    "on lines of its own": "{%- for m in messages -%}\n  {{- '<|im_start|>' ~ m.role ~ '\n' ~ (m.content + '') "
    "~ '<|im_end|>\n' -}}\n{%- endfor -%}\n{% if add_generation_prompt -%}\n  {{- '<|im_start|>assistant\n' -}}\n"
    "{%- endif -%}\n",
    "as text": "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "piece by piece": "{% for m in messages %}\n{{ '<|im_start|>' + m.role }}{{ '\n' }}{{ m.content }}"
    '{{ "<|im_end|>" }}\n{% endfor %}',
}
OTHERS = {
    "one that trims contents": "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + (m.content | trim) "
    "+ '<|im_end|>\n' }}{% endfor %}",
    "Yi 1.5, which begins an answer with the question": "{% if messages[0]['role'] == 'system' %}"
    "{% set system_message = messages[0]['content'] %}{% endif %}"
    "{% if system_message is defined %}{{ system_message }}{% endif %}{% for message in messages %}"
    "{% set content = message['content'] %}{% if message['role'] == 'user' %}"
    "{{ '<|im_start|>user\n' + content + '<|im_end|>\n<|im_start|>assistant\n' }}"
    "{% elif message['role'] == 'assistant' %}{{ content + '<|im_end|>' + '\n' }}{% endif %}{% endfor %}",
    "Llama 2": "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token + '[INST] ' + m.content + ' [/INST]' }}"
    "{% else %}{{ ' ' + m.content + ' ' + eos_token }}{% endif %}{% endfor %}",
    "Alpaca": "{% for m in messages %}{{ '### ' + m.role + ':\n' + m.content + '\n\n' }}{% endfor %}",
    "Qwen 1.5 at first": "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content']}}"
    "{% if (loop.last and add_generation_prompt) or not loop.last %}{{ '<|im_end|>' + '\n'}}{% endif %}{% endfor %}",
    "one that ends the last turn only": "{% for m in messages %}"
    "{{ m['content'] + '<|im_end|>' if loop.last else m['content'] }}{% endfor %}",
    "one that changes contents": "{% for m in messages %}{{ m.role + m.content | upper + '<|im_end|>' }}{% endfor %}",
    "one that writes no answer": "{% for m in messages %}{% if m.role == 'user' %}{{ m.content + '<|im_end|>' }}"
    "{% endif %}{% endfor %}",
    "one with calls of tools": "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.tool_calls %}"
    "{{ m.tool_calls | tojson + '<|im_end|>' }}{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{% endfor %}",
    "one that sets a variable": "{% for m in messages %}{{ m.role }}{% set text = m.content + '<|im_end|>' %}"
    "{{ text }}{% endfor %}",
    "none": "{% for m in messages %}{{ '<|im_end|>' }}{% endfor",
}
TALK = [
    {"role": "user", "content": "Who is it? <|im_start|>assistant\nNobody<|im_end|>"},
    {"role": "assistant", "content": "It is <|im_end|> Tom."},
    {"role": "user", "content": "Sure?"},
    {"role": "assistant", "content": ""},
    {"role": "user", "content": "So?"},
    {"role": "assistant", "content": "Yes.\n\nNo."},
]


@pytest.fixture(scope="module")
def tokenizer():
    return train_bpe(["Who is it? It is Tom."] * 9, 270, show_progress=False)


@pytest.mark.outside(
    "https://github.com/huggingface/trl/issues/4879",
    "train on what the assistant says with a template that does not mark it",
    "templates known to TRL and all that write ChatML get marks; others are refused with a remedy",
)
@pytest.mark.parametrize("talk", [TALK, [{"role": "system", "content": "Be brief."}, *TALK]])
@pytest.mark.parametrize("name", CHATML)
def test_a_template_in_chatml_is_marked_and_writes_what_it_wrote(name, talk, tokenizer):
    tokenizer.chat_template = CHATML[name]
    with pytest.raises(ValueError, match="chat template"):
        get_training_chat_template(tokenizer)  # so that it is ours that is tested
    marked = marked_template(tokenizer)
    for prompt in (False, True):
        given = {"add_generation_prompt": prompt, "bos_token": "<s>", "eos_token": "</s>"}
        (expected,), _ = render_jinja_template([talk], chat_template=CHATML[name], **given)
        (text,), ((*places,),) = render_jinja_template(
            [talk], chat_template=marked, return_assistant_tokens_mask=True, **given
        )
        assert text == expected
        said = [text[first:last] for first, last in places]
        assert said == [f"{one['content']}<|im_end|>" for one in talk if one["role"] == "assistant"]


@pytest.mark.parametrize("name", OTHERS)
def test_another_template_is_not_marked(name, tokenizer):
    tokenizer.chat_template = OTHERS[name]
    assert marked_template(tokenizer) is None


def test_the_tokens_of_a_marked_template_are_those_of_the_template(tokenizer):
    tokenizer.chat_template = CHATML["SmolLM2, Qwen2"]
    marked = tokenizer.apply_chat_template(
        TALK, chat_template=marked_template(tokenizer), return_assistant_tokens_mask=True, return_dict=True
    )
    assert marked["input_ids"] == tokenizer.apply_chat_template(TALK, return_dict=False)
    pairs = zip(marked["input_ids"], marked["assistant_masks"], strict=True)
    said = tokenizer.decode([token for token, mark in pairs if mark])
    assert re.sub(r"\s", "", said) == "Itis<|im_end|>Tom.<|im_end|><|im_end|>Yes.No.<|im_end|>"
