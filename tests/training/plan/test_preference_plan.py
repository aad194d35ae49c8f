"""`hmm-datasets plan` of DPO: the pairs and tokens that the trainer then trains on."""

import json

import pytest
from test_preferences import pairs, settings
from transformers import AutoModelForCausalLM

from hmm_datasets.operations.planning import plan_recipe
from hmm_datasets.training.post_training.trainers import PreferenceTuner


@pytest.fixture
def file(base, tmp_path):
    rows = tmp_path / "pairs.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in pairs()))
    content = {"model": base, "preferences": rows, "test_fraction": 0.0, "output_dir": tmp_path / "run"}
    content |= {"num_train_epochs": 2, "global_batch_size": 4, "per_device_train_batch_size": 2, "report_to": "none"}
    path = tmp_path / "dpo.yaml"
    path.write_text("".join(f"{name}: {value}\n" for name, value in content.items()))
    return str(path)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "given", [{}, {"max_length": 14}, {"max_length": 14, "truncation_mode": "keep_end"}], ids=["", "cut", "cut, end"]
)
def test_the_plan_of_a_settings_file_is_that_of_the_trainer(given, file, base, tokenizer, tmp_path):
    found = plan_recipe(
        "dpo", ["--config", file] + [part for name, value in given.items() for part in (f"--{name}", str(value))]
    )
    sizes = {"max_steps": -1, "num_train_epochs": 2, "log_indices": False, "max_length": 64}  # the model's positions
    trainer = PreferenceTuner(
        model=AutoModelForCausalLM.from_pretrained(base),
        args=settings(tmp_path / "run", **sizes | given),
        train_dataset=pairs(),
        processing_class=tokenizer,
    )
    planned = trainer.plan.to_dict()
    assert planned == {name: found[name] for name in planned}
    assert found["tokens"] > 0
    assert found["memory"]["ddp"]["optimizer"] == 8 * found["parameters"]
