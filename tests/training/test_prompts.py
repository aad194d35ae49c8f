"""Prompts for GRPO are read with all that their rows have, and rewards that say nothing end the run."""

import inspect
import json
import math
import re

import pytest
from datasets import Dataset
from tiny_chat import save_tiny_chat
from transformers import LlamaForCausalLM
from trl import GRPOTrainer

from hmm_datasets.errors import InputError
from hmm_datasets.training.post_training.conversations import prompt_splits, prompts_of
from hmm_datasets.training.post_training.rewards import check_columns, exact, gsm8k, reward
from hmm_datasets.training.post_training.trainers import PolicyTuner
from hmm_datasets.training.settings import GRPOSettings

ASK = {"role": "user", "content": "2 + 2?"}
SAY = {"role": "assistant", "content": "4"}


@pytest.fixture
def policy_tuner(tmp_path):
    """Makes a trainer of two prompts, each with two completions, and a reward."""

    def make(judge, rows):
        tokenizer = save_tiny_chat(tmp_path / "model")
        settings = GRPOSettings(
            *(str(tmp_path / "run"),),
            **{
                "max_steps": 1,
                "num_generations": 2,
                "per_device_train_batch_size": 4,
                "global_batch_size": 4,
                "max_completion_length": 4,
            },
            **{"report_to": "none", "save_strategy": "no", "eval_strategy": "no"},
        )
        model = LlamaForCausalLM.from_pretrained(tmp_path / "model")
        data = prompts_of(Dataset.from_list([{"messages": row.pop("prompt"), **row} for row in rows]))
        return PolicyTuner(
            model=model, args=settings, reward_funcs=[judge], train_dataset=data, processing_class=tokenizer
        )

    return make


def read(tmp_path, *rows):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    train, test = prompt_splits(str(tmp_path / "a.jsonl"), test_fraction=0)
    assert test is None
    return prompts_of(train)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"prompt": "2 + 2?"}, {"prompt": [ASK]}),
        ({"prompt": [ASK]}, {"prompt": [ASK]}),
        ({"prompt": "2 + 2?", "answer": "4", "level": 3}, {"prompt": [ASK], "answer": "4", "level": 3}),
        ({"question": "2 + 2?", "solution": ["4", "four"]}, {"prompt": [ASK], "solution": ["4", "four"]}),
        ({"problem": "2 + 2?", "answer": 4}, {"prompt": [ASK], "answer": 4}),
        ({"instruction": "2 + 2?", "input": ""}, {"prompt": [ASK]}),
        ({"messages": [ASK], "tests": {"a": 1}}, {"prompt": [ASK], "tests": {"a": 1}}),
        ({"messages": [ASK, SAY], "tests": [1.5]}, {"prompt": [ASK], "answer": "4", "tests": [1.5]}),
        ({"messages": [ASK, SAY], "answer": "four"}, {"prompt": [ASK], "answer": "four"}),
        ({"question": "2 + 2?", "answer": "4", "id": None}, {"prompt": [ASK], "answer": "4", "id": None}),
    ],
)
def test_a_prompt_has_its_answer_and_every_other_column_of_its_row(tmp_path, row, expected, capsys):
    assert read(tmp_path, row)[0] == expected
    assert "not used" not in capsys.readouterr().err


def test_a_hub_data_set_of_prompts_keeps_its_columns_and_splits(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    rows = [{"prompt": f"{n} + 1?", "truth": n + 1, "meta": {"level": n % 3}} for n in range(40)]
    (tmp_path / "data").mkdir()
    Dataset.from_list(rows).to_parquet(tmp_path / "data" / "train.parquet")
    train, test = prompt_splits(str(tmp_path / "data"), test_fraction=0.2)
    both = [*prompts_of(train), *prompts_of(test)]
    expected = [{"prompt": [{"role": "user", "content": row.pop("prompt")}], **row} for row in rows]
    assert sorted(both, key=lambda row: row["truth"]) == expected
    assert len(test) > 0


def test_a_column_of_several_types_is_refused_by_name(tmp_path):
    with pytest.raises(InputError, match=r"a\.jsonl: column 'level' has values of several types"):
        read(tmp_path, {"prompt": "a", "level": 1}, {"prompt": "b", "level": "two"})


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("gsm8k", [{"prompt": [ASK]}], "rewards: gsm8k takes the column 'answer', but it has only prompt"),
        ("exact", [{"prompt": [ASK], "answer": "4"}, {"prompt": [ASK], "answer": None}], "which row 1 of it lacks"),
        ("length:4", [{"prompt": [ASK]}], None),
        ("exact", [{"prompt": [ASK], "answer": "4"}], None),
    ],
)
def test_a_reward_whose_column_is_missing_is_refused_before_training(name, rows, message):
    check = {name: reward(name)}, Dataset.from_list(rows), "it"
    if message is None:
        check_columns(*check)
        return
    with pytest.raises(InputError, match=message):
        check_columns(*check)


def test_a_column_named_as_what_trl_gives_to_rewards_is_refused():
    source = inspect.getsource(GRPOTrainer._calculate_rewards)
    names = {*re.findall(r'(?<!_)reward_kwargs\["(\w+)"\] =', source), "prompts", "completions", "completion_ids"}
    assert "prompts=prompts, completions=completions, completion_ids=" in source
    assert {"trainer_state", "log_metric"} < names
    for name in names:
        rows = Dataset.from_list([{"prompt": [ASK], name: "text"}])
        with pytest.raises(InputError, match=f"it has the column '{name}', which TRL gives to rewards itself; rename"):
            check_columns({"length:4": reward("length:4")}, rows, "it")


def test_answers_may_be_numbers():
    assert gsm8k(["so it is #### 4", "5"], answer=[4, 4.5]) == [1.0, 0.0]
    assert exact(["4", "5"], answer=[4, 4]) == [1.0, 0.0]


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/huggingface/trl/pull/5775",
    "completions that every reward function skips must not train on a reward of 0",
    "if all of a step are skipped, the run ends: None or NaN for all of 4 completions",
)
@pytest.mark.outside(
    "https://github.com/modelscope/ms-swift/issues/8123",
    "rewards of None or NaN do not make advantages NaN in silence",
    "those of TRL leave them out; all of them, or an infinite one, end the run in one line",
)
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "rewards: judge: None or NaN for all of 4 completions"),
        (math.nan, "rewards: judge: None or NaN for all of 4 completions"),
        (math.inf, "rewards: judge: an infinite reward"),
    ],
)
def test_rewards_that_say_nothing_end_the_run(value, message, policy_tuner):
    seen = []

    def judge(completions, level, **_):
        seen.extend(level)
        return [value] * len(completions)

    with pytest.raises(InputError, match=message):
        policy_tuner(judge, [{"prompt": [ASK], "level": 7} for _ in range(2)]).train()
    assert seen == [7] * 4
