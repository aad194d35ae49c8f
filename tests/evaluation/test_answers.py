"""Answers: the same in batches as one by one, ended by the end of a turn, right if the words are those expected."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from hmm_datasets.errors import InputError
from hmm_datasets.evaluation.chat.answers import Question, answer, questions_of
from hmm_datasets.text.corpora.loading import load_corpus
from hmm_datasets.text.tokenizers.bpe import train_bpe

ROWS = list(load_corpus("story-questions", split="test").take(12))


@pytest.fixture(scope="module")
def tokenizer():
    return train_bpe((str(row["messages"]) for row in ROWS), 300, show_progress=False)


@pytest.fixture(scope="module")
def model(tokenizer) -> LlamaForCausalLM:
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=len(tokenizer), initializer_range=0.5, eos_token_id=0, **shape)
    return LlamaForCausalLM(config).double()


def test_answers_in_a_batch_are_those_of_single_questions_up_to_a_stop(model, tokenizer):
    questions = questions_of(ROWS)
    stop = list(range(0, len(tokenizer), 9))
    found = answer(model, tokenizer, questions, stop=stop, max_new_tokens=6, batch_size=5)
    assert model.training, "the model is left as it was"
    ended = 0
    for question, said in zip(questions, found, strict=True):
        tokens = tokenizer.apply_chat_template(question.messages, add_generation_prompt=True, return_tensors="pt")
        tokens = tokens["input_ids"]
        begun = tokens.shape[1]
        while tokens.shape[1] < begun + 6 and (tokens.shape[1] == begun or tokens[0, -1] not in stop):
            with torch.no_grad():
                tokens = torch.cat([tokens, model(input_ids=tokens).logits[:, -1:].argmax(-1)], dim=1)
        ended += tokens.shape[1] < begun + 6
        assert said == tokenizer.decode(tokens[0, begun:], skip_special_tokens=True)
    assert ended > 0


def test_a_model_without_room_for_an_answer_gives_none(model, tokenizer):
    model.config.max_position_embeddings, kept = 60, model.config.max_position_embeddings
    questions = questions_of(ROWS)
    found = answer(model, tokenizer, questions, max_new_tokens=8)
    model.config.max_position_embeddings = kept
    lengths = [
        len(tokenizer.apply_chat_template(question.messages, add_generation_prompt=True)["input_ids"])
        for question in questions
    ]
    assert {said == "" for said, length in zip(found, lengths, strict=True) if length > 52} == {True}
    assert any(found)


def test_tokens_that_the_model_does_not_know_are_refused(tokenizer):
    small = LlamaForCausalLM(LlamaConfig(vocab_size=8, hidden_size=8, num_attention_heads=1, num_hidden_layers=1))
    with pytest.raises(InputError, match="tokens"):
        answer(small, tokenizer, questions_of(ROWS))


def test_a_question_has_all_messages_before_the_first_answer():
    user, assistant = {"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "Hello."}
    system = {"role": "system", "content": "Be kind."}
    rows = [
        {"messages": [system, user, assistant, user, assistant]},
        {"messages": [user]},
        {"messages": [assistant, user]},
        {"messages": [user, assistant], "kind": "greeting", "chance": 0.5},
    ]
    assert questions_of(rows) == [
        Question([system, user], "Hello."),
        Question([user], "Hello.", "greeting", 0.5),
    ]
    assert len(questions_of(rows, 1)) == 1
