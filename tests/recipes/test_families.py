"""Training and evaluating a model on a family of HMMs."""

import pytest

from hmm_datasets.files import read_json, read_jsonl
from hmm_datasets.hmm.families import RandomChains

pytestmark = pytest.mark.thorough


def test_a_model_is_trained_and_evaluated_on_a_family(program, succeeded, tmp_path):
    family = RandomChains(3, alpha=0.3, group=2)
    family.save_pretrained(tmp_path / "chains")
    train = ("--hmm", tmp_path / "chains", "--length", 12, "--model", "1m", "--max_steps", 4, "--logging_steps", 1)
    batches = ("--global_batch_size", 8, "--per_device_train_batch_size", 8, "--num_test_sequences", 16)
    output = tmp_path / "run"
    succeeded(
        program.run(
            "recipes/pretrain.py",
            *train,
            *batches,
            "--eval_strategy",
            "steps",
            "--eval_steps",
            2,
            "--output_dir",
            output,
        )
    )
    assert read_json(output / "run.json")["data"]["hmm"] == family.fingerprint()
    rows = [row for row in read_jsonl(output / "history.jsonl") if "eval_kl_bayes" in row]
    assert [row["step"] for row in rows][:2] == [2, 4]
    assert "eval_kl_process_bigram" not in rows[0]

    succeeded(
        program.run(
            "recipes/evaluate_model.py",
            *("--model", output, "--targets", tmp_path / "chains", "--num_sequences", 64),
            *("--output_dir", tmp_path / "measured"),
        )
    )
    found = read_json(tmp_path / "measured" / "report.json")["optimum"]
    entropy = {name: value["cross_entropy"] for name, value in found["cross_entropy"].items()}
    assert entropy["oracle"] < entropy["bayes"] < entropy["model"]
    assert found["floor"] == "bayes"
