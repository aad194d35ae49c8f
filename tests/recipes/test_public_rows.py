"""`sft` and `dpo` train on rows in the formats of other projects, whose answers are what they learn."""

import importlib
import json
from pathlib import Path

import pytest
from tiny_chat import save_tiny_chat

from hmm_datasets.files import read_json
from hmm_datasets.training.settings import DPOSettings, SFTSettings
from hmm_datasets.training.sources import ConversationSettings, PreferenceSettings

RECIPES = Path(__file__).parents[2] / "recipes"
STEP = {
    **{"max_steps": 1, "global_batch_size": 4, "per_device_train_batch_size": 4, "max_length": 64},
    **{"logging_steps": 1, "save_strategy": "no", "report_to": "none"},
}
TURNS = {
    "an object of two turns": lambda n: {"conversation": [{"human": f"Say {n}.", "assistant": f"{n}"}]},
    "Bedrock": lambda n: {
        "schemaVersion": "bedrock-conversation-2024",
        "system": [{"text": "Say it."}],
        "messages": [{"role": r, "content": [{"text": f"Say {n}."}]} for r in ("user", "assistant")],
    },
    "a label in words": lambda n: {"prompt": f"Say {n}.", "completion": f"{n}", "label": "no" if n == 3 else "Yes"},
    "a function_call": lambda n: {
        "conversations": [
            {"from": "human", "value": f"Say {n}."},
            {"from": "function_call", "value": '{"name": "say", "parameters": ""}'},
        ]
    },
    "an empty answer": lambda n: {"input": f"Say {n}.", "output": "" if n == 3 else f"{n}"},
}
PAIRS = {
    "OpenAI": lambda n: {
        "input": {"messages": [{"role": "user", "content": f"Say {n}."}], "tools": []},
        "preferred_output": [{"role": "assistant", "content": f"{n}"}],
        "non_preferred_output": [{"role": "assistant", "content": "no"}],
    },
    "ShareGPT": lambda n: {
        "conversations": [{"from": "human", "value": f"Say {n}."}],
        "chosen": {"from": "gpt", "value": f"{n}"},
        "rejected": {"from": "gpt", "value": "no"},
    },
    "a transcript": lambda n: {
        "prompt": f"\n\nHuman: Hi\n\nAssistant: Hi\n\nHuman: Say {n}.\n\nAssistant:",
        "chosen": f" {n}",
        "rejected": "" if n == 3 else " no",
    },
}


@pytest.fixture
def train(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(RECIPES)
    save_tiny_chat(tmp_path / "model")

    def train(recipe, row):
        file = tmp_path / "rows.jsonl"
        file.write_text("".join(json.dumps(row(n)) + "\n" for n in range(10)))
        if recipe == "sft":
            chosen = ConversationSettings(str(tmp_path / "model"), str(file), max_new_tokens=2, test_fraction=0)
            settings = SFTSettings(str(tmp_path / "run"), **STEP)
        else:
            chosen = PreferenceSettings(model=str(tmp_path / "model"), preferences=str(file), test_fraction=0)
            settings = DPOSettings(str(tmp_path / "run"), **STEP)
        importlib.import_module(recipe).main(chosen, settings)
        return read_json(tmp_path / "run" / "summary.json")

    return train


@pytest.mark.thorough
@pytest.mark.parametrize("name", TURNS)
def test_sft_trains_a_step_on_public_rows(name, train, capfd):
    assert train("sft", TURNS[name])["tokens"] > 0
    printed = "".join(capfd.readouterr())
    assert ("1 of 10 rows are left out, since their label is false" in printed) == (name == "a label in words")
    assert ("1 of 10 conversations in split 'train' have no turn" in printed) == (name == "an empty answer")


@pytest.mark.thorough
@pytest.mark.parametrize("name", PAIRS)
def test_dpo_trains_a_step_on_public_rows(name, train, capfd):
    assert train("dpo", PAIRS[name])["tokens"] > 0
    printed = "".join(capfd.readouterr())
    assert ("1 of 10 rows are left out, since an answer is empty" in printed) == (name == "a transcript")
