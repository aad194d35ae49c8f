"""Continuations: the same in a batch as one by one, the same for a seed, facts checked by their first word."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from hmm_datasets.evaluation.completions import FACTS, OPEN_PROMPTS, begins_with, complete
from hmm_datasets.text.tokenizers.bpe import train_bpe


@pytest.fixture(scope="module")
def tokenizer():
    texts = [f"{prompt} {word}" for prompt, word in FACTS]
    return train_bpe(texts * 2, 500, min_frequency=1, show_progress=False)


@pytest.fixture(scope="module")
def model(tokenizer) -> LlamaForCausalLM:
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=len(tokenizer), initializer_range=0.5, eos_token_id=0, **shape)
    return LlamaForCausalLM(config).double().eval()


@pytest.fixture(scope="module")
def found(model, tokenizer) -> dict:
    return complete(model, tokenizer, max_new_tokens=5, seed=3)


@pytest.mark.thorough
def test_greedy_continuations_in_a_batch_are_those_of_single_prompts(model, tokenizer, found):
    for row in found["prompts"]:
        tokens = torch.tensor([[tokenizer.bos_token_id, *tokenizer(row["prompt"])["input_ids"]]])
        begun = tokens.shape[1]
        for _ in range(5):
            with torch.no_grad():
                best = model(input_ids=tokens).logits[0, -1].argmax()
            tokens = torch.cat([tokens, best.view(1, 1)], dim=1)
            if best == 0:
                break
        assert row["greedy"] == tokenizer.decode(tokens[0, begun:], skip_special_tokens=True)


def test_a_seed_gives_the_same_samples_and_leaves_random_numbers_alone(model, tokenizer, found):
    torch.manual_seed(9)
    state = torch.random.get_rng_state()
    assert complete(model, tokenizer, max_new_tokens=5, seed=3) == found
    assert torch.equal(torch.random.get_rng_state(), state)
    other = complete(model, tokenizer, max_new_tokens=5, seed=4)
    assert [row["greedy"] for row in other["prompts"]] == [row["greedy"] for row in found["prompts"]]
    assert [row["sampled"][0] for row in other["prompts"]] == [row["sampled"][1] for row in found["prompts"]]
    assert any(row["sampled"][0] != row["sampled"][1] for row in found["prompts"])


def test_every_prompt_is_in_the_result(found):
    assert [row["prompt"] for row in found["prompts"]] == [*(prompt for prompt, _ in FACTS), *OPEN_PROMPTS]
    assert [row["kind"] for row in found["prompts"]] == ["fact"] * len(FACTS) + ["open"] * len(OPEN_PROMPTS)
    assert (found["facts"], found["seed"], found["max_new_tokens"]) == (len(FACTS), 3, 5)


def test_a_fact_that_the_model_says_counts(model, tokenizer, found):
    said = found["prompts"][0]["greedy"].split()[0]
    facts = [(FACTS[0][0], said), (FACTS[0][0], "nothing of the sort")]
    known = complete(model, tokenizer, facts=facts, open_prompts=(), samples=0, max_new_tokens=5)
    assert (known["facts_correct"], known["facts"]) == (1, 2)
    assert [row["correct"] for row in known["prompts"]] == [True, False]
    assert known["prompts"][0]["sampled"] == []


@pytest.mark.parametrize(
    ("text", "word", "expected"),
    [
        (" Paris", "Paris", True),
        ("\n“paris”", "Paris", True),
        (" Parisian", "Paris", False),
        (" 15.", "15", True),
        (" 150", "15", False),
        (" not Paris", "Paris", False),
        ("", "Paris", False),
    ],
)
def test_an_answer_is_the_first_word(text, word, expected):
    assert begins_with(text, word) is expected
