import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaForCausalLM

from hmm_datasets.errors import InputError
from hmm_datasets.training import model_configs
from hmm_datasets.training.model_configs import PRESETS, model_config
from hmm_datasets.training.parameters import count_parameters
from hmm_datasets.training.plan.batch_schedule import BatchSchedule
from hmm_datasets.training.plan.budget import Budget, accumulation_steps, read_budget

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
            "global_batch_size 64 is not a multiple of world size 3 x per_device_train_batch_size 8; change one of "
            "the three",
        ),
        ((8, 2, 8), "global_batch_size 8 is not a multiple of world size 2 x per_device_train_batch_size 8"),
        ((0, 1, 1), "global_batch_size 0, world size 1, per_device_train_batch_size 1; expected all positive"),
        ((8, 0, 1), "world size 0, per_device_train_batch_size 1; expected all positive"),
        ((8, 1, -2), "per_device_train_batch_size -2; expected all positive"),
    ],
)
def test_batches_that_do_not_multiply_out_are_refused_with_all_three_numbers(numbers, message):
    with pytest.raises(InputError) as caught:
        accumulation_steps(*numbers)
    assert message in str(caught.value)


# Steps of a budget

MODEL = {"parameters": 1_000, "flops_per_token": 7_000}


@given(tokens=st.integers(1, 10**13), global_batch=st.integers(1, 4096), row_length=st.integers(1, 8192))
@settings(derandomize=True)
def test_steps_exceed_the_budget_by_less_than_a_step(tokens, global_batch, row_length):
    steps = Budget(train_tokens=tokens).steps(BatchSchedule((), global_batch), tokens_per_row=row_length, **MODEL)
    consumed = steps * global_batch * row_length
    assert tokens <= consumed < tokens + global_batch * row_length


@given(amount=st.floats(1e-2, 1e4), batch=st.integers(1, 64), epoch=st.integers(100, 10**6))
@settings(derandomize=True)
def test_epochs_hours_and_money_are_not_exceeded_and_used_up_to_a_step(amount, batch, epoch):
    rates = {"rows_per_epoch": epoch, "tokens_per_second": 500.0, "money_per_second": 0.01}
    for name, rows in (
        ("num_train_epochs", amount * epoch),
        ("hours", amount * 3600 * 500 / 10),
        ("cost", amount / 0.01 * 500 / 10),
    ):
        budget = Budget(**{name: amount})
        try:
            steps = budget.steps(BatchSchedule((), batch), tokens_per_row=10.0, **MODEL, **rates)
        except InputError:
            assert rows < batch + 1
        else:
            assert rows - batch - 1 < steps * batch <= rows + 1e-6


@pytest.mark.parametrize(
    ("budget", "tokens"),
    [
        (Budget(), 20 * 1_000),
        (Budget(tokens_per_parameter=3.5), 3_500),
        (Budget(flops=7e7), 10_000),
        (Budget(train_tokens=12_345), 12_345),
    ],
)
def test_a_budget_in_tokens_of_any_kind_is_reached_by_the_last_step(budget, tokens):
    for stages in ((), ((2, 5), (4, 10))):
        schedule = BatchSchedule(stages, 8)
        steps = budget.steps(schedule, tokens_per_row=10.0, **MODEL)
        assert schedule.rows_before(steps - 1) * 10 < tokens <= schedule.rows_before(steps) * 10


def test_a_budget_of_steps_gives_these_steps():
    assert Budget(max_steps=17).steps(BatchSchedule(((2, 5),), 8), tokens_per_row=10.0, **MODEL) == 17


@pytest.mark.parametrize(
    ("budget", "rates", "message"),
    [
        ({"train_tokens": 0}, {}, "train_tokens is 0; expected a number above 0"),
        ({"flops": float("inf")}, {}, "flops is inf; expected a number above 0"),
        ({"max_steps": 3, "train_tokens": 100}, {}, "max_steps 3 and train_tokens 100 are both budgets"),
        ({"num_train_epochs": 2}, {}, "num_train_epochs is 2, but these rows are endless; set train_tokens"),
        ({"hours": 2}, {}, "train_budget is 2 hours, but no rate is known; set assumed_rate"),
        ({"cost": 2}, {"tokens_per_second": 1.0}, "train_budget is 2 cost, but price_per_hour is not set"),
        ({"hours": 1}, {"tokens_per_second": 1e-3}, "hours 1 allows 0 rows, and the first step takes 64"),
    ],
)
def test_a_budget_of_no_step_says_what_is_missing(budget, rates, message):
    with pytest.raises(InputError) as caught:
        Budget(**budget).steps(BatchSchedule((), 64), tokens_per_row=10.0, **MODEL, **rates)
    assert message in str(caught.value)


# Sizes of models


@pytest.mark.thorough
def test_presets_have_the_number_of_parameters_in_their_table():
    rows = [line.split("|")[1:-1] for line in model_configs.__doc__.splitlines() if line.startswith("|")][2:]
    assert [row[0].strip() for row in rows] == list(PRESETS)
    for name, layers, width, parameters in ([cell.strip() for cell in row] for row in rows):
        with torch.device("meta"):
            model = LlamaForCausalLM(model_config(name, vocab_size=101, max_length=65))
        counts = count_parameters(model)
        assert (int(layers), int(width)) == PRESETS[name]
        told = parameters.removesuffix(" million")
        assert f"{counts['body'] / 1e6:.{len(told.partition('.')[2])}f}" == told, name
        assert counts["total"] == counts["body"] + 2 * 101 * PRESETS[name][1]


def test_shared_embeddings_count_once():
    config = model_config("1m", vocab_size=101, max_length=65, tie_embeddings=True, bos_token_id=100)
    model = LlamaForCausalLM(config)
    assert count_parameters(model)["total"] == count_parameters(model)["body"] + 101 * 128
    assert (config.bos_token_id, config.max_position_embeddings, config.use_cache) == (100, 65, False)


def test_an_unknown_preset_is_refused_with_the_known_ones():
    with pytest.raises(InputError, match="model preset '7b' is unknown; expected one of 1m, 3m, 5m"):
        model_config("7b", vocab_size=10, max_length=10)


def test_a_depth_sets_the_rest():
    config = model_config("d12", vocab_size=10, max_length=10)
    assert (config.num_hidden_layers, config.hidden_size, config.num_attention_heads) == (12, 768, 12)
    with pytest.raises(InputError, match="a depth such as d12"):
        model_config("d0", vocab_size=10, max_length=10)


@pytest.mark.parametrize("text", ["12", "hours", "12 days", "many hours", "12 hours more", "1e9 tokens"])
def test_a_budget_without_a_number_or_a_known_unit_is_refused(text):
    with pytest.raises(InputError, match=r"expected a number and a unit, one of examples, .*, as in '12 hours'"):
        read_budget(text)
