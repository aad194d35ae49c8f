"""A cache reaches a model under the name of the installed transformers, or the model refuses it."""

import pytest
import torch
from recurrent import RecurrentConfig, RecurrentForCausalLM
from transformers import AutoModelForCausalLM, DynamicCache, LlamaConfig, LlamaForCausalLM

from hmm_datasets import processes
from hmm_datasets.compat.transformers_caches import (
    CACHE_NAME,
    CACHE_NAMES,
    generate,
    output_cache,
    positions_kept,
    takes_cache,
)
from hmm_datasets.errors import InputError
from hmm_datasets.hmm.causal_lm import HMMForCausalLM
from hmm_datasets.hmm.process_causal_lm import ProcessForCausalLM
from hmm_datasets.hmm.tilted import TiltedHMM
from hmm_datasets.hmm.tilted_causal_lm import TiltedHMMForCausalLM


def models_of_this_package():
    tilted = TiltedHMM(processes.mess3(), [0.0, 1.0, 0.0], 0.5, 4)
    torch.manual_seed(0)
    return [
        HMMForCausalLM.from_hmm(processes.mess3(), bos_token_id=3),
        TiltedHMMForCausalLM.from_tilted(tilted, bos_token_id=3),
        RecurrentForCausalLM(RecurrentConfig(vocab_size=4, hidden_size=8)).eval(),
        RecurrentForCausalLM(RecurrentConfig(vocab_size=4, hidden_size=8, cell="gru")).eval(),
    ]


@pytest.mark.outside(
    "https://github.com/huggingface/transformers/issues/29501",
    "a state passed from step to step under the name `cache_params`",
    "models of this package take `cache` and `past_key_values`, and refuse a cache of any other name in one line",
)
@pytest.mark.parametrize("model", models_of_this_package(), ids=lambda model: type(model).__name__)
def test_a_model_refuses_a_cache_that_it_does_not_know(model):
    tokens = torch.tensor([[3, 0, 1]])
    past = output_cache(model(tokens))
    with pytest.raises(InputError, match=r"a cache as cache, past_key_values; expected one, as " + CACHE_NAME):
        model(tokens, cache=past, past_key_values=past)
    for name in ("cache_params", "mems", "next_name"):
        with pytest.raises(InputError, match=f"given a cache as {name}; expected one"):
            model(tokens, **{name: past})
    whole = model(torch.cat([tokens, tokens], 1)).logits[:, 3:]
    for name in CACHE_NAMES:
        torch.testing.assert_close(model(tokens, **{name: past}).logits, whole)


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/huggingface/transformers/issues/36536",
    "the same tokens from `generate` with and without a cache",
    "equal for HMMs, tilted HMMs and recurrent models, under every version that is admitted",
)
@pytest.mark.parametrize("name", ["rrxor", "even", "golden_mean"])
def test_sequences_drawn_with_a_cache_are_possible(name, tmp_path):
    hmm = getattr(processes, name)()
    model = HMMForCausalLM.from_hmm(hmm, bos_token_id=hmm.num_symbols)
    model.save_pretrained(tmp_path)
    for loaded in (model, AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=True)):
        torch.manual_seed(0)
        begin = torch.full((500, 1), hmm.num_symbols)
        drawn = [loaded.generate(begin, do_sample=True, max_new_tokens=9, use_cache=cache) for cache in (True, False)]
        for tokens in drawn:
            assert hmm.log_likelihood(tokens[:, 1:]).isfinite().all()


@pytest.mark.outside(
    "https://github.com/huggingface/transformers/pull/47720",
    "the argument of `crop` changed from the positions that stay to those that go, and 0 from all to none",
    "a cache of this package means by it what `DynamicCache` of the installed version means",
)
@pytest.mark.parametrize("argument", [3, 1, 0, -1, -3])
def test_a_cache_is_cropped_as_the_installed_version_crops_its_own(argument):
    theirs, rows = DynamicCache(), torch.zeros(1, 1, 4, 1)
    theirs.update(rows, rows, 0)
    try:
        theirs.crop(argument)
    except ValueError:  # positive numbers from 5.20 on
        assert argument > 0
        return
    assert positions_kept(argument, 4) == theirs.get_seq_length()
    ours = output_cache(ProcessForCausalLM.from_process(processes.mess3(), 3)(torch.tensor([[3, 0, 1, 2]])))
    ours.crop(argument)
    assert ours.get_seq_length() == theirs.get_seq_length()


@pytest.mark.outside(
    "https://github.com/huggingface/transformers/issues/47433",
    "`crop(-5)` of a cache of three positions leaves one of them",
    "a cache of this package is then empty",
)
def test_more_than_there_are_cannot_be_taken_back():
    assert [positions_kept(argument, 3) for argument in (-3, -5, 5)] == [0, 0, 3]


@pytest.mark.outside(
    "https://github.com/huggingface/transformers/issues/36071",
    "`get_max_length` of a cache, which was called `get_max_cache_shape` in some versions",
    "caches of this package have both names",
)
@pytest.mark.parametrize("model", models_of_this_package(), ids=lambda model: type(model).__name__)
def test_a_cache_has_no_greatest_length_by_either_name(model):
    cache = output_cache(model(torch.tensor([[3, 0, 1]])))
    assert cache.get_max_length() == cache.get_max_cache_shape() == -1


class Network(LlamaForCausalLM):
    """A network whose author knows one name of the cache, and lets others pass."""

    def read(self, input_ids, attention_mask, past, others):
        others = {name: value for name, value in others.items() if name in ("position_ids", "logits_to_keep")}
        return super().forward(input_ids, attention_mask=attention_mask, **{CACHE_NAME: past}, **others)


class TakesCache(Network):
    def forward(self, input_ids, attention_mask=None, cache=None, use_cache=None, **others):
        return self.read(input_ids, attention_mask, cache, others)


class TakesPastKeyValues(Network):
    def forward(self, input_ids, attention_mask=None, past_key_values=None, use_cache=None, **others):
        return self.read(input_ids, attention_mask, past_key_values, others)


@pytest.mark.outside(
    "https://github.com/salesforce/progen/pull/36",
    "a network whose argument for the cache has the name of another version of transformers",
    "this package generates from it without a cache, so that each token follows all before it",
)
@pytest.mark.outside(
    "https://github.com/mosaicml/examples/pull/250",
    "the argument `past` was renamed: a network of before should generate as it did",
    "it generates without a cache",
)
def test_a_network_of_another_version_generates_without_the_cache():
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=50, bos_token_id=None, eos_token_id=None, initializer_range=1.0, **sizes)
    plain = LlamaForCausalLM(config).eval()
    networks = [kind(config).eval() for kind in (TakesCache, TakesPastKeyValues)]
    assert sorted(map(takes_cache, networks)) == [False, True]
    prompt = torch.randint(50, (4, 6))
    how = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    expected = plain.generate(prompt, use_cache=False, **how)
    for model in (plain, *networks):
        model.load_state_dict(plain.state_dict())
        assert torch.equal(generate(model, input_ids=prompt, **how), expected)
