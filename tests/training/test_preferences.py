"""DPO reads pairs in the order of pretraining's rows, counts tokens, resumes, and has the loss of the paper."""

import os
import signal

import pytest
import torch
from datasets import Dataset
from tiny_chat import WORDS, losses, message
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForCausalLM

from hmm_datasets.errors import InputError
from hmm_datasets.files import read_json, read_jsonl
from hmm_datasets.training.post_training.trainers import PreferenceTuner
from hmm_datasets.training.run import train_and_save
from hmm_datasets.training.settings import DPOSettings

PAIRS = 22
STEPS = 8  # an epoch has five and a half steps


def pairs() -> Dataset:
    return Dataset.from_list([
        {
            "prompt": message("user", f"Say {WORDS[number % 10]} and {WORDS[number // 10]}."),
            "chosen": message("assistant", " ".join(WORDS[: 1 + number % 7])),
            "rejected": message("assistant", " ".join(WORDS[3 : 5 + number % 5])),
        }
        for number in range(PAIRS)
    ])  # fmt: skip


class Stopped(PreferenceTuner):
    """Is stopped in a step, and keeps its inputs."""

    stop_in = None

    def training_step(self, model, inputs, *rest):
        self.seen = {name: value.clone() for name, value in inputs.items()}
        if self.state.global_step == self.stop_in:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().training_step(model, inputs, *rest)


def settings(folder, **given) -> DPOSettings:
    defaults = {
        "max_steps": STEPS,
        "global_batch_size": 4,
        "per_device_train_batch_size": 2,
        "max_length": 48,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "save_steps": 1000,
        "report_to": "none",
        "log_indices": True,
    }
    return DPOSettings(str(folder), **defaults | given)


def tune(folder, base, tokenizer, *, stop_in=None, rows=None, reference=None, data=None, **given):
    trainer = Stopped(
        model=AutoModelForCausalLM.from_pretrained(base),
        ref_model=reference,
        args=settings(folder, **given),
        train_dataset=pairs() if rows is None else rows,
        processing_class=tokenizer,
    )
    trainer.stop_in = stop_in
    summary = train_and_save(trainer, settings={"preferences": "pairs"}, data=data or {}, base=base)
    return trainer, summary


@pytest.fixture(scope="module")
def undisturbed(base, tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    return folder, *tune(folder, base, tokenizer)


@pytest.mark.thorough
def test_both_completions_of_every_pair_are_counted_to_the_token(undisturbed):
    folder, trainer, summary = undisturbed
    rows = trainer.plan.train_rows()
    tokens = sum(
        2 * len(row["prompt_ids"]) + len(row["chosen_ids"]) + len(row["rejected_ids"])
        for row in (rows[index] for index in range(4 * STEPS))
    )
    assert summary["tokens"] == summary["planned_tokens"] == tokens
    logged = read_jsonl(folder / "indices-0.jsonl")
    assert [row["indices"] for row in logged] == [[2 * n, 2 * n + 1] for n in range(2 * STEPS)]
    assert summary["flops"] > 0


def test_the_first_loss_is_log_two_and_the_reference_is_the_model_before(undisturbed, base, tokenizer):
    folder, trainer, _ = undisturbed
    assert losses(folder)[1] == pytest.approx(0.6931472, abs=1e-6)
    assert losses(folder)[STEPS] < 0.5
    model = AutoModelForCausalLM.from_pretrained(base).eval()
    for index in (0, 5):
        row = trainer.plan.train_rows()[index]
        for part in ("chosen", "rejected"):
            ids = torch.tensor([row["prompt_ids"] + row[f"{part}_ids"]])
            with torch.no_grad():
                log_probs = model(ids).logits.log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None]).squeeze(1)
            expected = log_probs[len(row["prompt_ids"]) - 1 :].sum().item()
            assert float(row[f"ref_{part}_logps"]) == pytest.approx(expected, abs=1e-4)


@pytest.mark.thorough
def test_reference_log_probs_are_kept_for_the_same_cut_only(base, tokenizer, tmp_path):
    def reference(folder, max_length):
        trainer = PreferenceTuner(
            model=AutoModelForCausalLM.from_pretrained(base),
            args=settings(folder, max_length=max_length),
            train_dataset=pairs(),
            processing_class=tokenizer,
        )
        rows = trainer.plan.train_rows()
        return [float(rows[index]["ref_chosen_logps"]) for index in range(PAIRS)]

    whole = reference(tmp_path / "run", 48)
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "run" / ".reference").rglob("*.arrow")}
    assert reference(tmp_path / "run", 48) == whole
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run" / ".reference").rglob("*.arrow")} == kept
    cut = reference(tmp_path / "run", 14)
    assert cut == reference(tmp_path / "anew", 14) != whole


class Largest(TorchDispatchMode):
    """Remembers the number of elements of the largest tensor that an operation returned."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        returned = func(*args, **(kwargs or {}))
        if isinstance(returned, torch.Tensor):
            self.numel = max(self.numel, returned.numel())
        return returned


def test_scores_take_no_memory_for_tokens_that_the_vocabulary_has_not(base, tokenizer, tmp_path):
    """TRL 1.16 takes 32,768 columns for each token, twice a batch."""
    trainer = PreferenceTuner(
        model=AutoModelForCausalLM.from_pretrained(base),
        args=settings(tmp_path),
        train_dataset=pairs(),
        processing_class=tokenizer,
    )
    batch = next(iter(trainer.get_train_dataloader()))
    tokens, vocabulary = batch["input_ids"].numel(), trainer.model.config.vocab_size
    with Largest() as seen:
        trainer.compute_loss(trainer.model, batch).backward()
    assert seen.numel <= max(tokens * vocabulary, *(p.numel() for p in trainer.model.parameters()))


@pytest.mark.thorough
def test_a_stopped_run_continues_with_the_pairs_and_losses_of_an_undisturbed_one(
    undisturbed, base, tokenizer, tmp_path
):
    folder, _, summary = undisturbed
    _, stopped = tune(tmp_path, base, tokenizer, stop_in=5)
    assert stopped == {"steps": 6, "interrupted": "SIGTERM"}
    _, resumed = tune(tmp_path, base, tokenizer)
    assert resumed["resumed_from"] == "checkpoint-6"
    assert resumed["tokens"] == summary["tokens"]
    assert losses(tmp_path) == pytest.approx(losses(folder), abs=1e-6)
    assert read_jsonl(tmp_path / "indices-0.jsonl") == read_jsonl(folder / "indices-0.jsonl")
    assert read_json(tmp_path / "run.json")["lineage"]["stage"] == "preference optimization"


@pytest.mark.thorough
def test_a_changed_beta_or_reference_is_refused_when_a_run_continues(base, tokenizer, tmp_path):
    tune(tmp_path, base, tokenizer, stop_in=1, data={"reference": "a"})
    with pytest.raises(InputError, match=r"settings\.beta"):
        tune(tmp_path, base, tokenizer, beta=0.5, data={"reference": "a"})
    with pytest.raises(InputError, match=r"data\.reference"):
        tune(tmp_path, base, tokenizer, data={"reference": "b"})


@pytest.mark.thorough
@pytest.mark.parametrize("given", ["as columns", "as a model"])
def test_token_ids_are_used_as_they_are_with_the_reference_that_is_given(base, tokenizer, tmp_path, given):
    """The loss is `-log sigmoid(beta (log ratio of chosen - log ratio of rejected))` (Rafailov et al., eq. 7)."""
    generator = torch.Generator().manual_seed(1)
    lengths = {"prompt_ids": 3, "chosen_ids": 6, "rejected_ids": 6}
    rows = [
        {name: torch.randint(5, 90, (length,), generator=generator).tolist() for name, length in lengths.items()}
        for _ in range(4)
    ]
    torch.manual_seed(2)
    reference = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(base)).eval()
    policy = AutoModelForCausalLM.from_pretrained(base).eval()

    def log_prob(model, row, part) -> torch.Tensor:
        ids = torch.tensor([row["prompt_ids"] + row[f"{part}_ids"]])
        return model(ids).logits.log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None])[2:].sum().detach()

    expected = []
    for number, row in enumerate(rows):
        known = {"chosen": -20.0 - number, "rejected": -22.0}
        if given == "as columns":
            row |= {f"ref_{part}_logps": nats for part, nats in known.items()}
        else:
            known = {part: log_prob(reference, row, part) for part in known}
        chosen, rejected = (log_prob(policy, row, part) - nats for part, nats in known.items())
        expected.append(-torch.nn.functional.logsigmoid(0.3 * (chosen - rejected)))
    trainer, _ = tune(
        *(tmp_path, base, tokenizer),
        rows=Dataset.from_list(rows),
        reference=reference if given == "as a model" else None,
        **{"max_steps": 1, "per_device_train_batch_size": 4, "beta": 0.3},
    )
    assert trainer.seen["input_ids"].shape == (8, 9), "no end of sequence was appended"
    found = losses(tmp_path)[1]
    assert found == pytest.approx(torch.stack(expected).mean().item(), abs=1e-5)
    assert abs(found - 0.6931472) > 1e-3, "the reference differs from the model"


@pytest.mark.thorough
def test_an_adapter_is_trained_from_the_same_reference_and_resumes(undisturbed, base, tokenizer, tmp_path):
    how = {"use_peft": True, "lora_r": 4, "lora_dropout": 0.0}
    whole, _ = tune(tmp_path / "whole", base, tokenizer, **how)
    for name in ("ref_chosen_logps", "ref_rejected_logps"):
        expected = undisturbed[1].plan.train_rows()[3][name]
        assert float(whole.plan.train_rows()[3][name]) == pytest.approx(float(expected), abs=1e-4)
    assert losses(tmp_path / "whole")[1] == pytest.approx(0.6931472, abs=1e-6)
    assert losses(tmp_path / "whole")[STEPS] < 0.68
    tune(tmp_path / "run", base, tokenizer, stop_in=4, **how)
    _, resumed = tune(tmp_path / "run", base, tokenizer, **how)
    assert resumed["resumed_from"] == "checkpoint-5"
    assert losses(tmp_path / "run") == pytest.approx(losses(tmp_path / "whole"), abs=1e-6)
    assert (tmp_path / "run" / "adapter_model.safetensors").exists()


@pytest.mark.outside(
    "https://github.com/huggingface/trl/pull/1035",
    "DPO with `label_smoothing`, which TRL 1.16 drops in silence with the loss `sigmoid`",
    "is refused, and the losses that use it are named",
)
def test_settings_that_preferences_cannot_have_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"label_smoothing is 0.1, but has no effect unless loss_type is robust"):
        settings(tmp_path, label_smoothing=0.1)
    with pytest.raises(
        InputError, match=r"f_alpha_divergence_coef is 0\.3, but has no effect unless f_divergence_type"
    ):
        settings(tmp_path, f_alpha_divergence_coef=0.3)
    assert settings(tmp_path, loss_type=["sft", "robust"], label_smoothing=0.1).label_smoothing == 0.1
    with pytest.raises(InputError, match="sync_ref_model"):
        settings(tmp_path, sync_ref_model=True, precompute_ref_log_probs=False)
