"""The experiment with a leaky tokenizer, from its first command to its table, at the smallest size."""

import json

import pytest

pytestmark = [pytest.mark.launch, pytest.mark.slow]

SMALL = ("--vocab_size", 700, "--max_documents", 150, "--train_tokens", 4000, "--global_batch_size", 8)


def test_the_experiment_ends_in_a_table_with_intervals(program, succeeded, tmp_path):
    output = tmp_path / "leaky"
    command = ("recipes/leaky_tokenizer/run.py", "--config", "recipes/leaky_tokenizer/small.yaml", *SMALL)
    settings = ("--micro_batch_size", 8, "--length", 64, "--seeds", 3, "--launcher", "cpu1")
    result = succeeded(program.run(*command, *settings, "--output_dir", output, timeout=500))
    report = json.loads((output / "report.json").read_text())

    test = report["compression"]["test"]
    assert test["first"]["bytes"] == test["second"]["bytes"]
    assert test["bytes_per_token"]["value"] > 0, "a tokenizer that saw the text compresses it better"
    assert test["bytes_per_token"]["low"] <= test["bytes_per_token"]["value"] <= test["bytes_per_token"]["high"]
    assert report["tokens_from_test"]["new"] > 0
    assert all(token["in_test"] > 0 for token in report["tokens_from_test"]["from_test"])

    (row,) = report["models"]["seeds"]
    assert row["seed"] == 3
    assert row["difference"]["value"] == pytest.approx(row["leaky"] - row["clean"], abs=1e-9)
    assert row["difference"]["low"] < row["difference"]["high"]
    assert report["models"]["bytes"] == test["first"]["bytes"], "every byte of every held-out document is scored"
    runs = [json.loads((output / name / "model-3" / "summary.json").read_text()) for name in ("clean", "leaky")]
    assert runs[0]["tokens"] == runs[1]["tokens"], "the same budget"
    assert (output / "leaky.png").stat().st_size > 5_000
    for said in ("held-out text", "leaky - clean", "bits per byte, seed", "mean"):
        assert said in result.stdout
