"""The experiment on four algorithmic phases, from its command to its report."""

import pytest
from experiments import load

from hmm_datasets.files import read_json

plot = load("four_phases", "plot")

ROWS = [
    {"step": step, "nearest": name, "mixture": {"bigram_retrieval": 0.1}, "new": {"bigram_inference": 0.2}}
    for step, name in ((0, "bigram_retrieval"), (1, "unigram_inference"), (2, "bigram_inference"))
]


def test_a_phase_begins_where_another_algorithm_is_nearest():
    assert plot.phases(ROWS) == [(1, "unigram_inference"), (2, "bigram_inference")]
    assert plot.phases(ROWS[:1]) == []


def test_findings_give_the_order_of_the_phases():
    found = plot.phase_findings({4: {"rows": ROWS}})
    assert [one.measured for one in found] == [0.1, 0.2]
    assert found[0].difference == "nearest: unigram inference from step 1, bigram inference from step 2"


@pytest.mark.thorough
def test_one_number_of_chains_and_one_step_can_be_drawn(tmp_path):
    plot.plot_four_phases({4: {"rows": ROWS[:2]}}, tmp_path / "one.png")
    assert (tmp_path / "one.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.thorough
def test_the_experiment_runs_to_its_report(program, succeeded, tmp_path):
    small = ("--steps", 2, "--batch_size", 4, "--num_sequences", 8)
    command = (
        "-m",
        "hmm_datasets.cli",
        "experiment",
        "four-phases",
        "--config",
        "four_phases/small.yaml",
        *small,
        "--chains",
        2,
        8,
    )
    said = succeeded(program.run(*command, "--length", 12, "--output_dir", tmp_path)).stdout
    result = read_json(tmp_path / "result.json")
    assert set(result["models"]) == {"2", "8"}
    assert result["tokens"] == 2 * 2 * 4 * 13
    assert (tmp_path / "four_phases.png").read_bytes()[:4] == b"\x89PNG"
    assert "8 chains: KL(bigram inference || model)" in said
