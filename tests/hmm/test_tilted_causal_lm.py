"""The causal language model of a tilted HMM predicts as the tilted HMM does."""

import copy
import itertools

import numpy as np
import pytest
import torch
from brute_force import random_edges
from transformers import AutoModelForCausalLM

from hmm_datasets.compat.transformers_caches import output_cache
from hmm_datasets.errors import InputError
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.causal_lm import LOGIT_OF_ZERO, BeliefCache, HMMForCausalLM
from hmm_datasets.hmm.tilted import TiltedHMM
from hmm_datasets.hmm.tilted_causal_lm import TiltedHMMForCausalLM

LENGTH = 8
TILTED = {
    "symbols": TiltedHMM(processes.random(4, 3, seed=1), [0.0, 1.0, -1.0], 0.5, LENGTH),
    "pairs": TiltedHMM(random_edges(3, 3, seed=4, zeros=0.3), np.eye(3) - 0.5, 0.5, LENGTH),
    "zeros": TiltedHMM(processes.golden_mean(0.3), [[0.0, 1.0], [2.0, -1.0]], 0.5, LENGTH),
}


@pytest.fixture(params=list(TILTED))
def tilted(request) -> TiltedHMM:
    return TILTED[request.param]


def with_bos(tilted: TiltedHMM) -> TiltedHMMForCausalLM:
    return TiltedHMMForCausalLM.from_tilted(tilted, bos_token_id=tilted.num_symbols)


def rows_of(tilted: TiltedHMM, count: int, seed: int = 0) -> torch.Tensor:
    tokens = torch.from_numpy(tilted.sample(count, seed=seed).astype(np.int64))
    return torch.cat([torch.full((count, 1), tilted.num_symbols), tokens], dim=1)


def test_logits_are_the_log_probabilities_of_the_next_token(tilted):
    rows = rows_of(tilted, 5)
    expected = tilted.next_token_probs(rows[:, 1:]).log().clamp(min=LOGIT_OF_ZERO)
    output = with_bos(tilted)(rows, labels=rows, output_hidden_states=True)
    torch.testing.assert_close(output.logits[..., :-1], expected, rtol=0, atol=1e-12)
    assert (output.logits[..., -1] == LOGIT_OF_ZERO).all()
    assert output.loss.item() == pytest.approx(-tilted.log_likelihood(rows[:, 1:]).mean().item() / LENGTH, abs=1e-12)
    torch.testing.assert_close(output.hidden_states[0], tilted.hmm.beliefs(rows[:, 1:]), rtol=0, atol=1e-12)
    bare = TiltedHMMForCausalLM.from_tilted(tilted)(rows[:, 1:]).logits
    torch.testing.assert_close(bare, expected[:, 1:], rtol=0, atol=1e-12)


def test_padding_caches_and_packing_change_nothing(tilted):
    model = with_bos(tilted)
    row, other = rows_of(tilted, 2)
    expected = model(row[None]).logits
    mask = torch.ones(1, 12, dtype=torch.long)
    mask[:, :3] = 0
    padded = torch.cat([torch.full((3,), 999), row])[None]
    torch.testing.assert_close(model(padded, attention_mask=mask).logits[:, 3:], expected, rtol=0, atol=0)
    past = output_cache(model(padded[:, :6], attention_mask=mask[:, :6]))
    assert isinstance(past, BeliefCache)
    rest = model(padded[:, 6:], attention_mask=mask, past_key_values=past).logits
    torch.testing.assert_close(rest, expected[:, 3:], rtol=0, atol=0)
    packed = model(torch.cat([other, row])[None]).logits
    torch.testing.assert_close(packed[:, 9:], expected, rtol=0, atol=0)


def test_generated_tokens_follow_the_law():
    tilted = TiltedHMM(processes.golden_mean(0.3), [[0.0, 1.0], [2.0, -1.0]], 0.5, 4)
    torch.manual_seed(0)
    count = 4000
    drawn = with_bos(tilted).generate(torch.full((count, 1), 2), do_sample=True, max_new_tokens=4)[:, 1:]
    words = torch.tensor(list(itertools.product(range(2), repeat=4)))
    expected = count * tilted.log_likelihood(words).exp()
    observed = (drawn.unsqueeze(1) == words).all(-1).sum(0)
    assert (observed[expected == 0] == 0).all()
    possible = expected > 0
    chi_square = ((observed - expected)[possible] ** 2 / expected[possible]).sum()
    assert chi_square < 24.3  # 99.9th percentile at 7 degrees of freedom; 8 of 16 words are possible


@pytest.mark.thorough
def test_generation_agrees_with_and_without_cache_and_goes_on_after_the_last_token(tilted):
    model = with_bos(tilted)
    for settings in ({"do_sample": True}, {"num_beams": 3}):
        drawn = []
        for use_cache in (True, False):
            torch.manual_seed(1)
            settings_now = {"max_new_tokens": LENGTH + 4, "use_cache": use_cache, **settings}
            drawn.append(model.generate(rows_of(tilted, 3)[:, :3], **settings_now))
        assert torch.equal(*drawn)
        assert drawn[0].shape == (3, LENGTH + 7)


def test_a_saved_model_loads_as_a_model_and_as_a_tilted_hmm(tilted, tmp_path):
    rows = rows_of(tilted, 3)
    model = with_bos(tilted)
    model.save_pretrained(tmp_path / "model")
    tilted.save_pretrained(tmp_path / "tilted")
    for folder, extra in (("model", {}), ("tilted", {"bos_token_id": tilted.num_symbols})):
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / folder, dtype=torch.bfloat16, **extra)
        assert isinstance(loaded, TiltedHMMForCausalLM)
        assert {parameter.dtype for parameter in loaded.parameters()} == {torch.float64}
        assert torch.equal(loaded(rows).logits, model(rows).logits)
        assert TiltedHMM.from_pretrained(tmp_path / folder).fingerprint() == tilted.fingerprint()
    assert torch.equal(copy.deepcopy(model)(rows).logits, model(rows).logits)


def test_tables_and_settings_that_do_not_belong_together_are_refused(tmp_path):
    TILTED["symbols"].save_pretrained(tmp_path)
    with pytest.raises(InputError, match="tables have fingerprint"):
        AutoModelForCausalLM.from_pretrained(tmp_path, beta=3.0)


def test_with_a_large_beta_it_is_the_model_of_the_hmm(tilted):
    rows = rows_of(tilted, 3)
    free = TiltedHMM(tilted.hmm, tilted.rewards, 1e9, LENGTH)
    expected = HMMForCausalLM.from_hmm(tilted.hmm, bos_token_id=tilted.num_symbols)(rows).logits
    torch.testing.assert_close(with_bos(free)(rows).logits, expected, rtol=0, atol=1e-6)


def test_beliefs_after_an_impossible_token_are_zeros():
    tilted = TiltedHMM(processes.golden_mean(), [0.0, 1.0], 1.0, 4)
    output = with_bos(tilted)(torch.tensor([[2, 0, 0, 1]]), output_hidden_states=True)
    assert (output.hidden_states[0][0, 2:] == 0).all()
