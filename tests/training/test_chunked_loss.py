"""A loss in chunks is the loss, its gradients and everything logged, without the logits of all tokens."""

import contextlib
import copy
import os
from unittest import mock

import pytest
import torch
from needed_versions import needs
from peft import LoraConfig, get_peft_model
from tiny_runs import LENGTH, VOCABULARY, history, losses, random_rows, tiny_model, trainer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPTJConfig,
    GPTJForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    TrainerCallback,
    set_seed,
)

from hmm_datasets import HMMSequences
from hmm_datasets.evaluation.baselines import BaselineComparison
from hmm_datasets.files import remove
from hmm_datasets.hmm import processes
from hmm_datasets.training import linear_cross_entropy
from hmm_datasets.training.fused_loss import LabelScores, LossOutput, next_labels, set_loss_output, unsupported_reason
from hmm_datasets.training.run import train_and_save
from hmm_datasets.training.step.held_out_loss import HeldOutParts


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Seven rows of the tiny vocabulary per chunk."""
    monkeypatch.setattr(linear_cross_entropy, "CHUNK_BYTES", 7 * 4 * VOCABULARY)


class LargestTensor(TorchDispatchMode):
    """Remembers the number of elements of the largest tensor that an operation returned."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **kwargs or {})
        for one in found if isinstance(found, tuple | list) else [found]:
            if torch.is_tensor(one):
                self.elements = max(self.elements, one.numel())
        return found


def large_vocabulary(size=20_000) -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=size, **sizes))


@pytest.mark.thorough
def test_no_tensor_of_a_step_or_an_evaluation_is_larger_than_the_weight_of_the_output_layer(tmp_path, monkeypatch):
    """The logits of all tokens would have 41 times as many elements."""
    monkeypatch.setattr(linear_cross_entropy, "CHUNK_BYTES", 32 * 4 * 20_000)
    model = large_vocabulary()
    tokens = torch.randint(0, 20_000, (8, 325), generator=torch.Generator().manual_seed(0))
    rows = [{"input_ids": row, "labels": row} for row in tokens]
    given = {"z_loss": 1e-4, "per_device_train_batch_size": 4, "per_device_eval_batch_size": 4, "max_steps": 1}
    run = trainer(tmp_path, model=model, rows=rows, **given)
    with LargestTensor() as largest:
        run.train()
        run.evaluate(rows[:4])
    assert largest.elements == model.lm_head.weight.numel()


class Gradients(TrainerCallback):
    """Keeps the gradient of every step, before clipping."""

    def __init__(self):
        self.found = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.found.append({name: one.grad.clone() for name, one in model.named_parameters()})


def trained(folder, *, model=None, rows=None, **given):
    """The history of a run without clipping, and the gradient of each step."""
    defaults = {"max_steps": 3, "learning_rate": 0.01, "max_grad_norm": 0.0}
    model = copy.deepcopy(tiny_model() if model is None else model)
    rows = random_rows(40, ignored=True) if rows is None else rows
    run, gradients = trainer(folder, model=model, rows=rows, **defaults | given), Gradients()
    run.add_callback(gradients)
    run.train()
    assert (type(run.model.get_output_embeddings()) is LossOutput) == bool(given.get("chunked_loss"))
    return history(run), gradients.found


def assert_equal_runs(chunked, plain, *, columns=("loss",)):
    for name in columns:
        assert [row[name] for row in chunked[0]] == pytest.approx([row[name] for row in plain[0]], rel=1e-5)
    for of_chunked, of_plain in zip(chunked[1], plain[1], strict=True):
        for name, gradient in of_plain.items():
            difference = (of_chunked[name] - gradient).norm() / gradient.norm()
            assert difference < 1e-5, f"{name}: {difference}"


@pytest.mark.thorough
@pytest.mark.parametrize("multiple", [1, 128])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("given", [{}, {"z_loss": 0.1}, {"average_tokens_across_devices": False}], ids=str)
def test_losses_and_gradients_are_those_of_all_logits(tmp_path, padded_to, tied, multiple, given):
    """Micro-batches of four rows have different numbers of labels."""
    padded_to(multiple)
    columns = ("loss", "z_loss") if "z_loss" in given else ("loss",)
    model = tiny_model(tied=tied)
    runs = [trained(tmp_path / str(chunked), model=model, chunked_loss=chunked, **given) for chunked in (True, False)]
    assert_equal_runs(*runs, columns=columns)


@pytest.mark.thorough
def test_a_bias_and_another_architecture(tmp_path):
    torch.manual_seed(0)
    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 2, "rotary_dim": 8, "n_positions": LENGTH}
    model = GPTJForCausalLM(GPTJConfig(vocab_size=VOCABULARY, **sizes))
    model.lm_head.bias.data.normal_()
    runs = [trained(tmp_path / str(way), model=model, chunked_loss=way, z_loss=0.1) for way in (True, False)]
    assert_equal_runs(*runs, columns=("loss", "z_loss"))


@pytest.mark.thorough
@pytest.mark.parametrize("given", [{"activation_checkpointing": True}, {"batch_ramp": ["4:1"]}], ids=str)
def test_losses_are_the_same_with_other_settings(tmp_path, given):
    runs = [trained(tmp_path / str(chunked), chunked_loss=chunked, **given) for chunked in (True, False)]
    assert_equal_runs(*runs)


@pytest.mark.parametrize("kind", ["bf16", "fp16"])
def test_under_autocast_loss_and_gradients_are_as_near_to_float32_as_those_of_all_logits(tmp_path, kind):
    exact = trained(tmp_path / "exact", chunked_loss=False, max_steps=1)
    model, rows = tiny_model(), random_rows(8, ignored=True)
    batch = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    found = {}
    for chunked in (False, True):
        one = copy.deepcopy(model)
        layer = set_loss_output(one) if chunked else None
        scores = LabelScores(next_labels(batch["labels"]))
        asked = layer.computing_losses_of(scores) if chunked else contextlib.nullcontext()
        with asked, torch.autocast("cpu", torch.bfloat16 if kind == "bf16" else torch.float16):
            loss = one(**batch).loss
        assert loss.dtype == torch.float32
        loss.backward()
        gradients = {name: parameter.grad for name, parameter in one.named_parameters()}
        errors = [((gradients[name] - true).norm() / true.norm()).square() for name, true in exact[1][0].items()]
        found[chunked] = abs(loss.item() - exact[0][0]["loss"]), float(sum(errors))
    assert found[True][0] < 2 * found[False][0] + 1e-4
    assert found[True][1] < 1.5 * found[False][1]


def test_the_gradient_of_the_weight_is_summed_in_float32():
    """In bfloat16 the sum over a thousand chunks would be off by a percent and more."""
    torch.manual_seed(0)
    hidden, weight = torch.randn(7000, 16).bfloat16(), torch.nn.Parameter(torch.randn(VOCABULARY, 16).bfloat16() / 4)
    labels = torch.randint(0, VOCABULARY, (7000,))
    total, _ = linear_cross_entropy.summed_loss(hidden, weight, None, labels)
    assert total.dtype == torch.float32
    total.backward()
    exact = weight.detach().double().requires_grad_()
    torch.nn.functional.cross_entropy(hidden.double() @ exact.T, labels, reduction="sum").backward()
    assert ((weight.grad.double() - exact.grad).norm() / exact.grad.norm()) < 0.004


def test_labels_that_do_not_count_cost_no_product():
    layer = set_loss_output(tiny_model())
    hidden = torch.randn(2, 50, 32)
    labels = torch.full((2, 50), -100)
    labels[1, 10:13] = 7
    with FlopCounterMode(display=False) as counter, layer.computing_losses_of(LabelScores(labels)) as found:
        layer(hidden.requires_grad_()).backward()
    assert 0 < counter.get_total_flops() <= 3 * 2 * 3 * 32 * VOCABULARY, "three products of three rows"
    assert found.losses.count_nonzero() == 3
    assert found.losses[1, 10:13].all()
    assert hidden.grad.abs().sum(-1).count_nonzero() == 3


def test_a_batch_without_labels_has_the_loss_of_all_logits():
    tokens = torch.randint(0, VOCABULARY, (2, 5))
    labels = torch.full_like(tokens, -100)
    model = tiny_model()
    expected = [model(input_ids=tokens, labels=labels, num_items_in_batch=items).loss for items in (None, 7)]
    layer = set_loss_output(model)
    for items, loss in zip((None, 7), expected, strict=True):
        with layer.computing_losses_of(LabelScores(next_labels(labels))):
            found = model(input_ids=tokens, labels=labels, num_items_in_batch=items).loss
        torch.testing.assert_close(found, loss, equal_nan=True)
    found.backward()
    assert all(not parameter.grad.any() for parameter in model.parameters())


@pytest.mark.parametrize("parts", [False, True])
def test_held_out_losses_are_those_of_all_logits(tmp_path, parts):
    rows = random_rows(22, ignored=True)
    held_out = HeldOutParts({"first": rows[:7], "second": rows[7:]}) if parts else rows
    found = [
        trainer(tmp_path, chunked_loss=chunked, z_loss=0.1, per_device_eval_batch_size=5).evaluate(held_out)
        for chunked in (True, False)
    ]
    names = [name for name in found[1] if name.endswith("loss")]
    assert len(names) == (3 if parts else 1)
    assert [found[0][name] for name in names] == pytest.approx([found[1][name] for name in names], rel=1e-6)


def test_whoever_asks_for_outputs_gets_logits(tmp_path):
    run = trainer(tmp_path, chunked_loss=True)
    batch = {name: torch.stack([row[name] for row in random_rows(3)]) for name in ("input_ids", "labels")}
    loss, outputs = run.compute_loss(run.model, batch, return_outputs=True)
    assert outputs.logits.shape == (3, LENGTH, VOCABULARY)
    torch.testing.assert_close(run.compute_loss(run.model, batch), loss)
    assert run.predict(random_rows(3)).predictions.shape == (3, LENGTH, VOCABULARY)
    run.model.eval()
    assert run.model(**batch).logits.shape == (3, LENGTH, VOCABULARY)
    assert run.model.generate(torch.tensor([[1, 2]]), max_new_tokens=3, pad_token_id=0).shape == (1, 5)


def test_the_baselines_of_an_hmm_read_distributions(tmp_path):
    source = processes.random(4, VOCABULARY - 1, seed=1)
    baselines = BaselineComparison(source)
    rows = HMMSequences(source, LENGTH - 1).by_index().__getitems__(range(6))
    found = []
    for chunked in (True, False):
        run = trainer(tmp_path, chunked_loss=chunked)
        run.compute_metrics, run.preprocess_logits_for_metrics = baselines.summarize, baselines.reduce_logits
        found.append(run.evaluate(rows))
    names = [name for name in found[1] if not name.endswith(("time", "second"))]
    assert len(names) > 5
    assert [found[0][name] for name in names] == [found[1][name] for name in names]


def test_the_saved_model_is_an_ordinary_one(tmp_path):
    run = trainer(tmp_path, chunked_loss=True, max_steps=1)
    run.train()
    run.save_model(str(tmp_path / "model"))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert type(loaded.lm_head) is torch.nn.Linear
    assert loaded.state_dict().keys() == run.model.state_dict().keys()
    tokens = torch.arange(9)[None]
    with torch.no_grad():
        torch.testing.assert_close(loaded(tokens).logits, run.model(tokens).logits)


@pytest.mark.thorough
def test_a_run_continues_with_the_other_way(tmp_path):
    given = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "warmup_steps": 0}
    plain = losses(trainer(tmp_path / "plain", chunked_loss=False, max_steps=4, save_strategy="no", warmup_steps=0))
    first = trainer(tmp_path / "parts", chunked_loss=False, **given)
    train_and_save(first, settings={}, data={})
    for name in ("checkpoint-4", "summary.json"):
        remove(tmp_path / "parts" / name)
    second = trainer(tmp_path / "parts", chunked_loss=True, **given)
    train_and_save(second, settings={}, data={})
    assert [row["step"] for row in history(second)] == [1, 2, 3, 4]
    assert [row["loss"] for row in history(second)] == pytest.approx(plain, rel=1e-5)


@pytest.mark.thorough
def test_a_compiled_model_is_compiled_once_and_has_the_same_losses(tmp_path):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    ramp = {"batch_ramp": ["4:2"]}  # steps of one micro-batch and of two
    expected = losses(trainer(tmp_path / "plain", chunked_loss=False, **ramp))
    compiled = {"torch_compile": True, "torch_compile_backend": "eager", **ramp}
    with mock.patch.dict(os.environ), torch._dynamo.config.patch(error_on_recompile=True):
        run = trainer(tmp_path / "compiled", chunked_loss=True, **compiled)  # sets variables
        assert losses(run) == pytest.approx(expected, rel=1e-5)
    assert torch._dynamo.utils.counters["frames"]["ok"] > 0


@pytest.mark.parametrize("attention", ["eager", "sdpa", "flex_attention", "flash_attention_2", "flash_attention_3"])
def test_the_loss_is_in_chunks_under_every_attention_and_no_kernel_runs_without_data(tmp_path, capsys, attention):
    """The kernel of flex attention would end this process, and packages for flash attention cannot be tried here."""
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=5000, **sizes))  # sizes of this test alone: nothing is remembered
    model.config._attn_implementation = attention
    assert type(trainer(tmp_path, model=model).model.lm_head) is LossOutput
    assert model.config._attn_implementation == attention
    assert "chunked_loss" not in capsys.readouterr().out


class NeedsData(LlamaForCausalLM):
    """Looks at the tokens, of which fake tensors have none."""

    def forward(self, input_ids=None, **kwargs):
        assert int(input_ids.max()) >= 0
        return super().forward(input_ids, **kwargs)


def test_a_model_that_cannot_be_tried_without_data_is_not_said_to_change_its_logits():
    model = NeedsData(large_vocabulary().config)
    model.loss_type = "ForCausalLM"
    assert unsupported_reason(model).startswith("could not be tried without data (DataDependentOutputException: ")


# Where the loss comes from all logits


def test_small_vocabularies_have_all_logits_unless_the_settings_say_otherwise(tmp_path):
    assert type(trainer(tmp_path).model.lm_head) is torch.nn.Linear
    assert type(trainer(tmp_path, chunked_loss=True).model.lm_head) is LossOutput
    assert type(trainer(tmp_path, model=large_vocabulary()).model.lm_head) is LossOutput
    assert type(trainer(tmp_path, model=large_vocabulary(), chunked_loss=False).model.lm_head) is torch.nn.Linear


def capped() -> Gemma2ForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    more = {"num_key_value_heads": 2, "head_dim": 16, "final_logit_softcapping": 0.5, "attn_implementation": "eager"}
    return Gemma2ForCausalLM(Gemma2Config(vocab_size=VOCABULARY, **sizes, **more))


def with_lora(**given):
    set_seed(1)
    return get_peft_model(tiny_model(), LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", **given))


def with_trained_output():
    return with_lora(modules_to_save=["lm_head"])


def with_own_loss():
    model = tiny_model()
    model.loss_function = lambda logits, labels, **kwargs: logits.square().mean()
    return model


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("model", "given", "reason"),
    [
        (capped, {}, "Gemma2ForCausalLM does more with its logits than to take the loss of them"),
        (with_own_loss, {}, "LlamaForCausalLM has a loss function of its own"),
        (with_trained_output, {}, "LlamaForCausalLM has an output layer of type ModulesToSaveWrapper"),
    ],
)
def test_a_model_whose_loss_is_not_that_of_its_output_layer_is_named_and_trained_as_ever(
    tmp_path, capsys, model, given, reason
):
    runs = [trainer(tmp_path / str(way), model=model(), chunked_loss=way, **given) for way in (True, False)]
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("chunked_loss")]
    assert line.startswith(f"chunked_loss: {reason}")
    assert line.endswith("so its loss is computed from the logits of all tokens")
    for run in runs:
        set_seed(0)  # of the dropout of adapters
        run.train()
    curves = [[row["loss"] for row in history(run)] for run in runs]
    assert len(curves[0]) == 6
    assert curves[0] == curves[1]


@pytest.mark.thorough
def test_an_adapter_is_trained_the_same(tmp_path):
    runs = [trainer(tmp_path / str(chunked), model=with_lora(), chunked_loss=chunked) for chunked in (True, False)]
    assert type(runs[0].model.get_output_embeddings()) is LossOutput
    curves = [losses(run) for run in runs]
    assert curves[0] == pytest.approx(curves[1], rel=1e-5)
    assert curves[0][0] != curves[0][-1]


@needs("transformers>=5.23")
def test_experts_keep_their_own_term_in_the_loss():
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    more = {
        "num_key_value_heads": 2,
        "num_local_experts": 4,
        "output_router_logits": True,
        "router_aux_loss_coef": 0.5,
    }
    torch.manual_seed(0)
    model = MixtralForCausalLM(MixtralConfig(vocab_size=VOCABULARY, **sizes, **more))
    assert unsupported_reason(model) is None
    tokens = torch.randint(0, VOCABULARY, (2, 9))
    expected = model(input_ids=tokens, labels=tokens).loss
    with set_loss_output(model).computing_losses_of(LabelScores(next_labels(tokens))) as found:
        loss = model(input_ids=tokens, labels=tokens).loss
    torch.testing.assert_close(loss, expected)
    assert loss > found.scores.losses.mean() + 0.1
