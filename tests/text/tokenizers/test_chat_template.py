"""The token that ends a turn of the assistant is taken from the chat template of the tokenizer."""

import pytest
from transformers import GenerationConfig

from hmm_datasets.errors import InputError
from hmm_datasets.text.tokenizers.bpe import train_bpe
from hmm_datasets.text.tokenizers.chat_encoding import check_chat_template, encode_conversation, encode_marked
from hmm_datasets.text.tokenizers.chat_templates import end_of_turn, load_tokenizer, marked_template, stop_tokens

WORDS = ["What is the answer? It is a question of words, and of the answer to them."] * 8

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content | trim + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA_3 = (
    "{% for m in messages %}"
    "{% set content = '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
LLAMA_2 = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token + '[INST] ' + m.content + ' [/INST]' }}"
    "{% else %}{{ ' ' + m.content + ' ' + eos_token }}{% endif %}{% endfor %}"
)
PLAIN = "{% for m in messages %}{{ m.role | upper + ': ' + m.content + '\n' }}{% endfor %}"
TEMPLATES = {
    "ChatML": (CHATML, "<|im_end|>"),
    "Llama 3": (LLAMA_3, "<|eot_id|>"),
    "Llama 2": (LLAMA_2, "</s>"),
    "plain": (PLAIN, None),
    "one that takes no user": ("{{ raise_exception('only tools') }}", None),
    "one that says nothing": ("{% for m in messages %}{% endfor %}", None),
}
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]


def theirs(template: str | None):
    """A tokenizer with the special tokens of several models, and a template."""
    tokenizer = train_bpe(WORDS, 290, show_progress=False)
    tokenizer.add_special_tokens({"bos_token": "<s>", "eos_token": "</s>"})
    tokenizer.add_special_tokens({"extra_special_tokens": SPECIAL}, replace_extra_special_tokens=False)
    tokenizer.chat_template = template
    return tokenizer


@pytest.fixture(scope="module")
def ours():
    return train_bpe(WORDS, 290, show_progress=False)


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_end_of_a_turn_is_found_in_the_template(name):
    template, expected = TEMPLATES[name]
    tokenizer = theirs(template)
    found = end_of_turn(tokenizer)
    assert (None if found is None else tokenizer.convert_ids_to_tokens(found)) == expected


def test_the_end_of_a_turn_of_our_template_is_end(ours):
    assert ours.convert_ids_to_tokens(end_of_turn(ours)) == "<|end|>"
    assert end_of_turn(theirs(None)) is None


def test_generation_stops_at_what_the_model_names_at_eos_and_at_the_end_of_a_turn(ours):
    eos, end = ours.eos_token_id, ours.convert_tokens_to_ids("<|end|>")
    assert stop_tokens(ours, GenerationConfig()) == [eos, end]
    assert stop_tokens(ours, GenerationConfig(eos_token_id=7)) == [7, eos, end]
    assert stop_tokens(ours, GenerationConfig(eos_token_id=[end, 7])) == [end, 7, eos]
    assert stop_tokens(theirs(PLAIN), GenerationConfig()) == [theirs(PLAIN).eos_token_id]


def test_a_template_that_writes_eos_between_turns_has_no_token_stream(ours):
    check_chat_template(ours, "ours")
    check_chat_template(theirs(CHATML), "theirs")
    for tokenizer, told in ((theirs(LLAMA_2), "writes EOS (</s>) inside"), (theirs(None), "has no chat template")):
        with pytest.raises(InputError) as caught:
            check_chat_template(tokenizer, "theirs")
        assert str(caught.value).startswith("theirs: ")
        assert told in str(caught.value)


def test_the_error_for_refused_messages_quotes_the_template(ours):
    with pytest.raises(InputError, match=r"the chat template refuses the conversation .*found narrator"):
        encode_conversation(ours, [{"role": "narrator", "content": "A"}])


def test_a_folder_without_a_tokenizer_is_named(tmp_path):
    with pytest.raises(InputError) as caught:
        load_tokenizer(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path}: no tokenizer can be loaded from it")


def test_completions_of_a_chat_model_end_where_its_turns_do():
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from hmm_datasets.evaluation.completions import complete

    tokenizer = theirs(CHATML)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), num_key_value_heads=1, **sizes)).eval()
    model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token_id
    word = tokenizer.encode(" answer")[0]
    logits = torch.full((len(tokenizer), len(tokenizer)), -9.0)  # of the next token, by the one before
    logits[:, word] = 0.0
    logits[word, end] = 9.0

    class Scripted(LlamaForCausalLM):
        def forward(self, input_ids=None, **kwargs):
            output = super().forward(input_ids=input_ids, **kwargs)
            output.logits = logits[input_ids][:, -output.logits.shape[1] :]
            return output

    model.__class__ = Scripted
    found = complete(model, tokenizer, facts=[("What is the answer? It", "is")], open_prompts=[], samples=0)
    assert found["prompts"][0]["greedy"] == tokenizer.decode([word])


@pytest.mark.outside(
    "https://github.com/huggingface/transformers/pull/31429",
    "tokenizers with several chat templates, each with a name",
    "that named default is used; without one: expected one chat template, or one named default, found rag, tool_use",
)
def test_of_several_templates_the_default_is_used_and_without_one_they_are_refused_by_name(tmp_path):
    tokenizer = train_bpe(WORDS, 290, show_progress=False)
    whole, end = marked_template(tokenizer), end_of_turn(tokenizer)
    messages = [{"role": "user", "content": "What?"}, {"role": "assistant", "content": "words"}]
    expected = encode_marked(tokenizer, messages, whole)
    for others in ({}, {"tool_use": PLAIN}, {"rag": PLAIN, "tool_use": PLAIN}):
        tokenizer.chat_template = {"default": whole, **others}
        tokenizer.save_pretrained(tmp_path)
        loaded = load_tokenizer(tmp_path)
        assert (marked_template(loaded), end_of_turn(loaded)) == (whole, end)
        assert encode_marked(loaded, messages, marked_template(loaded)) == expected
        if others:
            tokenizer.chat_template = others
            for function in (marked_template, end_of_turn):
                with pytest.raises(InputError) as caught:
                    function(tokenizer)
                named = f"expected one chat template, or one named default, found {', '.join(others)}; set"
                assert named in str(caught.value)
