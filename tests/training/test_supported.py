"""Every row of the table of settings: what works changes the losses as it says or not at all, the rest is refused."""

import math
from functools import partial

import pytest
import torch
from architectures import architecture_config
from needed_versions import needs
from tiny_runs import conversations, history, random_rows, settings, tiny_model, trainer
from transformers import LlamaForCausalLM

from hmm_datasets.errors import InputError
from hmm_datasets.text.tokenizers.bpe import train_bpe
from hmm_datasets.training.model_configs import model_config, new_model
from hmm_datasets.training.post_training.trainers import FineTuner
from hmm_datasets.training.run import train_and_save
from hmm_datasets.training.settings import DPOSettings, GRPOSettings, PretrainSettings, SFTSettings
from hmm_datasets.training.supported import TABLE, check_supported

SETTINGS = {"pretrain": PretrainSettings, "sft": SFTSettings, "dpo": DPOSettings, "grpo": GRPOSettings}
SINCE_5_15 = ("label_smoothing_factor", "dataloader_in_order")
ROWS = [pytest.param(row, marks=needs("transformers>=5.15") if row.name in SINCE_5_15 else ()) for row in TABLE]
WORKS = [param for param in ROWS if param.values[0].refused is None]
REFUSED = [param for param in ROWS if param.values[0].refused is not None]
CHANGES = {"label_smoothing_factor", "neftune_noise_alpha", "train_sampling_strategy", "optim"}


def given(row):
    name, _, key = row.name.partition(".")
    return {name: {key: row.example} if key else row.example}


def run_of(folder, **chosen):
    run = trainer(folder, rows=random_rows(64), max_steps=3, **chosen)
    run.eval_dataset = random_rows(7, ignored=True)
    summary = train_and_save(run, settings={}, data={})
    return [row["loss"] for row in history(run)], summary["evaluation"]["loss"], run


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return run_of(tmp_path_factory.mktemp("plain"))


@pytest.mark.thorough
@pytest.mark.parametrize("row", WORKS, ids=lambda row: row.name)
def test_a_setting_that_works_leaves_losses_as_they_are_unless_it_is_about_them(row, plain, tmp_path):
    losses, held_out, run = run_of(tmp_path, **given(row))
    if row.name in CHANGES:
        assert losses != plain[0]
    elif row.name == "max_grad_norm":  # which hardly changes a step of AdamW
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
@pytest.mark.parametrize("row", REFUSED, ids=lambda row: f"{row.name}-{','.join(row.trainers)}")
def test_a_setting_that_does_not_work_is_refused_by_name_with_the_reason(row, tmp_path, monkeypatch):
    for name in row.trainers:
        make = partial(SETTINGS[name], str(tmp_path), report_to="none", **given(row))
        if row.name == "average_tokens_across_devices":  # on several processes only
            make = partial(check_supported, make())
            monkeypatch.setenv("WORLD_SIZE", "2")
        with pytest.raises(InputError) as caught:
            make()
        monkeypatch.delenv("WORLD_SIZE", raising=False)
        expected = " ".join(f"{row.name} is {row.example!r}, but {row.outcome}".split())
        assert str(caught.value).startswith(expected)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["train_sampling_strategy", "include_num_input_tokens_seen"])
def test_a_plan_refuses_another_order_and_another_count(name, tmp_path):
    value = {"train_sampling_strategy": "random", "include_num_input_tokens_seen": "all"}[name]
    chosen = settings(tmp_path, **{name: value})
    with pytest.raises(InputError, match=f"{name} is {value}, but"):
        chosen.plan(None, None)


def smoothed(model, rows, epsilon):
    """The mean over labels of the smoothed loss and of the cross-entropy, from the definition."""
    sums, crosses, count = 0.0, 0.0, 0
    for row in rows:
        with torch.no_grad():
            logs = model(input_ids=row["input_ids"][None]).logits[0].double().log_softmax(-1)
        for position, label in enumerate(row["labels"][1:].tolist()):
            if label != -100:
                cross = -logs[position, label].item()
                crosses, count = crosses + cross, count + 1
                sums += (1 - epsilon) * cross - epsilon * logs[position].mean().item()
    return sums / count, crosses / count


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/huggingface/transformers/issues/10309",
    "evaluate with `label_smoothing_factor`, which raised an error",
    "trains on the smoothed loss and evaluates the cross-entropy, also next to an HMM",
)
@needs("transformers>=5.15")
@pytest.mark.parametrize("kind", ["llama", "lstm"])
def test_label_smoothing_is_that_of_its_definition_for_any_model_and_held_out_losses_are_cross_entropies(
    kind, tmp_path
):
    def model():
        if kind == "llama":
            return tiny_model()
        torch.manual_seed(0)
        return new_model(architecture_config("lstm", vocab_size=101, length=16, width=16, layers=1))

    rows, held_out = random_rows(64, ignored=True), random_rows(7, ignored=True)
    chosen = {"label_smoothing_factor": 0.1, "learning_rate": 0.0, "weight_decay": 0.0, "z_loss": 1e-4}
    run = trainer(tmp_path, model=model(), rows=rows, max_steps=2, **chosen)
    run.eval_dataset = held_out
    run.train()
    for step, row in enumerate(history(run)):
        expected, cross = smoothed(model().eval(), rows[8 * step : 8 * step + 8], 0.1)
        assert row["loss"] == pytest.approx(expected, abs=1e-5)
        assert abs(expected - cross) > 1e-4
    assert run.evaluate()["eval_loss"] == pytest.approx(smoothed(model().eval(), held_out, 0.1)[1], abs=1e-5)


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/huggingface/trl/pull/5575",
    "fine-tune and evaluate with `label_smoothing_factor` where the loss is computed in chunks",
    "trains on the smoothed loss and evaluates the cross-entropy",
)
@needs("transformers>=5.15")
def test_fine_tuning_smooths_labels_too(tmp_path):
    rows = conversations()
    tokenizer = train_bpe([turn["content"] for row in rows for turn in row["messages"]], 400, show_progress=False)
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        model_config("d1", vocab_size=len(tokenizer), max_length=48, pad_token_id=tokenizer.pad_token_id)
    )
    chosen = {"global_batch_size": 4, "per_device_train_batch_size": 2, "max_length": 48, "max_steps": 1}
    chosen |= {"learning_rate": 0.0, "label_smoothing_factor": 0.1, "report_to": "none", "logging_steps": 1}
    run = FineTuner(
        model=model,
        args=SFTSettings(str(tmp_path), **chosen),
        train_dataset=rows,
        eval_dataset=rows.select(range(5)),
        processing_class=tokenizer,
    )
    prepared = [
        {name: torch.tensor(row[name]) for name in ("input_ids", "labels")}
        for row in [*(run.plan.train_rows()[index] for index in range(4)), *run.eval_dataset]
    ]
    run.train()
    model.eval()
    assert history(run)[0]["loss"] == pytest.approx(smoothed(model, prepared[:4], 0.1)[0], abs=1e-5)
    assert run.evaluate()["eval_loss"] == pytest.approx(smoothed(model, prepared[4:], 0.1)[1], abs=1e-5)


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
