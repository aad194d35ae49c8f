"""`measure_optimum` and `probe_beliefs` of modules, functions and arrays, which are no models of transformers."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from hmm_datasets import HMMMixture, HMMSequences, InputError, measure_optimum, probe_beliefs, processes

MESS3 = processes.mess3(x=0.05, a=0.85)
ROWS = HMMSequences(MESS3, length=12, seed=3, first=1 << 63, num_sequences=50)
TOKENS = torch.stack([row["input_ids"] for row in ROWS.__getitems__(range(50))])


class Recurrent(nn.Module):
    """A network as somebody else writes it; the residual stream is changed in place after the first block."""

    def __init__(self, num_tokens: int = 4, width: int = 16, seed: int = 0):
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(num_tokens, width)
        self.blocks = nn.ModuleList([nn.GRU(width, width, batch_first=True), nn.Linear(width, width)])
        self.dropout = nn.Dropout(0.5)
        self.out = nn.Linear(width, num_tokens)
        self.unused = nn.Linear(width, width)

    def forward(self, tokens):
        stream, _ = self.blocks[0](self.embed(tokens))
        stream += self.dropout(self.blocks[1](stream)).tanh()
        return self.out(stream)

    def streams(self, tokens):
        """The output of the embedding, and of each block."""
        embedded = self.embed(tokens)
        first, _ = self.blocks[0](embedded)
        return embedded, first, self.blocks[1](first)


LAYERS = ["embed", "blocks.0", "blocks.1"]


def gpt2(num_tokens: int = 50) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    sizes = {"n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2, "bos_token_id": 3, "eos_token_id": 3}
    return GPT2LMHeadModel(GPT2Config(vocab_size=num_tokens, initializer_range=0.4, **sizes))


def exact(tokens):
    """The log-probabilities of the optimum after the beginning token and every symbol."""
    return MESS3.next_token_probs(tokens[:, 1:]).log()


# The optimum


def test_a_module_a_function_and_an_array_of_the_same_weights_give_the_same_numbers():
    network = Recurrent().double()
    expected = measure_optimum(network, MESS3, ROWS, batch_size=16)
    assert network.training, "it is put back"
    assert all(part.training for part in network.modules())
    network.eval()
    with torch.no_grad():
        logits = network(TOKENS)
    functions = [
        network.forward,
        lambda tokens: network(tokens).numpy(),
        lambda tokens: (network(tokens), torch.tensor(0.0)),
        lambda tokens: type("Output", (), {"logits": network(tokens)}),
    ]
    for function in functions:
        assert measure_optimum(function, MESS3, ROWS, batch_size=16) == expected
    for array in (logits, logits.log_softmax(-1).numpy()):
        found = measure_optimum(array, MESS3, ROWS, batch_size=16)
        for one, other in (
            (found["bayes_gap"], expected["bayes_gap"]),
            (found["kl"]["bayes"], expected["kl"]["bayes"]),
        ):
            for name, value in other.items():
                assert one[name] == pytest.approx(value, abs=1e-12)


def test_gpt2_is_measured_as_it_is_with_an_accelerator_and_as_a_module_or_function():
    from accelerate import Accelerator

    model = gpt2()
    assert model.config.vocab_size > ROWS.vocab_size
    assert model.training, "with dropout, as a model from a configuration is"
    expected = measure_optimum(model.eval(), MESS3, ROWS, Accelerator(cpu=True))
    model.train()
    assert measure_optimum(model, MESS3, ROWS) == expected, "dropout is off"
    assert model.training

    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, tokens):
            return self.inner(input_ids=tokens, use_cache=False).logits

    assert measure_optimum(Wrapped(), MESS3, ROWS) == expected
    model.eval()
    assert measure_optimum(lambda tokens: model(tokens, use_cache=False), MESS3, ROWS) == expected
    with torch.inference_mode():
        batches = [model(input_ids=part, use_cache=False).logits for part in TOKENS.split(32)]
    assert measure_optimum(torch.cat(batches), MESS3, ROWS) == expected


@pytest.mark.parametrize("bos", [True, False], ids=["bos", "no bos"])
def test_the_exact_predictor_as_a_function_or_an_array_has_no_gap(bos):
    rows = HMMSequences(MESS3, 12, first=1 << 63, num_sequences=50, bos=bos)

    def predict(tokens):
        return exact(tokens) if bos else MESS3.next_token_probs(tokens)[:, 1:].log()

    array = predict(torch.stack([row["input_ids"] for row in rows.__getitems__(range(50))])).numpy()
    for model in (predict, array):
        found = measure_optimum(model, MESS3, rows, batch_size=7)
        assert abs(found["bayes_gap"]["bayes_gap"]) < 1e-9
        assert abs(found["kl"]["bayes"]["kl"]) < 1e-12
        assert len(found["bayes_gap"]["by_position"]) == (12 if bos else 11)


def test_rows_of_an_array_and_of_an_oracle_keep_their_places_in_batches():
    family = HMMMixture((processes.golden_mean(), processes.even()), (0.5, 0.5))
    rows = HMMSequences(family, 20, first=1 << 63, num_sequences=11)
    tokens = torch.stack([row["input_ids"] for row in rows.__getitems__(range(11))])
    array = family.oracle_next_token_probs(tokens[:, 1:], rows.seed, rows.first).log()
    found = measure_optimum(array, family, rows, batch_size=3)
    assert abs(found["kl"]["oracle"]["kl"]) < 1e-12
    assert found["bayes_gap"]["bayes_gap"] < 0, "who is told the HMM is better than the optimum"


# Beliefs


@pytest.mark.thorough
def test_layers_of_a_module_and_functions_and_arrays_of_the_same_activations_are_probed_alike():
    network = Recurrent().double()
    expected = probe_beliefs(network, MESS3, ROWS, layers=LAYERS, batch_size=8)
    assert list(expected["layers"]) == [*LAYERS, "all"]
    assert list(expected["layers"]["embed"]) == ["r2", "rmse", "shuffled_r2", "shuffled_rmse"]
    assert "markov" in expected
    network.eval()
    with torch.no_grad():
        arrays = [array.numpy() for array in network.streams(TOKENS)]
    wrappings = [
        lambda tokens: dict(zip(LAYERS, network.streams(tokens), strict=True)),
        dict(zip(LAYERS, arrays, strict=True)),
        {name: lambda tokens, k=k: network.streams(tokens)[k] for k, name in enumerate(LAYERS)},
        network.streams,
        arrays,
        [torch.from_numpy(array) for array in arrays],
        [lambda tokens, k=k: network.streams(tokens)[k] for k in range(3)],
    ]
    for wrapped in wrappings:
        found = probe_beliefs(wrapped, MESS3, ROWS, batch_size=8)["layers"]
        names = LAYERS if LAYERS[0] in found else ["0", "1", "2"]
        for name, known in zip([*names, "all"], [*LAYERS, "all"], strict=True):
            assert found[name] == pytest.approx(expected["layers"][known], abs=1e-9)


def test_hidden_states_of_transformers_are_the_outputs_of_its_submodules():
    model = gpt2()
    expected = probe_beliefs(model, MESS3, ROWS)["layers"]
    found = probe_beliefs(model, MESS3, ROWS, layers=["transformer.h.0", "transformer.ln_f"])["layers"]
    assert found["transformer.h.0"] == pytest.approx(expected["1"], abs=1e-9)
    assert found["transformer.ln_f"] == pytest.approx(expected["2"], abs=1e-9)
    assert "untrained_r2" in found["all"], "made from the configuration"
    single = probe_beliefs(model, MESS3, ROWS, layers="transformer.h.0", controls=False)["layers"]
    assert list(single) == ["transformer.h.0", "all"]


@pytest.mark.thorough
@pytest.mark.parametrize("wrap", ["compiled", "adapter"])
def test_what_wraps_a_model_of_transformers_is_measured_and_probed_as_the_model(wrap):
    from peft import LoraConfig, get_peft_model

    model = gpt2()
    optimum = measure_optimum(model, MESS3, ROWS)
    beliefs = probe_beliefs(model, MESS3, ROWS, controls=False)
    # The first products of LoRA are zero.
    lora = LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True)
    wrapped = torch.compile(model, backend="eager") if wrap == "compiled" else get_peft_model(model, lora)
    assert measure_optimum(wrapped, MESS3, ROWS)["bayes_gap"] == optimum["bayes_gap"]
    assert probe_beliefs(wrapped, MESS3, ROWS, controls=False)["layers"] == beliefs["layers"]


@pytest.mark.thorough
def test_exact_beliefs_are_found_and_random_numbers_are_not():
    rows = HMMSequences(MESS3, 16, first=1 << 63, num_sequences=400)
    found = probe_beliefs(lambda tokens: MESS3.beliefs(tokens[:, 1:]), MESS3, rows)["layers"]["0"]
    assert found["r2"] == pytest.approx(1, abs=1e-9)
    assert found["shuffled_r2"] < 0.05
    noise = torch.randn(400, 17, 5, generator=torch.Generator().manual_seed(0))
    found = probe_beliefs(noise, MESS3, rows, untrained=lambda tokens: MESS3.beliefs(tokens[:, 1:]))["layers"]["0"]
    assert abs(found["r2"]) < 0.02
    assert found["untrained_r2"] == pytest.approx(1, abs=1e-9)


def test_the_untrained_control_is_that_of_the_user_or_left_out():
    network, fresh = Recurrent(seed=1), Recurrent(seed=2)
    found = probe_beliefs(network, MESS3, ROWS, layers=LAYERS, untrained=fresh)["layers"]
    other = probe_beliefs(fresh, MESS3, ROWS, layers=LAYERS, controls=False)["layers"]
    for name, figures in found.items():
        assert figures["untrained_r2"] == other[name]["r2"]
    assert "untrained_r2" not in probe_beliefs(network, MESS3, ROWS, layers=LAYERS)["layers"]["all"]


# What is missing is said in one line


def with_nan(tokens):
    logits = torch.zeros(*tokens.shape, 4)
    logits[0, 5, 2] = torch.nan
    return logits


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            lambda tokens: torch.zeros(len(tokens), 1, 4),
            r"gives shape \(32, 1, 4\) for tokens of shape \(32, 13\); expected logits \(B, T, V\)",
        ),
        (lambda tokens: torch.zeros(13, 4), r"gives shape \(13, 4\)"),
        (lambda tokens: torch.zeros(*tokens.shape, 2), "gives logits of 2 tokens, but the data have 3 symbols"),
        (with_nan, "with_nan gives nan as the logit of token 2 at position 5; expected a number, or -inf"),
        (lambda tokens: -with_nan(tokens).log(), "gives inf as the logit of token 0 at position 0"),
        (lambda tokens: None, r"gives NoneType for tokens of shape \(32, 13\); expected logits"),
        (lambda tokens: exact(tokens).exp(), "gives probabilities, which sum to 1; expected logits or log-prob"),
        (
            Recurrent(num_tokens=3),
            "Recurrent fails on rows of 13 tokens from 0 to 3 .*, or make the rows shorter or with bos=False",
        ),
        (gpt2(num_tokens=3), "the model has 3 tokens, but the data have 4 symbols"),
        (np.zeros((50, 12, 3)), r"the array has shape \(50, 12, 3\); expected \(50, 13, V\): .*the beginning token"),
        (np.zeros((13, 3)), r"the array has shape \(13, 3\)"),
        ("gpt2", "the model is of type str; expected a torch.nn.Module such as a model of transformers, a function"),
    ],
    ids=["last", "2-D", "few", "NaN", "inf", "None", "probabilities", "bos", "gpt2", "short", "table", "name"],
)
def test_logits_that_cannot_be_measured_are_refused_in_one_line(model, message):
    with pytest.raises(InputError, match=message) as caught:
        measure_optimum(model, MESS3, ROWS)
    assert "\n" not in str(caught.value)


class OneRow(nn.Module):
    """Gives activations of a shape that says nothing about positions."""

    def __init__(self):
        super().__init__()
        self.pool = nn.Identity()

    def forward(self, tokens):
        return self.pool(torch.zeros(len(tokens), 8))


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (
            Recurrent(),
            {},
            r"Recurrent returns no hidden states; .*unless layers names submodules of it \(embed, blocks, blocks.0",
        ),
        (
            Recurrent(),
            {"layers": ["block.0"]},
            r"Recurrent has no submodule 'block.0'; expected a name that .*; did you mean blocks\.0\?",
        ),
        (Recurrent(), {"layers": [0]}, "Recurrent has no submodule 0"),
        (Recurrent(), {"layers": []}, "layers is empty; expected names of submodules of Recurrent"),
        (Recurrent(), {"layers": ["unused"]}, "Recurrent does not call its submodule 'unused' for tokens"),
        (
            OneRow(),
            {"layers": "pool"},
            r"layer pool of OneRow gives shape \(25, 8\) for tokens of shape \(25, 13\); expected activations",
        ),
        (
            exact,
            {"layers": ["h.0"]},
            "layers are names of submodules of a torch.nn.Module, but the model is of type f",
        ),
        (lambda tokens: with_nan(tokens), {}, "layer 0 of <lambda> gives NaN or inf; expected finite activations"),
        (
            lambda tokens: "states",
            {},
            r"layer 0 of <lambda> gives str for tokens of shape .*; expected activations \(B, T, D\)",
        ),
        ([np.zeros((50, 13, 2)), np.zeros((49, 13, 2))], {}, r"the array has shape \(49, 13, 2\); expected \(50, 13,"),
        ([], {}, "the model is an empty list of layers"),
        (["h.0"], {}, "the model is of type str; expected a torch.nn.Module, or functions of tokens or arrays"),
        (
            Recurrent(),
            {"layers": ["embed"], "untrained": lambda tokens: torch.zeros(*tokens.shape, 2)},
            "the untrained model has the layers 0, all, but the model embed, all; expected the same",
        ),
    ],
    ids=[
        *["no layers", "misspelt", "number", "none", "unused", "pooled", "function", "NaN", "text", "short", "empty"],
        *["names", "untrained"],
    ],
)
def test_activations_that_cannot_be_probed_are_refused_in_one_line(model, options, message):
    with pytest.raises(InputError, match=message) as caught:
        probe_beliefs(model, MESS3, ROWS, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("measure", [partial(measure_optimum, exact, MESS3), partial(probe_beliefs, exact, MESS3)])
def test_rows_are_a_finite_data_set_of_sequences(measure):
    with pytest.raises(InputError, match=r"rows are endless.*; pass num_sequences to HMMSequences"):
        measure(HMMSequences(MESS3, 12))
    with pytest.raises(InputError, match=r"rows are of type Tensor; expected HMMSequences\(process, length"):
        measure(TOKENS)
