"""`hmm-datasets benchmark`: the table, the files, and results in the form that the Hub reads."""

import json

import pytest
import torch
import yaml
from huggingface_hub import parse_eval_result_entries
from transformers import LlamaConfig, LlamaForCausalLM

from hmm_datasets.cli import main
from hmm_datasets.errors import InputError
from hmm_datasets.evaluation.benchmark import BenchmarkSettings
from hmm_datasets.evaluation.benchmark.processes import benchmark_processes
from hmm_datasets.evaluation.benchmark.report import _write_eval_results


@pytest.fixture(scope="module")
def exact(tmp_path_factory):
    """A folder with the exact HMM of each process."""
    folder = tmp_path_factory.mktemp("exact")
    for name, hmm in benchmark_processes().items():
        hmm.save_pretrained(folder / name)
    return folder


@pytest.mark.thorough
def test_the_exact_hmms_score_zero_and_the_result_is_one_that_the_hub_reads(exact, tmp_path, capsys):
    assert main(["benchmark", str(exact), "--output_dir", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    mean, over = (line.split() for line in printed.splitlines() if line.startswith("mean"))
    assert mean[3:6] == over[1:4] == ["0.0000", "0.0000", "1.0000"]
    report = json.loads((tmp_path / "report.json").read_text())
    assert set(report["processes"]) == set(benchmark_processes())
    assert all(abs(row["excess"]) < 1e-9 for row in report["processes"].values())
    assert all(abs(row["over_symbols"]["excess"]) < 1e-9 for row in report["processes"].values())
    assert all(row["accuracy"]["model"] == row["accuracy"]["optimum"] for row in report["processes"].values())
    assert report["data"]["fingerprints"]["mess3"] == benchmark_processes()["mess3"].fingerprint()
    assert not (tmp_path / ".eval_results").exists()  # without the name of the data set there is nothing to name
    report["data"]["dataset_id"] = "me/hmm-benchmark"
    path = _write_eval_results(report, tmp_path)
    [entry] = parse_eval_result_entries(yaml.safe_load(path.read_text(encoding="utf-8")))
    assert (entry.dataset_id, entry.task_id, entry.value) == ("me/hmm-benchmark", "ids", 0.0)
    assert "nats per symbol above the optimal loss" in entry.notes
    assert entry.notes.endswith("256 sequences of each process")


@pytest.mark.thorough
def test_a_part_of_the_benchmark_is_scored_without_a_result_for_the_hub(exact, tmp_path, capsys):
    model = tmp_path / "model"
    benchmark_processes()["even"].save_pretrained(model)
    few = ["--process", "even", "--num_sequences", "4"]
    assert main(["benchmark", str(model), *few]) == 0
    assert not (model / ".eval_results").exists()
    report = json.loads((model / "benchmark" / "report.json").read_text())
    assert (list(report["processes"]), report["num_sequences"]) == (["even"], 4)
    assert "No .eval_results/" not in capsys.readouterr().out


@pytest.mark.thorough
def test_results_of_several_models_are_compared(exact, tmp_path, capsys):
    uniform = coin_model(17, 16)
    uniform.save_pretrained(tmp_path / "uniform")
    few = ["--process", "even", "--process", "mess3", "--num_sequences", "4"]
    folders = []
    for model in (exact, tmp_path / "uniform"):
        folders.append(str(tmp_path / "results" / model.name))
        assert main(["benchmark", str(model), *few, "--output_dir", folders[-1]]) == 0
    report = json.loads((tmp_path / "results" / "uniform" / "report.json").read_text())
    capsys.readouterr()
    assert main(["compare", *folders, "--output_dir", str(tmp_path / "both")]) == 0
    [row] = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("uniform ")]
    assert float(row[1]) == pytest.approx(report["mean"]["excess"], abs=1e-4)


def coin_model(vocab_size: int, bos: int) -> LlamaForCausalLM:
    """A Llama that predicts every token with the same probability."""
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=vocab_size, bos_token_id=bos, **sizes))
    torch.nn.init.zeros_(model.lm_head.weight)
    return model


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: MODEL"),
        (["{exact}", "--track", "text"], "has no tokenizer to read text with; choose --track ids"),
        (["{exact}/mess3/config"], "neither in a folder nor on the Hub"),
    ],
)
def test_a_command_that_cannot_be_done_says_why_in_one_line(exact, arguments, message, capsys, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(SystemExit) as ended:
        main(["benchmark", *(word.format(exact=exact) for word in arguments)])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_a_folder_with_models_for_some_processes_only_names_the_first_that_is_missing(exact, tmp_path):
    from accelerate import Accelerator

    from hmm_datasets.evaluation.benchmark.models import load_models

    benchmark_processes()["even"].save_pretrained(tmp_path / "even")
    accelerator = Accelerator(cpu=True)
    assert load_models(str(tmp_path), ["even"], accelerator)["even"].config.bos_token_id == 2
    with pytest.raises(InputError, match=r"has neither config.json of a model nor mess3/config.json"):
        load_models(str(tmp_path), ["even", "mess3"], accelerator)
    with pytest.raises(InputError, match="track is 'words'; expected ids or text"):
        BenchmarkSettings(model="x", track="words")
