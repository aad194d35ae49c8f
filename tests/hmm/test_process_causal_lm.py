"""The causal language model of any process predicts as the process does, and that of an HMM as `HMMForCausalLM`."""

import copy
import itertools

import numpy as np
import pytest
import torch
from composed_examples import EXAMPLES, word_probability
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

from hmm_datasets import InputError, load_source
from hmm_datasets.compat.transformers_caches import output_cache
from hmm_datasets.evaluation.benchmark.models import load_causal_lm
from hmm_datasets.files import read_json
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.causal_lm import LOGIT_OF_ZERO, HMMForCausalLM
from hmm_datasets.hmm.families import PermutedEmissions, PermutedSymbols
from hmm_datasets.hmm.process_causal_lm import ProcessConfig, ProcessForCausalLM
from hmm_datasets.hmm.structured.delimited import DelimitedProcess
from hmm_datasets.hmm.tilted import TiltedHMM
from hmm_datasets.training.pretrained import load_pretrained

MESS3 = processes.mess3()


def rows_of(process, count: int, length: int) -> torch.Tensor:
    tokens = torch.from_numpy(process.sample(count, length, seed=1).astype(np.int64))
    return torch.cat([torch.full((count, 1), process.num_symbols), tokens], dim=1)


@pytest.mark.thorough
@pytest.mark.parametrize("name", EXAMPLES)
def test_logits_are_log_probabilities_of_words_by_definition(name):
    process, probability = EXAMPLES[name], word_probability(name)
    row = rows_of(process, 1, 2)
    log_probs = ProcessForCausalLM.from_process(process, process.num_symbols)(row).logits[0]
    word = tuple(row[0, 1:].tolist())
    for t in range(3):
        before = probability(word[:t])
        expected = [probability((*word[:t], x)) / before for x in range(process.num_symbols)]
        np.testing.assert_allclose(log_probs[t].exp(), [*expected, 0.0], atol=1e-12)


def test_it_reads_rows_as_the_model_of_an_hmm_does():
    """Tokens that are hidden, sequences that begin within a row, and what is asked for."""
    exact, ours = HMMForCausalLM.from_hmm(MESS3, 3), ProcessForCausalLM.from_process(MESS3, 3)
    rows = rows_of(MESS3, 5, 9)
    rows[2, 4] = 3
    mask = torch.ones_like(rows)
    mask[0, :3] = mask[1, 5] = 0
    labels = rows.masked_fill(rows == 3, -100)
    packed = torch.tensor([0, 1, 2, 3, 0, 1, 2, 3, 4, 5]).expand(5, -1)
    for given in ({}, {"attention_mask": mask}, {"position_ids": packed}, {"logits_to_keep": 2}, {"labels": labels}):
        expected, found = exact(rows, **given), ours(rows, **given)
        torch.testing.assert_close(found.logits, expected.logits, rtol=0, atol=1e-13)
        assert (found.loss is None) == (expected.loss is None)
        if found.loss is not None:
            assert found.loss.item() == pytest.approx(expected.loss.item(), abs=1e-12)
    assert ours(rows[:, :0]).logits.shape == (5, 0, 4)


@pytest.mark.parametrize("options", [{"do_sample": True}, {"num_beams": 3}, {"use_cache": False}])
def test_generation_is_that_of_the_model_of_an_hmm(options):
    prompts, mask = rows_of(MESS3, 4, 3), torch.ones(4, 4, dtype=torch.long)
    prompts, mask = prompts.roll(1, 1), mask.roll(1, 1)
    mask[:, 0] = 0  # padding on the left
    rows = []
    for model in (HMMForCausalLM.from_hmm(MESS3, 3), ProcessForCausalLM.from_process(MESS3, 3)):
        torch.manual_seed(0)
        rows.append(model.generate(prompts, attention_mask=mask, max_new_tokens=6, pad_token_id=3, **options))
    assert (rows[0] == rows[1]).all()


def test_a_prompt_is_read_once_for_several_continuations():
    process = PermutedSymbols(MESS3)
    model = ProcessForCausalLM.from_process(process, 3)
    rows = rows_of(process, 2, 8)
    first = model(rows[:, :5])
    for _ in range(2):
        rest = model(rows[:, 5:], past_key_values=copy.deepcopy(output_cache(first))).logits
        torch.testing.assert_close(rest, model(rows).logits[:, 5:], rtol=0, atol=0)
    with pytest.raises(InputError, match="the cache holds"):
        model(rows[:1, 5:], past_key_values=output_cache(first))


@pytest.mark.outside(
    "https://github.com/huggingface/transformers/pull/46937",
    "assisted generation with a model whose state cannot be rolled back, which silently gave other tokens",
    "`ProcessForCausalLM` takes tokens back, and gives those of greedy search; `HMMForCausalLM` refuses a draft",
)
def test_a_draft_proposes_tokens_and_what_is_rejected_is_taken_back():
    target, draft = (ProcessForCausalLM.from_process(process, 3) for process in (MESS3, processes.mess3(0.05, 0.85)))
    prompt = rows_of(MESS3, 1, 2)
    for options in ({}, {"num_assistant_tokens": 3}):
        found = target.generate(prompt, assistant_model=draft, max_new_tokens=20, pad_token_id=3, **options)
        assert (found == target.generate(prompt, max_new_tokens=20, pad_token_id=3)).all()
    with pytest.raises(ValueError, match="stateful"):
        HMMForCausalLM.from_hmm(MESS3, 3).generate(prompt, assistant_model=draft, max_new_tokens=20, pad_token_id=3)
    rows = rows_of(MESS3, 2, 8)
    expected = target(rows).logits[:, 4:]
    for length in (4, -5):
        cache = output_cache(target(rows))
        cache.crop(length)
        assert cache.get_seq_length() == 4
        torch.testing.assert_close(target(rows[:, 4:], past_key_values=cache).logits, expected, rtol=0, atol=0)


@pytest.mark.parametrize("first", [4, 6])
def test_whatever_was_read_can_be_taken_back(first):
    """A padded position counted as a symbol, and a beginning token that was taken back had erased what was before."""
    model = ProcessForCausalLM.from_process(PermutedSymbols(MESS3), 3)
    rows = torch.tensor([[3, 0, 1, 2, 2, 0], [3, 3, 1, 3, 0, 1], [0, 1, 3, 2, 3, 1]])
    reads = torch.tensor([[1, 1, 0, 1, 1, 1], [0, 1, 1, 1, 0, 1], [1, 1, 1, 1, 1, 0]])
    begins = torch.tensor([[0, 1, 2, 3, 0, 1], [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]])
    for kept in range(1, first):
        cache = output_cache(model(rows[:, :first], attention_mask=reads[:, :first], position_ids=begins[:, :first]))
        cache.crop(kept - first)
        again = model(
            rows[:, kept:], attention_mask=reads, position_ids=begins[:, kept:], past_key_values=cache
        ).logits
        whole = model(rows, attention_mask=reads, position_ids=begins).logits[:, kept:]
        # Where a chunk starts, its first position begins no other sequence.
        same = torch.ones(len(rows), dtype=torch.bool) if kept != 4 else torch.tensor([False, True, True])
        torch.testing.assert_close(again[same], whole[same], rtol=0, atol=0)


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/huggingface/transformers/issues/32867",
    "speculative sampling that keeps the distribution of the target model, which it did not",
    "with exact targets and drafts the words of three tokens have the target's distribution, to within chance",
)
def test_what_a_draft_proposes_has_the_distribution_of_the_target():
    target, draft = (ProcessForCausalLM.from_process(process, 3) for process in (MESS3, processes.mess3(0.05, 0.85)))
    prompt, count, words = torch.tensor([[3]]), 400, list(itertools.product(range(3), repeat=3))
    # Two tokens are proposed, however improbable; the second has another distribution than that of the target.
    draft.generation_config.update(num_assistant_tokens=2, assistant_confidence_threshold=0.0)
    torch.manual_seed(0)
    options = {"max_new_tokens": 3, "do_sample": True, "pad_token_id": 3}
    drawn = [target.generate(prompt, assistant_model=draft, **options)[0, 1:].tolist() for _ in range(count)]
    counts = np.array([drawn.count(list(word)) for word in words])
    expected = count * np.exp(MESS3.log_likelihood(words))
    # The statistic has 26 degrees of freedom; 0.001 of such are above 54.1.
    assert ((counts - expected) ** 2 / expected).sum() < 54.1


@pytest.mark.thorough
@pytest.mark.parametrize(
    "process",
    [EXAMPLES["blocked"], EXAMPLES["any mixture"], PermutedSymbols(MESS3), DelimitedProcess(MESS3, 2)],
    ids=repr,
)
def test_its_folder_is_loaded_by_transformers_and_as_a_process(process, tmp_path):
    ProcessForCausalLM.from_process(process, process.num_symbols).save_pretrained(tmp_path)
    rows = rows_of(process, 2, 6)
    expected = process.next_token_probs(rows[:, 1:]).log().clamp(min=LOGIT_OF_ZERO)
    for model in (
        AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16),
        ProcessForCausalLM.from_pretrained(tmp_path),
        load_pretrained(AutoModelForCausalLM, str(tmp_path)),
    ):
        torch.testing.assert_close(model(rows).logits[..., :-1], expected, rtol=0, atol=1e-13)
    assert load_source(tmp_path).fingerprint() == process.fingerprint()
    assert {process.stored_in, "config.json", "tokenizer.json"} <= read_json(tmp_path / "digests.json")[
        "sha256"
    ].keys()
    assert AutoTokenizer.from_pretrained(tmp_path).bos_token_id == process.num_symbols


def test_what_is_given_on_saving_and_loading_is_used_or_refused(tmp_path):
    """The generation settings, a token and the keyword of a private repository were dropped in silence."""
    family, rows = PermutedSymbols(MESS3), rows_of(MESS3, 2, 6)
    model = ProcessForCausalLM.from_process(family)
    model.generation_config.max_new_tokens = 7
    model.save_pretrained(tmp_path / "other_rank", is_main_process=False)
    assert not (tmp_path / "other_rank" / "config.json").exists()
    model.save_pretrained(tmp_path)
    loaded, info = ProcessForCausalLM.from_pretrained(tmp_path, bos_token_id=3, output_loading_info=True)
    assert (loaded.generation_config.max_new_tokens, loaded.generation_config.bos_token_id) == (7, 3)
    assert torch.equal(loaded(rows).logits, ProcessForCausalLM.from_process(family, 3)(rows).logits)
    assert not any(info.values())
    with pytest.raises(InputError, match="token is given; expected the folder of the process itself"):
        ProcessForCausalLM.from_pretrained(tmp_path, token="hf_x")
    with pytest.raises(InputError, match="bos_token_id is 2; expected 3"):
        AutoModelForCausalLM.from_pretrained(tmp_path, bos_token_id=2)
    with pytest.raises(InputError, match="has a model of its own; save HMMForCausalLM"):
        ProcessForCausalLM.from_process(MESS3).save_pretrained(tmp_path / "own")
    assert not (tmp_path / "own").exists()


@pytest.mark.thorough
def test_models_of_processes_are_scored_as_they_are_and_get_a_beginning_token(tmp_path):
    """A tilted HMM was not found, and would have been taken for the HMM."""
    from accelerate import Accelerator

    tilted = TiltedHMM(MESS3, [0.0, 1.0, -1.0], 0.5, 8)
    tilted.save_pretrained(tmp_path / "tilted")
    family = PermutedSymbols(MESS3)
    ProcessForCausalLM.from_process(family).save_pretrained(tmp_path / "family")
    for name, process in (("tilted", tilted), ("family", family)):
        model = load_causal_lm(str(tmp_path / name), Accelerator(cpu=True))
        rows = rows_of(MESS3, 3, 7)
        np.testing.assert_allclose(
            model(rows).logits[..., :-1].exp(), process.next_token_probs(rows[:, 1:]), atol=1e-12
        )


def test_the_trainer_evaluates_it(tmp_path):
    process = EXAMPLES["order 1"]
    rows = [{"input_ids": row, "labels": row} for row in process.sample(6, 5, seed=2).astype(np.int64)]
    trainer = Trainer(
        ProcessForCausalLM.from_process(process),
        TrainingArguments(str(tmp_path), use_cpu=True, report_to=[], per_device_eval_batch_size=2),
        eval_dataset=rows,
    )
    tokens = np.stack([row["labels"] for row in rows])
    probs = process.next_token_probs(tokens)[:, 1:-1]
    expected = -np.log(np.take_along_axis(probs, tokens[:, 1:, None], 2)).mean()
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, abs=1e-6)


def test_what_is_no_such_model_is_refused():
    with pytest.raises(InputError, match="a config has no process"):
        AutoModelForCausalLM.from_config(ProcessConfig())
    with pytest.raises(InputError, match="distribution of the next token is not known"):
        ProcessForCausalLM.from_process(PermutedEmissions(processes.random(12, 3)))
    model = ProcessForCausalLM.from_process(EXAMPLES["order 1"], 3)
    with pytest.raises(InputError, match="has no hidden states here"):
        model(torch.zeros(1, 2, dtype=torch.long), output_hidden_states=True)
