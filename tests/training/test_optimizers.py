"""AdamW and Muon update what torch's own update, on the learning rates that formulas and settings say."""

import copy
import math

import pytest
import torch
from needed_versions import needs
from peft import LoraConfig, get_peft_model
from tiny_runs import history, losses, random_rows, settings, tiny_model, trainer
from torch.utils.data import Subset
from transformers import TrainerCallback, default_data_collator

from hmm_datasets.compat.deepspeed import zero_muon_with_adamw
from hmm_datasets.errors import InputError
from hmm_datasets.training.optimizers import MuonWithAdamW, check_optimizer, matrix_names, parameter_groups
from hmm_datasets.training.trainer import Pretrainer

MATRICES = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


def error(call, *arguments, **given) -> str:
    with pytest.raises(InputError) as caught:
        call(*arguments, **given)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Muon for the matrices, AdamW for the rest


@pytest.mark.parametrize("tied", [False, True])
def test_muon_updates_the_matrices_of_the_body_and_adamw_the_rest(tied):
    model = tiny_model(tied=tied, layers=2)
    matrices = matrix_names(model)
    assert {name.split(".")[-2] for name in matrices} == MATRICES
    assert len(matrices) == 2 * len(MATRICES)
    rest = {name for name, _ in model.named_parameters()} - matrices
    assert {name.split(".")[-2] for name in rest} == {
        *("embed_tokens", "norm", "input_layernorm", "post_attention_layernorm"),
        *(() if tied else ("lm_head",)),
    }


def test_each_part_updates_like_torchs_own_optimizer(tmp_path):
    """Bit for bit, over steps with a schedule; the gradients are random, so that the parts do not interact."""
    run = trainer(tmp_path, optimizer="muon", learning_rate=0.01)
    ours, theirs = run.model, copy.deepcopy(run.model)
    run.create_optimizer()
    assert isinstance(run.optimizer, MuonWithAdamW)
    named = dict(theirs.named_parameters())
    matrices = matrix_names(theirs)
    decayed = set(run.get_decay_parameter_names(theirs))
    muon = torch.optim.Muon(
        [named[name] for name in named if name in matrices],
        **{"lr": 0.01, "weight_decay": 0.1, "momentum": 0.95, "adjust_lr_fn": "match_rms_adamw"},
    )
    adamw = torch.optim.AdamW(
        [
            {"params": [named[name] for name in named if name in decayed - matrices], "weight_decay": 0.1},
            {"params": [named[name] for name in named if name not in decayed], "weight_decay": 0.0},
        ],
        **{"lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-8, "fused": True},
    )
    generator = torch.Generator().manual_seed(0)
    for step in range(5):
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            mine.grad = torch.randn(mine.shape, generator=generator)
            other.grad = mine.grad.clone()
        for group in [*run.optimizer.param_groups, *muon.param_groups, *adamw.param_groups]:
            group["lr"] = 0.01 / (step + 1)
        for optimizer in (run.optimizer, muon, adamw):
            optimizer.step()
    for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine, other), name


def test_muons_updates_have_the_size_of_adamws():
    """RMS about 0.2 times the learning rate for any shape (Liu et al. 2025, section 2.2), without weight decay."""
    for shape in ((64, 64), (32, 256), (256, 32)):
        weight = torch.nn.Parameter(torch.zeros(shape))
        weight.grad = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        rest = torch.nn.Parameter(torch.zeros(3))
        rest.grad = torch.ones(3)
        groups = [
            {"params": [weight], "optimizer": "muon", "weight_decay": 0.0},
            {"params": [rest], "optimizer": "adamw", "weight_decay": 0.0},
        ]
        MuonWithAdamW(groups, lr=0.01).step()
        assert weight.detach().square().mean().sqrt().item() == pytest.approx(0.2 * 0.01, rel=0.25)


@pytest.mark.outside(
    "https://github.com/pytorch/pytorch/issues/146508",
    "products in bfloat16 that take 44 to 499 times as long as in float32 on a processor with AVX2",
    "Muon's steps, which torch and DeepSpeed take in bfloat16, are in float32 on a CPU",
)
@pytest.mark.parametrize("shape", [(64, 64), (32, 256), (256, 32)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_cpu_muon_orthogonalizes_in_float32(shape, dtype):
    weight = torch.nn.Parameter(torch.zeros(shape, dtype=torch.float64))
    weight.grad = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype).double()
    MuonWithAdamW([{"params": [weight], "optimizer": "muon", "weight_decay": 0.0}], lr=1.0).step()
    x = weight.grad / weight.grad.norm()
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x - 4.775 * gram @ x + 2.0315 * gram @ gram @ x
    torch.testing.assert_close(weight.detach(), -0.2 * max(shape) ** 0.5 * x, rtol=0, atol=2e-5)


def test_muon_trains_a_model_all_of_whose_weights_are_matrices(tmp_path):
    """As with LoRA: nothing is left for AdamW."""
    model = get_peft_model(tiny_model(), LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear"))
    run = trainer(tmp_path, model=model, optimizer="muon", learning_rate=0.01)
    found = losses(run)
    assert [group["optimizer"] for group in run.optimizer.param_groups] == ["muon"]
    assert found[-1] != found[0]


@pytest.mark.thorough
def test_a_model_without_a_matrix_for_muon_is_trained_by_adamw(tmp_path):
    model = tiny_model()
    for name, weight in model.named_parameters():
        weight.requires_grad = name not in matrix_names(model)
    runs = [trainer(tmp_path, model=copy.deepcopy(model), optimizer=kind) for kind in ("muon", "adamw")]
    curves = [losses(run) for run in runs]
    assert curves[0] == curves[1]


@pytest.mark.thorough
@needs("deepspeed>=0.19.8")
@pytest.mark.parametrize("shape", [(64, 64), (32, 256), (256, 32)])
def test_zero_runs_deepspeeds_muon_with_the_updates_of_torchs(shape):
    """Without ZeRO its optimizer takes whole matrices, so both can be stepped side by side; uncompiled, as torch's."""
    optimizers, weights = [], []
    for kind in (MuonWithAdamW, zero_muon_with_adamw):
        generator = torch.Generator().manual_seed(0)
        pair = [torch.nn.Parameter(torch.randn(size, generator=generator)) for size in (shape, (7,))]
        names = ("muon", "adamw")
        groups = [
            {"params": [one], "optimizer": name, "lr": 0.01, "weight_decay": 0.1}
            for one, name in zip(pair, names, strict=True)
        ]
        optimizers.append(kind(groups, lr=0.01, betas=(0.9, 0.95), eps=1e-8, fused=True))
        weights.append(pair)
    for step in range(5):
        for pair in weights:
            generator = torch.Generator().manual_seed(step)
            for one in pair:
                one.grad = torch.randn(one.shape, generator=generator)
        with torch.compiler.set_stance("force_eager"):
            for optimizer in optimizers:
                optimizer.step()
    before = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    moved = (weights[0][0] - before).norm()
    assert (weights[0][0] - weights[1][0]).norm() < 1e-5 * moved
    assert torch.equal(weights[0][1], weights[1][1])


def test_muon_under_zero_is_refused_where_gradients_are_clipped(tmp_path, monkeypatch):
    """By what every settings class calls when it is made, before data are opened."""
    args = settings(tmp_path, optimizer="muon")
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    assert error(check_optimizer, args) == (
        "optimizer is muon and max_grad_norm 1, but under ZeRO DeepSpeed clips Muon's updates instead of the "
        "gradients; add --optimizer adamw, or --max_grad_norm 0 for Muon without clipping"
    )
    args.max_grad_norm = 0.0
    check_optimizer(args)


class Stop(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step == 3


def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(tmp_path):
    rows = random_rows(48)
    given = {"learning_rate": 0.01, "save_strategy": "steps", "save_steps": 3, "optimizer": "muon"}
    whole = trainer(tmp_path / "whole", rows=rows, **given)
    expected = losses(whole)
    first = trainer(tmp_path / "parts", rows=rows, **given)
    first.add_callback(Stop())
    first.train()
    second = trainer(tmp_path / "parts", model=tiny_model(seed=9), rows=Subset(rows, range(24, 48)), **given)
    second.args.ignore_data_skip = True
    second.train(resume_from_checkpoint=str(tmp_path / "parts" / "checkpoint-3"))
    assert [row["loss"] for row in history(second)] == expected
    for one, other in zip(second.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_loss_scaler_unscales_for_it_and_skips_a_step_that_overflowed():
    """As under fp16: torch's scaler, which calls the optimizer's step only with finite gradients."""
    models = [tiny_model(), tiny_model()]
    optimizers = []
    for model in models:
        groups = parameter_groups(
            model, learning_rate=0.01, weight_decay=0.1, decayed=matrix_names(model), matrices=matrix_names(model)
        )
        optimizers.append(MuonWithAdamW(groups, lr=0.01))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4)
    batch = {name: torch.stack([row[name] for row in random_rows(4)]) for name in ("input_ids", "labels")}
    models[0](**batch).loss.backward()
    optimizers[0].step()
    scaler.scale(models[1](**batch).loss).backward()
    scaler.step(optimizers[1])
    scaler.update()
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-7)
    before = copy.deepcopy(models[1])
    for parameter in models[1].parameters():
        parameter.grad.fill_(float("inf"))
    scaler.step(optimizers[1])
    scaler.update()
    assert scaler.get_scale() == 2.0**3
    for one, other in zip(models[1].parameters(), before.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.thorough
def test_muon_learns_and_differs_from_adamw(tmp_path):
    rows = random_rows(8) * 12
    given = {"rows": rows, "max_steps": 12, "learning_rate": 0.02}
    muon = losses(trainer(tmp_path, optimizer="muon", **given))
    adamw = losses(trainer(tmp_path, **given))
    assert muon[0] == adamw[0]
    assert muon[-1] < muon[0] - 1
    assert muon[-1] != adamw[-1]


def test_the_default_is_fused_adamw_without_decay_on_norms(tmp_path):
    run = trainer(tmp_path)
    optimizer = run.create_optimizer()
    assert type(optimizer) is torch.optim.AdamW
    assert optimizer.defaults["fused"] is True
    decayed, plain = optimizer.param_groups
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.1, 0)
    assert {parameter.ndim for parameter in decayed["params"]} == {2}
    assert {parameter.ndim for parameter in plain["params"]} == {1}


@pytest.mark.outside(
    "https://github.com/flairNLP/flair/pull/2641",
    "a schedule overwrote the learning rates of the groups of an optimizer that was given",
    "each group keeps its share of the schedule",
)
def test_an_optimizer_that_is_given_keeps_the_learning_rates_of_its_groups(tmp_path):
    model, rates = tiny_model(), []

    class Rates(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, optimizer=None, **kwargs):
            rates.append([group["lr"] for group in optimizer.param_groups])

    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    named = dict(model.named_parameters())
    frozen, slow = ["model.embed_tokens.weight"], ["lm_head.weight"]
    groups = [
        {"params": [named[name] for name in named if name not in (*frozen, *slow)]},
        {"params": [named[name] for name in frozen], "lr": 0.0},
        {"params": [named[name] for name in slow], "lr": 0.005},
    ]
    run = Pretrainer(
        model=model,
        args=settings(tmp_path, learning_rate=0.01),
        train_dataset=random_rows(24),
        data_collator=default_data_collator,
        optimizers=(torch.optim.AdamW(groups, lr=0.01), None),
        callbacks=[Rates()],
    )
    run.train()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]) == (name in frozen), name
    assert len({first for first, *_ in rates}) > 1
    for first, *others in rates[1:]:
        assert others == pytest.approx([0, first / 2])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"optimizer": "sgd"}, "optimizer is 'sgd'; expected one of adamw, muon"),
        (
            {"optimizer": "muon", "optim": "sgd"},
            "optim is OptimizerNames.SGD; optimizer muon needs one of adamw_torch_fused, adamw_torch",
        ),
    ],
)
def test_wrong_settings_are_refused_in_one_line(tmp_path, given, message):
    assert error(settings, tmp_path, **given).startswith(message)


# Schedules


def rates_of(folder, steps=40, **given) -> list[float]:
    """The learning rate of every step, as the optimizer has it."""
    run = trainer(folder, max_steps=steps, **given)
    optimizer = run.create_optimizer()
    scheduler = run.create_scheduler(steps)
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def test_cosine_has_warmup_and_a_minimum_of_a_tenth(tmp_path):
    def rate(step):
        if step < 4:
            return step / 4
        return 0.1 + 0.9 * (1 + math.cos(math.pi * (step - 4) / 36)) / 2

    found = rates_of(tmp_path, learning_rate=2.0, warmup_steps=0.1)
    assert found == pytest.approx([2 * rate(step) for step in range(40)])
    found = rates_of(tmp_path, learning_rate=2.0, warmup_steps=4, lr_scheduler_kwargs={"min_lr": 0.2})
    assert found == pytest.approx([2 * rate(step) for step in range(40)])


def test_linear_falls_to_zero(tmp_path):
    found = rates_of(tmp_path, lr_scheduler_type="linear", warmup_steps=8, learning_rate=1.0)
    assert found == pytest.approx([min(step / 8, (40 - step) / 32) for step in range(40)])


@pytest.mark.parametrize("decay", [0.25, 10])
def test_warmup_stable_decay_decays_in_the_last_share_of_the_run(tmp_path, decay):
    found = rates_of(
        tmp_path,
        **{"lr_scheduler_type": "warmup_stable_decay", "warmup_steps": 5, "learning_rate": 1.0},
        lr_scheduler_kwargs={"num_decay_steps": decay, "decay_type": "linear", "min_lr_ratio": 0.2},
    )
    # transformers warms up from the minimum, not from 0.
    expected = [
        0.2 + 0.8 * step / 5 if step < 5 else 1.0 if step < 30 else 1 - 0.8 * (step - 30) / 10 for step in range(40)
    ]
    assert found == pytest.approx(expected)


def test_the_users_decay_settings_are_kept(tmp_path):
    given = {"lr_scheduler_type": "warmup_stable_decay", "warmup_steps": 0, "learning_rate": 1.0}
    run = trainer(tmp_path, lr_scheduler_kwargs={"num_decay_steps": 4, "decay_type": "linear"}, **given)
    run.create_optimizer()
    run.create_scheduler(40)
    assert run.args.lr_scheduler_kwargs == {"num_decay_steps": 4, "decay_type": "linear"}
    found = rates_of(tmp_path, lr_scheduler_kwargs={"num_decay_steps": 4, "decay_type": "linear"}, **given)
    assert found == pytest.approx([1.0] * 36 + [1.0, 0.75, 0.5, 0.25])


def test_gradients_are_clipped_to_their_norm(tmp_path):
    norms = []

    class Norms(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
            norms.append(torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]).item())

    run = trainer(tmp_path, max_grad_norm=0.25, optimizer="muon")
    run.add_callback(Norms())
    run.train()
    assert norms == pytest.approx([0.25] * 6, rel=1e-4)
    assert min(row["grad_norm"] for row in history(run)) > 0.25
