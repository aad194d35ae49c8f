"""The data set of the benchmark: the same bytes each time, read by plain `datasets`, compared when it is opened."""

import filecmp
import shutil
from pathlib import Path

import datasets
import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from experiments import load
from huggingface_hub import DatasetCard

from hmm_datasets.errors import InputError
from hmm_datasets.evaluation.benchmark.held_out import open_benchmark, parquet_path
from hmm_datasets.evaluation.benchmark.processes import KINDS, benchmark_processes
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.families import load_source

write_benchmark = load("benchmark_models", "data_set").write_benchmark


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("benchmark") / "data-set"
    write_benchmark(folder)
    return folder


@pytest.mark.thorough
def test_writing_it_again_gives_the_same_bytes(repository, tmp_path):
    write_benchmark(tmp_path / "again")
    files = [path.relative_to(repository) for path in repository.rglob("*") if path.is_file()]
    same, different, missing = filecmp.cmpfiles(repository, tmp_path / "again", files, shallow=False)
    assert (different, missing) == ([], [])
    assert len(same) == len([path for path in (tmp_path / "again").rglob("*") if path.is_file()]) > 60


@pytest.mark.thorough
def test_plain_datasets_loads_one_process_or_all_by_name(repository, tmp_path):
    one = datasets.load_dataset(str(repository), "mess3", split="test", cache_dir=str(tmp_path))
    assert one.column_names == ["process", "input_ids", "text", "log_probs", "entropies", "context", "next"]
    [held_out] = open_benchmark(processes=["mess3"]).processes
    assert one["input_ids"] == held_out.tokens.tolist()
    np.testing.assert_allclose(one["log_probs"], held_out.log_probs, rtol=1e-6)
    row = one[0]
    assert row["text"] == f"{row['context']} {row['next']}" == held_out.texts()[0]
    every = datasets.load_dataset(str(repository), split="test", cache_dir=str(tmp_path))
    assert len(every) == 12 * 256
    assert set(every["process"]) == set(KINDS)


def test_the_entropies_are_the_expected_losses_of_the_optimum(repository):
    rows = pq.read_table(repository / parquet_path("random_50"), columns=["log_probs", "entropies"]).to_pydict()
    losses, entropies = -np.array(rows["log_probs"]), np.array(rows["entropies"])
    difference = (losses - entropies).mean(axis=1)
    assert abs(difference.mean()) < 3 * difference.std() / np.sqrt(len(difference))


def test_the_hmms_and_the_mixture_lie_beside_the_data(repository):
    for name, hmm in benchmark_processes().items():
        assert load_source(repository / "processes" / name) == hmm
    assert load_source(repository / "mixture").num_symbols == 16


def test_eval_yaml_names_a_framework_of_the_hub_and_tasks_with_all_required_fields(repository):
    """Required fields: hub-docs, docs/hub/eval-results.md; frameworks: huggingface.js, packages/tasks/src/eval.ts."""
    found = yaml.safe_load((repository / "eval.yaml").read_text(encoding="utf-8"))
    assert found["evaluation_framework"] == "inspect-ai"
    assert {"name", "description"} < set(found)
    configs = {config["config_name"] for config in DatasetCard.load(repository / "README.md").data.configs}
    for task in found["tasks"]:
        assert {"id", "config", "split", "field_spec", "solvers", "scorers"} <= set(task)
        assert task["config"] in configs


def test_the_card_gives_the_optimum_and_the_baselines_of_every_process(repository):
    card = DatasetCard.load(repository / "README.md")
    assert [config["config_name"] for config in card.data.configs] == ["default", *KINDS]
    for name in KINDS:
        [line] = [line for line in card.text.splitlines() if line.startswith(f"| `{name}` |") and "±" in line]
        assert line.count("|") == 8
    assert "-0.0000" not in card.text


def test_an_opened_data_set_is_compared_with_the_processes(repository, tmp_path):
    assert open_benchmark(str(repository), num_sequences=2).dataset_id is None
    changed = tmp_path / "changed"
    shutil.copytree(repository, changed)
    processes.even(0.4).save_pretrained(changed / "processes" / "even")
    with pytest.raises(InputError, match=r"processes/even: has fingerprint .*; it is another version of the"):
        open_benchmark(str(changed))
    assert open_benchmark(str(changed), processes=["mess3"]).processes
    shutil.rmtree(changed / "processes" / "mess3")
    with pytest.raises(InputError, match="no such folder, so this is not the benchmark's data set"):
        open_benchmark(str(changed), processes=["mess3"])


def test_a_name_that_is_not_on_the_hub_is_refused(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="--data nobody/nothing: neither a folder nor a data set on the Hub"):
        open_benchmark("nobody/nothing")
    assert not Path("nobody").exists()


def test_a_folder_with_something_else_is_not_replaced(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(InputError, match="exists and contains something else"):
        write_benchmark(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
