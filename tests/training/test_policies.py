"""GRPO reads prompts in order, counts what it generates, learns, and resumes with the rollouts of a whole run."""

import os
import signal

import pyarrow.parquet as pq
import pytest
from tiny_chat import WORDS, losses, message
from transformers import AutoModelForCausalLM

from hmm_datasets.errors import InputError
from hmm_datasets.files import DIGESTS_NAME, read_json, read_jsonl
from hmm_datasets.training.post_training.trainers import PolicyTuner
from hmm_datasets.training.run import train_and_save
from hmm_datasets.training.settings import GRPOSettings

PROMPTS = 10
STEPS = 6


def prompts():
    from datasets import Dataset

    rows = [{"prompt": message("user", f"Say {word}."), "answer": word, "number": n} for n, word in enumerate(WORDS)]
    return Dataset.from_list(rows)


def share_of_e(completions, **_):
    """More for more letters e, which a model learns in a few steps."""
    texts = [completion[0]["content"] for completion in completions]
    return [text.count("e") / max(1, len(text)) for text in texts]


class Stopped(PolicyTuner):
    """Is stopped in a step, and keeps the prompts of every step."""

    stop_in = None

    def training_step(self, model, inputs, *rest):
        seen = self.__dict__.setdefault("seen", {})
        seen.setdefault(self.state.global_step, set()).update(row["number"] for row in inputs)
        if self.state.global_step == self.stop_in:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().training_step(model, inputs, *rest)


def settings(folder, **given) -> GRPOSettings:
    defaults = {
        "max_steps": STEPS,
        "global_batch_size": 16,
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 8,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "logging_steps": 1,
        "save_steps": 1000,
        "report_to": "none",
    }
    return GRPOSettings(str(folder), **defaults | given)


def tune(folder, base, tokenizer, *, stop_in=None, test=None, **given):
    trainer = Stopped(
        model=AutoModelForCausalLM.from_pretrained(base),
        reward_funcs=[share_of_e],
        args=settings(folder, **given),
        train_dataset=prompts(),
        eval_dataset=test,
        processing_class=tokenizer,
    )
    trainer.stop_in = stop_in
    return trainer, train_and_save(trainer, settings={"prompts": "words"}, data={}, base=base)


@pytest.fixture(scope="module")
def undisturbed(base, tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    return folder, *tune(folder, base, tokenizer, test=prompts().select(range(4)))


def rewards(folder):
    return {row["step"]: row["reward"] for row in read_jsonl(folder / "history.jsonl") if "reward" in row}


@pytest.mark.thorough
def test_prompts_are_read_in_order_each_once_per_epoch(undisturbed):
    _, trainer, _ = undisturbed
    order = [trainer.train_dataset[index]["number"] for index in range(4 * STEPS)]
    assert [trainer.seen[step] for step in range(STEPS)] == [set(order[4 * s : 4 * s + 4]) for s in range(STEPS)]
    assert sorted(order[:PROMPTS]) == sorted(order[PROMPTS : 2 * PROMPTS]) == list(range(PROMPTS))
    assert order[:PROMPTS] != order[PROMPTS : 2 * PROMPTS]


@pytest.mark.thorough
def test_the_reward_rises_and_everything_generated_is_counted(undisturbed):
    folder, _, summary = undisturbed
    found = rewards(folder)
    assert found[STEPS] > found[1] + 0.02
    assert summary["evaluation"]["reward"] > found[1]
    card = (folder / "README.md").read_text()
    assert f"| Held-out reward | {summary['evaluation']['reward']:.5g} | not estimated | reward |" in card
    assert "loss" not in card.partition("## Results")[2].partition("## Use")[0]
    rows = [row for row in read_jsonl(folder / "history.jsonl") if "completions/mean_length" in row and "loss" in row]
    completions = sum(16 * row["completions/mean_length"] for row in rows)
    prompt_tokens = summary["tokens"] - completions
    assert 16 * STEPS * 4 < prompt_tokens < 16 * STEPS * 20
    assert summary["flops"] > 0
    tables = [pq.read_table(path) for path in sorted((folder / "completions").glob("*.parquet"))]
    assert len(tables) == STEPS
    assert {"step", "prompt", "completion", "share_of_e", "advantage"} <= set(tables[0].column_names)
    assert tables[-1].num_rows == 16
    assert read_json(folder / "run.json")["lineage"]["stage"] == "reinforcement learning"


@pytest.mark.thorough
def test_the_best_model_is_that_of_the_greatest_held_out_reward(base, tokenizer, tmp_path):
    each = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1, "max_steps": 3}
    trainer, _ = tune(tmp_path, base, tokenizer, test=prompts().select(range(4)), load_best_model_at_end=True, **each)
    rows = [row for row in read_jsonl(tmp_path / "history.jsonl") if "eval_reward" in row]
    found = {row["step"]: row["eval_reward"] for row in rows[:3]}
    assert len(set(found.values())) > 1
    assert trainer.state.best_metric == max(found.values())
    assert found[trainer.state.best_global_step] == trainer.state.best_metric


TWICE = {"num_iterations": 2, "beta": 0.1}


@pytest.fixture(scope="module")
def undisturbed_twice(base, tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("twice")
    return folder, *tune(folder, base, tokenizer, **TWICE)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("given", "steps"),
    [({}, 4), (TWICE, 4), (TWICE, 3)],
    ids=["", "two updates per rollout, and KL", "within a rollout"],
)
def test_a_stopped_run_continues_with_the_rollouts_of_an_undisturbed_one(
    given, steps, undisturbed, undisturbed_twice, base, tokenizer, tmp_path
):
    folder, whole, summary = undisturbed_twice if given else undisturbed
    _, stopped = tune(tmp_path, base, tokenizer, stop_in=steps - 1, **given)
    assert stopped == {"steps": steps, "interrupted": "SIGTERM"}
    trainer, resumed = tune(tmp_path, base, tokenizer, **given)
    assert resumed["resumed_from"] == f"checkpoint-{steps}"
    assert resumed["tokens"] == summary["tokens"]
    assert trainer.seen == {step: whole.seen[step] for step in range(steps, STEPS)}
    assert rewards(tmp_path) == pytest.approx(rewards(folder), abs=1e-6)
    assert losses(tmp_path) == pytest.approx(losses(folder), abs=1e-5)


@pytest.mark.thorough
def test_a_rollout_under_way_that_is_not_in_the_checkpoint_is_drawn_anew(undisturbed_twice, base, tokenizer, tmp_path):
    """As on another number of processes, and in checkpoints of earlier versions."""
    _, whole, _ = undisturbed_twice
    tune(tmp_path, base, tokenizer, stop_in=2, **TWICE)
    for name in ("rollout_0.pt", DIGESTS_NAME):
        (tmp_path / "checkpoint-3" / name).unlink()
    trainer, resumed = tune(tmp_path, base, tokenizer, **TWICE)
    assert (resumed["resumed_from"], resumed["steps"]) == ("checkpoint-3", STEPS)
    assert trainer.seen == {step: whole.seen[step] for step in range(3, STEPS)}
    assert list(rewards(tmp_path)) == [1, 3, 4, 5]


def test_epochs_are_counted_in_prompts(tmp_path):
    chosen = settings(tmp_path, max_steps=-1, num_train_epochs=2.0, num_iterations=3)
    chosen.set_steps(PROMPTS)
    assert chosen.max_steps == 5 * 3
    assert [chosen.prompts_before(step) for step in range(7)] == [0, 0, 0, 4, 4, 4, 8]
    with pytest.raises(InputError, match="of 3 prompts are less than the first step takes, 4"):
        settings(tmp_path, max_steps=-1).set_steps(3)


@pytest.mark.outside(
    "https://github.com/NovaSky-AI/SkyRL/pull/553",
    "GRPO with the loss `cispo` and the default `epsilon_high`, which caps every ratio at 0.2",
    "is refused, and told to set it above 1",
)
@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"generation_batch_size": 24}, "does not make whole steps of global_batch_size 16"),
        ({"sync_ref_model": True, "beta": 0.1}, "the reference would not survive a resume"),
        ({"loss_type": "cispo"}, r"epsilon_high is 0.2 with loss_type cispo, .* set it above 1, for example 5\.0"),
        ({"sapo_temperature_pos": 2.0}, "has no effect unless loss_type is sapo"),
    ],
)
def test_settings_that_rollouts_cannot_have_are_refused(given, told, tmp_path):
    with pytest.raises(InputError, match=told):
        settings(tmp_path, **given)
