import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaForCausalLM

from hmm_datasets.errors import InputError
from hmm_datasets.training import models
from hmm_datasets.training.budget import accumulation_steps, steps_for_tokens
from hmm_datasets.training.models import PRESETS, count_parameters, llama_config

sizes = st.integers(1, 64)


@given(world_size=sizes, micro_batch=sizes, steps=sizes)
@settings(derandomize=True)
def test_accumulation_multiplies_out_to_the_global_batch(world_size, micro_batch, steps):
    assert accumulation_steps(world_size * micro_batch * steps, world_size, micro_batch) == steps


@given(global_batch=st.integers(1, 500), world_size=sizes, micro_batch=sizes)
@settings(derandomize=True)
def test_accumulation_is_exact_or_refused(global_batch, world_size, micro_batch):
    try:
        steps = accumulation_steps(global_batch, world_size, micro_batch)
    except InputError:
        assert global_batch % (world_size * micro_batch) != 0
    else:
        assert steps * world_size * micro_batch == global_batch


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        (
            (64, 3, 8),
            "global_batch_size 64 does not divide by world size 3 x per_device_train_batch_size 8; change one of the "
            "three",
        ),
        ((8, 2, 8), "global_batch_size 8 does not divide by world size 2 x per_device_train_batch_size 8"),
        ((0, 1, 1), "global_batch_size 0, world size 1, per_device_train_batch_size 1; expected all positive"),
        ((8, 0, 1), "world size 0, per_device_train_batch_size 1; expected all positive"),
        ((8, 1, -2), "per_device_train_batch_size -2; expected all positive"),
    ],
)
def test_batches_that_do_not_multiply_out_are_refused_with_all_three_numbers(numbers, message):
    with pytest.raises(InputError) as caught:
        accumulation_steps(*numbers)
    assert message in str(caught.value)


@given(tokens=st.integers(1, 10**13), global_batch=st.integers(1, 4096), row_length=st.integers(1, 8192))
@settings(derandomize=True)
def test_steps_consume_the_budget_and_less_than_a_step_more(tokens, global_batch, row_length):
    steps = steps_for_tokens(tokens, global_batch, row_length)
    consumed = steps * global_batch * row_length
    assert tokens <= consumed < tokens + global_batch * row_length


def test_a_budget_of_no_tokens_is_refused():
    with pytest.raises(InputError, match="train_tokens is 0; expected 1 or more"):
        steps_for_tokens(0, 64, 65)


# Sizes of models


def test_presets_have_the_parameters_their_table_says():
    rows = [line.split("|")[1:-1] for line in models.__doc__.splitlines() if line.startswith("|")][2:]
    assert [row[0].strip() for row in rows] == list(PRESETS)
    for name, layers, width, parameters in ([cell.strip() for cell in row] for row in rows):
        with torch.device("meta"):
            model = LlamaForCausalLM(llama_config(name, vocab_size=101, max_length=65))
        counts = count_parameters(model)
        assert (int(layers), int(width)) == (PRESETS[name].layers, PRESETS[name].width)
        told = parameters.removesuffix(" million")
        assert f"{counts['body'] / 1e6:.{len(told.partition('.')[2])}f}" == told, name
        assert counts["total"] == counts["body"] + 2 * 101 * PRESETS[name].width


def test_shared_embeddings_count_once():
    config = llama_config("1m", vocab_size=101, max_length=65, tie_embeddings=True, bos_token_id=100)
    model = LlamaForCausalLM(config)
    assert count_parameters(model)["total"] == count_parameters(model)["body"] + 101 * 128
    assert (config.bos_token_id, config.max_position_embeddings, config.use_cache) == (100, 65, False)


def test_an_unknown_preset_is_refused_with_the_known_ones():
    with pytest.raises(InputError, match="model preset '7b' is unknown; expected one of 1m, 3m, 10m"):
        llama_config("7b", vocab_size=10, max_length=10)


def test_a_depth_sets_the_rest():
    config = llama_config("d12", vocab_size=10, max_length=10)
    assert (config.num_hidden_layers, config.hidden_size, config.num_attention_heads) == (12, 768, 12)
    with pytest.raises(InputError, match="or a depth such as d12"):
        llama_config("d0", vocab_size=10, max_length=10)
