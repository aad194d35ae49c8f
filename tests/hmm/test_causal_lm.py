import itertools
import json
from functools import partial

import numpy as np
import pytest
import torch
from needed_versions import needs
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from hmm_datasets.compat.transformers_caches import CACHE_NAMES, output_cache
from hmm_datasets.errors import InputError
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.causal_lm import LOGIT_OF_ZERO, BeliefCache, HMMConfig, HMMForCausalLM
from hmm_datasets.hmm.model import HMM

HMMS = {
    "state": processes.random(4, 5, seed=1),
    "edge": processes.mess3(0.15, 0.6),
    "zeros": processes.golden_mean(0.3),
    "fixed start": processes.dishonest_casino(),
}


@pytest.fixture(params=list(HMMS))
def hmm(request) -> HMM:
    return HMMS[request.param]


def rows_of(hmm: HMM, count: int, length: int, bos: bool = True, seed: int = 0) -> torch.Tensor:
    tokens = torch.from_numpy(hmm.sample(count, length, seed=seed).astype(np.int64))
    return torch.cat([torch.full((count, 1), hmm.num_symbols), tokens], dim=1) if bos else tokens


def with_bos(hmm: HMM) -> HMMForCausalLM:
    return HMMForCausalLM.from_hmm(hmm, bos_token_id=hmm.num_symbols)


def test_logits_are_the_log_probabilities_of_the_next_token(hmm):
    rows = rows_of(hmm, 3, 12)
    distribution = hmm.next_token_probs(rows[:, 1:])
    logits = with_bos(hmm)(rows).logits
    assert logits.shape == (3, 13, hmm.num_symbols + 1)
    assert logits.dtype == torch.float64
    torch.testing.assert_close(logits[..., :-1], distribution.log().clamp(min=LOGIT_OF_ZERO), rtol=0, atol=1e-12)
    assert (logits[..., -1] == LOGIT_OF_ZERO).all()


def test_logits_without_bos_start_with_the_second_token(hmm):
    rows = rows_of(hmm, 3, 12, bos=False)
    logits = HMMForCausalLM.from_hmm(hmm)(rows).logits
    assert logits.shape == (3, 12, hmm.num_symbols)
    torch.testing.assert_close(logits.exp(), hmm.next_token_probs(rows)[:, 1:], rtol=0, atol=1e-12)


def test_softmax_entropy_and_float32_make_no_nan_of_a_zero():
    model = with_bos(processes.golden_mean())
    logits = model(torch.tensor([[2, 0]])).logits
    assert logits.softmax(-1)[0, 1].tolist() == [0, 1, 0]
    assert (logits.softmax(-1) * logits.log_softmax(-1)).sum(-1).isfinite().all()
    assert logits.float().isfinite().all()
    assert logits.float().softmax(-1)[0, 1].tolist() == [0, 1, 0]


def test_loss_is_the_negative_log_likelihood_a_token(hmm):
    rows = rows_of(hmm, 4, 20)
    model = with_bos(hmm)
    expected = -hmm.log_likelihood(rows[:, 1:]).sum() / (4 * 20)
    torch.testing.assert_close(model(rows, labels=rows).loss, expected, rtol=0, atol=1e-12)
    by_transformers = model.loss_function(logits=model(rows).logits, labels=rows, vocab_size=hmm.num_symbols + 1)
    assert by_transformers.item() == pytest.approx(expected.item(), abs=1e-5)


def test_labels_of_minus_100_count_for_nothing(hmm):
    rows = rows_of(hmm, 2, 8)
    labels = rows.clone()
    labels[:, 6:] = -100
    loss = with_bos(hmm)(rows, labels=labels).loss
    torch.testing.assert_close(loss, -hmm.log_likelihood(rows[:, 1:6]).sum() / 10, rtol=0, atol=1e-12)
    halved = with_bos(hmm)(rows, labels=labels, num_items_in_batch=20).loss
    torch.testing.assert_close(halved, loss / 2)


def test_an_impossible_label_costs_infinitely_many_nats_and_no_nan():
    model = with_bos(processes.golden_mean())
    rows = torch.tensor([[2, 0, 0, 1, 1]])
    output = model(rows, labels=rows)
    assert output.loss.item() == float("inf")
    assert (output.logits[0, 2:] == LOGIT_OF_ZERO).all()
    assert not output.logits.isnan().any()


def test_generated_tokens_follow_the_distribution_of_the_hmm():
    hmm = HMMS["zeros"]
    torch.manual_seed(0)
    count = 4000
    drawn = with_bos(hmm).generate(torch.full((count, 1), 2), do_sample=True, max_new_tokens=3)[:, 1:]
    words = torch.tensor(list(itertools.product(range(2), repeat=3)))
    expected = count * hmm.log_likelihood(words).exp()
    observed = (drawn.unsqueeze(1) == words).all(-1).sum(0)
    assert (observed[expected == 0] == 0).all()
    possible = expected > 0
    chi_square = ((observed - expected)[possible] ** 2 / expected[possible]).sum()
    assert chi_square < 20.5  # 99.9th percentile at 5 degrees of freedom; 5 of 8 words are possible


def test_generation_draws_from_all_symbols_not_from_the_fifty_likeliest(tmp_path):
    hmm = HMM(transition=[[1.0]], emission=np.full((1, 200), 1 / 200))
    with_bos(hmm).save_pretrained(tmp_path)
    torch.manual_seed(0)
    for model in (with_bos(hmm), AutoModelForCausalLM.from_pretrained(tmp_path)):
        drawn = model.generate(torch.full((4000, 1), 200), do_sample=True, max_new_tokens=1)[:, 1]
        assert len(drawn.unique()) == 200


def test_generation_begins_with_bos_when_nothing_is_given():
    assert with_bos(HMMS["edge"]).generate(max_new_tokens=2).tolist()[0][0] == 3


def test_generation_with_and_without_the_cache_agrees(hmm):
    model = with_bos(hmm)
    prompts = rows_of(hmm, 3, 5)
    for settings in ({"do_sample": True}, {"num_beams": 3}):
        results = []
        for use_cache in (True, False):
            torch.manual_seed(1)
            results.append(model.generate(prompts, max_new_tokens=6, use_cache=use_cache, **settings))
        assert torch.equal(*results)


def test_wide_beams_find_the_likeliest_continuation(hmm):
    prompts = rows_of(hmm, 2, 4)
    found = with_bos(hmm).generate(prompts, max_new_tokens=3, num_beams=hmm.num_symbols**2)[:, -3:]
    for prompt, continuation in zip(prompts, found, strict=True):
        words = torch.tensor(list(itertools.product(range(hmm.num_symbols), repeat=3)))
        whole = torch.cat([prompt[1:].expand(len(words), -1), words], dim=1)
        scores = hmm.log_likelihood(whole)
        ours = hmm.log_likelihood(torch.cat([prompt[1:], continuation])[None])
        assert ours.item() == pytest.approx(scores.max().item(), abs=1e-6)


def test_a_cache_continues_where_it_stopped(hmm):
    model = with_bos(hmm)
    rows = rows_of(hmm, 3, 10)
    whole = model(rows).logits
    first = model(rows[:, :4])
    past = output_cache(first)
    assert isinstance(past, BeliefCache)
    assert past.get_seq_length() == 4
    for name in CACHE_NAMES:
        second = model(rows[:, 4:], attention_mask=torch.ones_like(rows), **{name: past})
        torch.testing.assert_close(second.logits, whole[:, 4:], rtol=0, atol=1e-12)
    assert output_cache(model(rows, use_cache=False)) is None


@pytest.mark.outside(
    "https://github.com/huggingface/transformers/issues/24841",
    "read a prompt once, and generate from its cache several times",
    "`generate` continues from the belief that an earlier call returned",
)
@pytest.mark.outside(
    "https://github.com/huggingface/transformers/issues/38727",
    "generate in rounds, giving the cache of the last round back",
    "the tokens are those of one call",
)
@pytest.mark.parametrize("bos", [True, False])
def test_a_cache_can_be_given_back_to_generate(hmm, bos):
    """A beginning token would hide that the prompt is read again, since it forgets what was before."""
    model = with_bos(hmm) if bos else HMMForCausalLM.from_hmm(hmm)
    rows = rows_of(hmm, 2, 6)[:, 0 if bos else 1 :]
    options = {"max_new_tokens": 4, "attention_mask": torch.ones_like(rows), "output_logits": True}
    options |= {"return_dict_in_generate": True}
    expected = model.generate(rows, **options)
    for name in CACHE_NAMES:
        going_on = model.generate(rows, **options, **{name: output_cache(model(rows[:, :4]))})
        assert torch.equal(going_on.sequences, expected.sequences)
        torch.testing.assert_close(going_on.logits, expected.logits, rtol=0, atol=1e-12)


def test_left_padding_changes_nothing(hmm):
    model = with_bos(hmm)
    long, short = rows_of(hmm, 2, 9)
    short = short[:5]
    for pad in (0, hmm.num_symbols, 12345):
        batch = torch.stack([long, torch.cat([torch.full((5,), pad), short])])
        mask = torch.ones_like(batch)
        mask[1, :5] = 0
        logits = model(batch, attention_mask=mask).logits
        torch.testing.assert_close(logits[0], model(long[None]).logits[0], rtol=0, atol=1e-12)
        torch.testing.assert_close(logits[1, 5:], model(short[None]).logits[0], rtol=0, atol=1e-12)
        both = model.generate(batch, attention_mask=mask, max_new_tokens=4, pad_token_id=pad)
        assert torch.equal(both[1, 10:], model.generate(short[None], max_new_tokens=4)[0, 5:])
        sums = {"attention_mask": mask, "labels": batch.masked_fill(mask == 0, -100)}
        expected = -(hmm.log_likelihood(long[None, 1:]) + hmm.log_likelihood(short[None, 1:])).item() / (9 + 4)
        # The label of the short row's BOS is impossible by construction, so it is left out as well.
        sums["labels"][1, 5] = -100
        assert model(batch, **sums).loss.item() == pytest.approx(expected, abs=1e-12)


def test_right_padding_changes_nothing(hmm):
    model = with_bos(hmm)
    row = rows_of(hmm, 1, 6)
    padded = torch.cat([row, torch.zeros(1, 3, dtype=torch.long)], dim=1)
    output = model(padded, attention_mask=(torch.arange(10) < 7).long()[None])
    torch.testing.assert_close(output.logits[:, :7], model(row).logits, rtol=0, atol=0)
    assert torch.equal(output_cache(output).belief, output_cache(model(row)).belief)


def test_sequences_packed_in_one_row_do_not_see_each_other(hmm):
    first, second = rows_of(hmm, 2, 6)
    model = with_bos(hmm)
    packed = model(torch.cat([first, second])[None]).logits[0]
    torch.testing.assert_close(packed[7:], model(second[None]).logits[0], rtol=0, atol=1e-12)
    bare = HMMForCausalLM.from_hmm(hmm)
    positions = torch.arange(6).repeat(2)[None]
    packed = bare(torch.cat([first[1:], second[1:]])[None], position_ids=positions).logits[0]
    torch.testing.assert_close(packed[6:], bare(second[None, 1:]).logits[0], rtol=0, atol=1e-12)


def test_hidden_states_are_the_beliefs(hmm):
    rows = rows_of(hmm, 2, 7)
    (beliefs,) = with_bos(hmm)(rows, output_hidden_states=True).hidden_states
    torch.testing.assert_close(beliefs, hmm.beliefs(rows[:, 1:]), rtol=0, atol=1e-12)
    assert with_bos(hmm)(rows).hidden_states is None


def test_logits_to_keep_keeps_the_last_or_the_named(hmm):
    rows, model = rows_of(hmm, 2, 7), with_bos(hmm)
    whole = model(rows).logits
    # A product of fewer rows may be summed in another order.
    close = partial(torch.testing.assert_close, rtol=0, atol=1e-12)
    close(model(rows, logits_to_keep=2).logits, whole[:, -2:])
    close(model(rows, logits_to_keep=torch.tensor([1, 3])).logits, whole[:, [1, 3]])
    assert torch.equal(model(rows, return_dict=False)[0], whole)


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [None, "auto", torch.bfloat16, torch.float16, torch.float32])
def test_a_folder_of_hmm_save_pretrained_loads_in_float64_whatever_is_asked(hmm, tmp_path, dtype):
    hmm.save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype)
    assert isinstance(model, HMMForCausalLM)
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    assert model.dtype == model.config.dtype == torch.float64
    assert not any(p.requires_grad for p in model.parameters())
    assert model.to_hmm() == hmm


def test_bos_can_be_added_on_loading(hmm, tmp_path):
    hmm.save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, bos_token_id=hmm.num_symbols)
    rows = rows_of(hmm, 2, 5)
    assert torch.equal(model(rows).logits, with_bos(hmm)(rows).logits)
    assert AutoConfig.from_pretrained(tmp_path).vocab_size == hmm.num_symbols
    with pytest.raises(InputError, match=f"bos_token_id is 0; expected {hmm.num_symbols}"):
        AutoModelForCausalLM.from_pretrained(tmp_path, bos_token_id=0)


def test_casts_leave_the_tables_as_they_are(hmm):
    rows = rows_of(hmm, 2, 30)
    model = with_bos(hmm)
    expected = model(rows).logits
    for cast in (model.to(torch.bfloat16), model.half(), model.bfloat16(), model.float()):
        assert torch.equal(cast(rows).logits, expected)
        assert cast.to_hmm() == hmm
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(model(rows).logits, expected)


def test_a_saved_model_loads_as_a_model_and_as_an_hmm(hmm, tmp_path):
    named = HMM(**hmm.tables(), vocabulary=[f"s{x}" for x in range(hmm.num_symbols)])
    with_bos(named).save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert model.config.bos_token_id == model.generation_config.bos_token_id == hmm.num_symbols
    rows = rows_of(hmm, 2, 9)
    assert torch.equal(model(rows).logits, with_bos(hmm)(rows).logits)
    back = HMM.from_pretrained(tmp_path)
    assert back == hmm
    assert back.vocabulary == named.vocabulary == model.to_hmm().vocabulary


def test_tables_that_were_stored_in_lower_precision_are_refused(tmp_path):
    HMMS["state"].save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    save_file({k: v.float() for k, v in load_file(path).items()}, path, {"format": "pt"})
    with pytest.raises(InputError, match=r"fingerprint .* lower precision"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_a_file_that_lacks_a_table_is_refused(tmp_path):
    HMMS["state"].save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    save_file({k: v for k, v in load_file(path).items() if k != "emission"}, path, {"format": "pt"})
    with pytest.raises(InputError):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_a_model_made_from_a_config_alone_is_uniform():
    for edge_emitting in (False, True):
        config = HMMConfig(num_states=3, num_symbols=4, edge_emitting=edge_emitting)
        logits = AutoModelForCausalLM.from_config(config)(torch.tensor([[1, 2]])).logits
        torch.testing.assert_close(logits.exp(), torch.full((1, 2, 4), 0.25, dtype=torch.float64))


def test_the_trainer_evaluates_the_optimum_in_bf16_too(tmp_path):
    from transformers import Trainer, TrainingArguments

    hmm = HMMS["edge"]
    rows = rows_of(hmm, 10, 16)
    arguments = TrainingArguments(
        str(tmp_path), per_device_eval_batch_size=4, bf16_full_eval=True, use_cpu=True, report_to=[], disable_tqdm=True
    )
    trainer = Trainer(with_bos(hmm), arguments, eval_dataset=[{"input_ids": row, "labels": row} for row in rows])
    loss = trainer.evaluate()["eval_loss"]
    assert loss == pytest.approx(-hmm.log_likelihood(rows[:, 1:]).sum().item() / 160, abs=1e-6)


def test_bad_input_is_reported_in_one_line(tmp_path):
    hmm = HMMS["edge"]
    model = with_bos(hmm)
    rows = rows_of(hmm, 2, 4)
    with pytest.raises(InputError, match=r"bos_token_id is 0; expected 3"):
        HMMForCausalLM.from_hmm(hmm, bos_token_id=0)
    with pytest.raises(InputError, match=r"tokens\[0, 1\] is 4; the symbols of this HMM are 0..2"):
        model(torch.tensor([[3, 4]]))
    with pytest.raises(InputError, match=r"tokens\[0, 0\] is 3"):
        HMMForCausalLM.from_hmm(hmm)(torch.tensor([[3, 1]]))
    with pytest.raises(InputError, match=r"attention_mask has shape \(2, 1, 5, 5\)"):
        model(rows, attention_mask=torch.ones(2, 1, 5, 5))
    with pytest.raises(InputError, match=r"attention_mask has shape \(2, 4\); expected \(2, 5\) or more"):
        model(rows, attention_mask=torch.ones(2, 4))
    with pytest.raises(InputError, match=r"the cache holds \(2, 3\); .* of shape \(1, 3\)"):
        model(rows[:1], past_key_values=output_cache(model(rows)))
    with pytest.raises(InputError, match="labels contain 7; expected tokens"):
        model(rows, labels=torch.full_like(rows, 7))
    with pytest.raises(InputError, match="cannot be rolled back"):
        output_cache(model(rows)).crop(-1)
    full = DynamicCache()
    full.update(torch.zeros(2, 1, 3, 1), torch.zeros(2, 1, 3, 1), 0)
    with pytest.raises(InputError, match="holds DynamicCache; expected a BeliefCache"):
        model(rows, past_key_values=full)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "format_version": 99}))
    with pytest.raises(InputError, match="format_version is 99; this package reads 1"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


@needs("trl>=1.15")
def test_trl_takes_it_apart_as_a_reference(hmm):
    """TRL's trainers multiply hidden states and output layer themselves, in pieces."""
    from trl.trainer.utils import add_fused_lm_head

    model, rows = with_bos(hmm), rows_of(hmm, 4, 12)
    add_fused_lm_head(model)
    labels = rows.masked_fill(rows == hmm.num_symbols, -100)
    scored = model(rows, attention_mask=torch.ones_like(rows), labels=labels, fused_lm_head=True).log_probs
    torch.testing.assert_close(scored.sum(1).double(), hmm.log_likelihood(rows[:, 1:]), rtol=0, atol=1e-4)
