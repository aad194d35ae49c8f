"""The task of inspect-ai gives the scores of `hmm-datasets benchmark`, and inspect-ai accepts `eval.yaml`."""

import pytest
import torch
import yaml

pytest.importorskip("inspect_ai", reason="inspect-ai is not installed")


@pytest.fixture(scope="module")
def text_model(tmp_path_factory):
    """A small Llama with random weights and a byte-level BPE tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from hmm_datasets.text.tokenizers.bpe import train_bpe

    folder = tmp_path_factory.mktemp("text-model")
    tokenizer = train_bpe(["A B C D E F G H I J K L M N O P " * 9] * 9, 279, show_progress=False)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=len(tokenizer), bos_token_id=tokenizer.bos_token_id, **sizes)
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def evaluated(model: str, folder, **arguments) -> dict[str, float]:
    """The metrics of a run of the task."""
    from inspect_ai import eval as run

    from hmm_datasets.evaluation.benchmark.inspect_task import hmm_benchmark

    [log] = run(hmm_benchmark(**arguments), model=model, log_dir=str(folder), display="none")
    assert log.status == "success", log.error
    return {name: found.value for score in log.results.scores for name, found in score.metrics.items()}


def benchmarked(model, folder, *flags: str) -> dict:
    from hmm_datasets.evaluation.benchmark import BenchmarkSettings
    from hmm_datasets.evaluation.benchmark.report import run_benchmark

    settings = BenchmarkSettings(models=[str(model)], process=list(flags), num_sequences=6, output_dir=str(folder))
    [report] = run_benchmark(settings)
    return report


def test_the_scores_of_text_are_those_of_the_command(text_model, tmp_path):
    names = ["even", "random_50"]
    found = evaluated(f"hf/{text_model}", tmp_path / "logs", process=names, num_sequences=6)
    report = benchmarked(text_model, tmp_path, *names)
    assert report["track"] == "text"
    assert found["excess"] == pytest.approx(report["mean"]["excess"], abs=1e-4)
    assert found["standard_error"] == pytest.approx(report["mean"]["standard_error"], abs=1e-4)
    for name in names:
        assert found[name] == pytest.approx(report["processes"][name]["excess"], abs=1e-4)


def test_the_exact_hmm_scores_zero_as_a_model_of_symbols(tmp_path):
    from hmm_datasets.evaluation.benchmark.processes import benchmark_processes

    benchmark_processes()["mess3"].save_pretrained(tmp_path / "mess3")
    found = evaluated(f"symbols/{tmp_path / 'mess3'}", tmp_path / "logs", process="mess3", num_sequences=6)
    assert abs(found["excess"]) < 1e-9


def test_inspect_reads_the_tasks_of_eval_yaml():
    from inspect_ai._eval.task.hf import HFTask

    from hmm_datasets.evaluation.benchmark.repository import eval_yaml

    assert [HFTask.model_validate(task).id for task in yaml.safe_load(eval_yaml())["tasks"]] == ["ids", "text"]
