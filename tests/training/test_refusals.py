"""Every row of the table of settings: what works changes the losses as it says or not at all, the rest is refused."""

import json
import math
from functools import partial
from pathlib import Path

import pytest
import torch
from needed_versions import needs
from tiny_runs import history, random_rows, settings, tiny_model, trainer

from hmm_datasets.errors import InputError
from hmm_datasets.training.refusals import REFUSALS, check_refusals
from hmm_datasets.training.run import train_and_save
from hmm_datasets.training.settings import DPOSettings, GRPOSettings, PretrainSettings, SFTSettings

SETTINGS = {"pretrain": PretrainSettings, "sft": SFTSettings, "dpo": DPOSettings, "grpo": GRPOSettings}
WORKS = [
    (name, json.loads(example))
    for line in Path(__file__).with_name("settings_that_work.tsv").read_text("utf-8").splitlines()[1:]
    for name, example, _ in [line.split("\t")]
]
REFUSED = [
    pytest.param(row, marks=needs("transformers>=5.15") if row.name == "dataloader_in_order" else ())
    for row in REFUSALS
]
CHANGES = {"neftune_noise_alpha", "train_sampling_strategy", "optim"}


def given(name, example):
    name, _, key = name.partition(".")
    return {name: {key: example} if key else example}


def run_of(folder, **chosen):
    run = trainer(folder, rows=random_rows(64), max_steps=3, **chosen)
    run.eval_dataset = random_rows(7, ignored=True)
    summary = train_and_save(run, settings={}, data={})
    return [row["loss"] for row in history(run)], summary["evaluation"]["loss"], run


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return run_of(tmp_path_factory.mktemp("plain"))


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "example"), WORKS, ids=[name for name, _ in WORKS])
def test_a_setting_that_works_leaves_losses_as_they_are_unless_it_is_about_them(name, example, plain, tmp_path):
    losses, held_out, run = run_of(tmp_path, **given(name, example))
    if name in CHANGES:
        assert losses != plain[0]
    elif name == "max_grad_norm":  # which hardly changes a step of AdamW
        assert losses == pytest.approx(plain[0], abs=1e-4)
    else:
        assert (losses, held_out) == plain[:2]
    assert all(row["grad_norm"] > 0 for row in history(run))


@pytest.mark.outside(
    "https://github.com/huggingface/transformers/issues/38484",
    "know what `per_device_train_batch_size` means with `split_batches`",
    "refused: `accelerator_config.split_batches is True, but the global batch is global_batch_size rows, whatever the "
    "processes; leave it out`",
)
@pytest.mark.outside(
    "https://github.com/huggingface/accelerate/issues/2708",
    "as many steps with `split_batches` as without",
    "refused (steps follow from global_batch_size): `accelerator_config.split_batches is True, but the global "
    "batch is global_batch_size rows, whatever the processes; leave it out`",
)
@pytest.mark.outside(
    "https://github.com/huggingface/transformers/issues/10309",
    "evaluate with `label_smoothing_factor`, which raised an error",
    "refused: the optimum of a smoothed loss is another than that of the data",
)
@pytest.mark.outside(
    "https://github.com/huggingface/trl/pull/5575",
    "fine-tune with `label_smoothing_factor` where the loss is computed in chunks",
    "refused: the optimum of a smoothed loss is another than that of the data",
)
@pytest.mark.parametrize("row", REFUSED, ids=lambda row: f"{row.name}-{','.join(row.trainers)}")
def test_a_setting_that_does_not_work_is_refused_by_name_with_the_reason(row, tmp_path, monkeypatch):
    for name in row.trainers:
        make = partial(SETTINGS[name], str(tmp_path), report_to="none", **given(row.name, row.example))
        if row.name == "average_tokens_across_devices":  # on several processes only
            make = partial(check_refusals, make())
            monkeypatch.setenv("WORLD_SIZE", "2")
        with pytest.raises(InputError) as caught:
            make()
        monkeypatch.delenv("WORLD_SIZE", raising=False)
        expected = " ".join(f"{row.name} is {row.example!r}, but {row.reason}".split())
        assert str(caught.value).startswith(expected)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["train_sampling_strategy", "include_num_input_tokens_seen"])
def test_a_plan_refuses_another_order_and_another_count(name, tmp_path):
    value = {"train_sampling_strategy": "random", "include_num_input_tokens_seen": "all"}[name]
    chosen = settings(tmp_path, **{name: value})
    with pytest.raises(InputError, match=f"{name} is {value}, but"):
        chosen.plan(None, None)


def test_noise_of_embeddings_is_within_its_bound_in_training_and_absent_in_evaluations(tmp_path):
    """Uniform noise up to alpha / sqrt(L D) (Jain et al., "NEFTune", 2023, algorithm 1)."""
    model, noise = tiny_model(), {True: [], False: []}
    weight = model.get_input_embeddings()
    model.model.layers[0].register_forward_pre_hook(
        lambda module, inputs, named: noise[module.training].append(
            (inputs[0] if inputs else named["hidden_states"]).detach() - weight.weight[seen[-1]].detach()
        ),
        with_kwargs=True,
    )
    seen = []
    weight.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    run = trainer(tmp_path, model=model, max_steps=2, neftune_noise_alpha=5.0)
    run.eval_dataset = random_rows(7)
    run.train()
    run.evaluate()
    bound = 5.0 / math.sqrt(16 * 32)
    largest = torch.cat([one.flatten() for one in noise[True]]).abs().max().item()
    assert 0.99 * bound < largest <= bound * (1 + 1e-6)
    assert all((one == 0).all() for one in noise[False])


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"optim": "lomo"}, "optim is 'lomo', but it steps within the backward pass"),
        ({"optim": "galore_adamw", "optim_target_modules": ["mlp"]}, "optim is galore_adamw: .*galore"),
        ({"use_liger_kernel": True}, "use_liger_kernel is set, but liger-kernel is not installed"),
        (
            {"train_sampling_strategy": "batch_rebalance"},
            "strategy is 'batch_rebalance', but its batch",
        ),
        (
            {"accelerator_config": {"gradient_accumulation_kwargs": {"sync_with_dataloader": False}}},
            "gradient_accumulation_kwargs is .*, but only sync_each_batch can be set",
        ),
    ],
)
def test_other_values_of_a_row_and_missing_packages_are_refused_too(chosen, message, tmp_path):
    with pytest.raises(InputError, match=message):
        settings(tmp_path, **chosen)
