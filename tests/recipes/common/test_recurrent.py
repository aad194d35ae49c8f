"""LSTM and GRU models are causal, step as they read, are saved and loaded, and give hidden states to probes."""

import json

import pytest
import torch
from accelerate import Accelerator
from recurrent import RecurrentConfig, RecurrentForCausalLM
from transformers import AutoModel, AutoModelForCausalLM

from hmm_datasets import HMMSequences
from hmm_datasets.compat.transformers_caches import CACHE_NAME, CACHE_NAMES, output_cache
from hmm_datasets.errors import InputError
from hmm_datasets.evaluation.beliefs import probe_beliefs
from hmm_datasets.hmm import processes
from hmm_datasets.training.model_configs import is_recurrent, model_config, new_model
from hmm_datasets.training.pretrained import load_pretrained


@pytest.fixture(params=["lstm", "gru"])
def model(request):
    torch.manual_seed(0)
    return RecurrentForCausalLM(RecurrentConfig(vocab_size=7, cell=request.param, hidden_size=12)).eval()


TOKENS = torch.randint(0, 7, (3, 9), generator=torch.Generator().manual_seed(1))


def test_logits_depend_on_earlier_tokens_alone(model):
    changed = TOKENS.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 7
    before, after = model(TOKENS).logits, model(changed).logits
    torch.testing.assert_close(before[:, :5], after[:, :5], rtol=0, atol=0)
    assert (before[:, 5:] - after[:, 5:]).abs().amax(-1).min() > 0


def test_reading_in_two_parts_gives_the_logits_of_one_pass(model):
    first = model(TOKENS[:, :4])
    for name in CACHE_NAMES:
        second = model(TOKENS[:, 4:], **{name: output_cache(first)})
        assert output_cache(second).get_seq_length() == 9
        torch.testing.assert_close(torch.cat([first.logits, second.logits], 1), model(TOKENS).logits)
    torch.testing.assert_close(model(TOKENS, logits_to_keep=2).logits, model(TOKENS).logits[:, -2:])


def test_generation_goes_on_greedily_from_the_cache(model):
    found = model.generate(TOKENS, max_new_tokens=4, do_sample=False)
    expected = TOKENS
    for _ in range(4):
        expected = torch.cat([expected, model(expected).logits[:, -1:].argmax(-1)], 1)
    assert found.tolist() == expected.tolist()
    assert model.generate(TOKENS, max_new_tokens=4, num_beams=2).shape == (3, 13)


def test_generation_goes_on_from_a_cache_that_has_read_the_prompt(model):
    options = {"max_new_tokens": 3, "attention_mask": torch.ones_like(TOKENS), "output_logits": True}
    options |= {"return_dict_in_generate": True}
    expected = model.generate(TOKENS, **options).logits
    for name in CACHE_NAMES if CACHE_NAMES[0] == CACHE_NAME else [CACHE_NAME]:
        found = model.generate(TOKENS, **options, **{name: output_cache(model(TOKENS[:, :6]))}).logits
        torch.testing.assert_close(found, expected)


@pytest.mark.outside(
    "https://github.com/jpWang/LiLT/issues/5",
    "a saved model whose type transformers does not know, loaded by AutoConfig",
    "importing `recipes/common/recurrent.py` registers its classes",
)
def test_a_saved_model_is_loaded_as_it_was(model, tmp_path):
    model.save_pretrained(tmp_path)
    for loaded in (
        AutoModelForCausalLM.from_pretrained(tmp_path),
        load_pretrained(AutoModelForCausalLM, str(tmp_path)),
    ):
        torch.testing.assert_close(loaded(TOKENS).logits, model(TOKENS).logits, rtol=0, atol=0)
    body = AutoModel.from_pretrained(tmp_path)(TOKENS)
    torch.testing.assert_close(model.lm_head(body.last_hidden_state), model(TOKENS).logits)


def test_a_configuration_in_json_makes_the_model_it_describes(tmp_path):
    path = tmp_path / "gru.json"
    path.write_text(json.dumps({"model_type": "recurrent", "cell": "gru", "hidden_size": 8, "num_hidden_layers": 3}))
    config = model_config(str(path), vocab_size=11, max_length=20, bos_token_id=10)
    model = new_model(config)
    assert (config.cell, config.vocab_size, is_recurrent(config)) == ("gru", 11, True)
    assert [type(layer).__name__ for layer in model.model.layers] == ["GRU"] * 3


def test_hidden_states_are_the_embedding_and_every_layer_and_can_be_probed(model):
    states = model(TOKENS, output_hidden_states=True).hidden_states
    assert [tuple(one.shape) for one in states] == [(3, 9, 12)] * 3
    torch.testing.assert_close(model.lm_head(states[-1]), model(TOKENS).logits)
    config = RecurrentConfig(vocab_size=4, cell=model.config.cell, hidden_size=12)
    rows = HMMSequences(processes.mess3(0.15, 0.6), length=8, num_sequences=16)
    found = probe_beliefs(RecurrentForCausalLM(config), processes.mess3(0.15, 0.6), rows, Accelerator(cpu=True))
    assert list(found["layers"]) == ["0", "1", "2", "all"]


def test_an_lstm_begins_by_remembering():
    model = RecurrentForCausalLM(RecurrentConfig(vocab_size=7, hidden_size=12))
    assert model.model.layers[1].bias_ih_l0.tolist() == [0.0] * 12 + [1.0] * 12 + [0.0] * 24


def test_padding_at_the_end_changes_nothing_before_it_and_padding_in_front_is_refused(model):
    mask = torch.ones_like(TOKENS)
    mask[1, 6:] = 0
    torch.testing.assert_close(model(TOKENS, attention_mask=mask).logits, model(TOKENS).logits)
    with pytest.raises(InputError, match="pad at the end of rows"):
        model(TOKENS, attention_mask=mask.flip(1))


def test_an_unknown_cell_is_refused():
    with pytest.raises(InputError, match="cell is 'elman'; expected one of lstm, gru"):
        RecurrentConfig(cell="elman")
