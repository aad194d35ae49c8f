"""`hmm-datasets benchmark`: the table, the files, and results in the form that the Hub reads."""

import json

import pytest
import yaml
from huggingface_hub import parse_eval_result_entries

from hmm_datasets.cli import main
from hmm_datasets.errors import InputError
from hmm_datasets.evaluation.benchmark import BenchmarkSettings
from hmm_datasets.evaluation.benchmark.processes import benchmark_processes
from hmm_datasets.evaluation.benchmark.scoring import BASELINES


@pytest.fixture(scope="module")
def exact(tmp_path_factory):
    """A folder with the exact HMM of each process."""
    folder = tmp_path_factory.mktemp("exact")
    for name, hmm in benchmark_processes().items():
        hmm.save_pretrained(folder / name)
    return folder


@pytest.mark.launch
def test_the_exact_hmms_score_zero_and_the_result_is_one_that_the_hub_reads(exact, tmp_path, capsys):
    arguments = ["benchmark", str(exact), "--output_dir", str(tmp_path), "--dataset_id", "me/hmm-benchmark"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    mean, over = (line.split() for line in printed.splitlines() if line.startswith("mean"))
    assert mean[3:6] == over[1:4] == ["0.0000", "0.0000", "1.0000"]
    report = json.loads((tmp_path / "report.json").read_text())
    assert set(report["processes"]) == set(benchmark_processes())
    assert all(abs(row["excess"]) < 1e-9 for row in report["processes"].values())
    assert all(abs(row["over_symbols"]["excess"]) < 1e-9 for row in report["processes"].values())
    assert all(row["accuracy"]["model"] == row["accuracy"]["optimum"] for row in report["processes"].values())
    assert all(row["accuracy"]["viterbi"] <= row["accuracy"]["optimum"] for row in report["processes"].values())
    assert report["data"]["fingerprints"]["mess3"] == benchmark_processes()["mess3"].fingerprint()
    assert (tmp_path / "benchmark.png").stat().st_size > 10_000
    [entry] = parse_eval_result_entries(
        yaml.safe_load((tmp_path / ".eval_results" / "hmm-benchmark.yaml").read_text(encoding="utf-8"))
    )
    assert (entry.dataset_id, entry.task_id, entry.value) == ("me/hmm-benchmark", "ids", 0.0)
    assert "nats per symbol above the optimal loss" in entry.notes
    assert entry.notes.endswith("256 sequences of each process")


@pytest.mark.launch
def test_a_part_of_the_benchmark_is_scored_without_a_result_for_the_hub(exact, tmp_path, capsys):
    model = tmp_path / "model"
    benchmark_processes()["even"].save_pretrained(model)
    few = ["--process", "even", "--num_sequences", "4", "--dataset_id", "me/hmm-benchmark"]
    assert main(["benchmark", str(model), str(exact), *few, "--output_dir", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "benchmark.png").stat().st_size > 10_000
    assert not (model / ".eval_results").exists()
    report = json.loads((tmp_path / "out" / "model" / "report.json").read_text())
    assert (list(report["processes"]), report["num_sequences"]) == (["even"], 4)
    last = capsys.readouterr().out.splitlines()[-9:-2]
    titles = [*BASELINES.values(), "Viterbi, knows the process", "Bayes-optimal"]
    assert [line.split("  ")[0] for line in last] == titles


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a MODEL to score, or --write_data FOLDER"),
        (["{exact}", "--track", "text"], "has no tokenizer to read text with; choose --track ids"),
        (["{exact}", "--push"], "is a folder; leave out --push and send the folder with `hmm-datasets push`"),
        (["{exact}", "--dataset_id", "benchmark"], "dataset_id is 'benchmark'; expected USER/NAME"),
        (["{exact}", "{exact}", "--output_dir", "x"], "--output_dir: two models are named exact"),
        (["{exact}", "--symbols", "emoji"], "argument --symbols: invalid choice: 'emoji'"),
        (["me/model", "--push", "--process", "even"], "--push: leave out --process, --num_sequences"),
        (["me/model", "--push"], "name the benchmark's repository with --data"),
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
        BenchmarkSettings(models=["x"], track="words")
