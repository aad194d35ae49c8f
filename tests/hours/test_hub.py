"""The first hour of a user of the Hub: sequences pushed, loaded without this package, and measured."""

import sys

import pytest

pytestmark = pytest.mark.thorough

PUSHES = """
    import sys
    from hmm_datasets import processes
    from hmm_datasets.hub import write_hmm_dataset
    from hmm_datasets.cli import main

    processes.mess3().push_to_hub("tester/hour")
    sizes = {"length": 16, "num_sequences": 200, "num_test_sequences": 50, "show_progress": False}
    write_hmm_dataset(processes.mess3(), sys.argv[1], licence="cc0-1.0", repo_id="tester/hour-rows", **sizes)
    assert main(["push", sys.argv[1], "tester/hour-rows", "--repo_type", "dataset"]) == 0
    print("null")
"""
LOADS = """
    import json
    import sys
    from datasets import load_dataset

    rows = load_dataset("tester/hour-rows")
    assert "hmm_datasets" not in sys.modules
    print(json.dumps({name: split["input_ids"][:] for name, split in rows.items()}))
"""
MEASURES = """
    import json
    import evaluate
    import numpy as np
    from datasets import load_dataset
    from hmm_datasets import load_source
    from hmm_datasets.evaluation.metrics import metric_path

    hmm = load_source("tester/hour")
    tokens = np.array(load_dataset("tester/hour-rows", split="test")["input_ids"])[:, 1:]
    exact = np.log(hmm.next_token_probs(tokens)[:, :-1])
    log_probs = np.take_along_axis(exact, tokens[..., None], -1)[..., 0]
    uniform = np.full_like(log_probs, -np.log(hmm.num_symbols))
    gap = evaluate.load(metric_path("bayes_gap"), keep_in_memory=True)
    names = [gap.compute(predictions=one, references=log_probs) for one in (log_probs, uniform)]
    print(json.dumps([one["bayes_gap"] for one in names]))
"""


def test_a_process_is_pushed_loaded_without_the_package_and_measured(local_hub, tmp_path):
    from hmm_datasets import processes
    from hmm_datasets.data.sequences import TEST_FIRST

    local_hub.child(PUSHES, tmp_path / "home", tmp_path / "mess3")
    loaded = local_hub.child(LOADS, tmp_path / "reader", python=sys.executable)
    for name, first in (("train", 0), ("test", TEST_FIRST)):
        expected = processes.mess3().sample(len(loaded[name]), 16, first=first)
        assert [row[1:] for row in loaded[name]] == expected.tolist()
    optimal, uniform = local_hub.child(MEASURES, tmp_path / "reader")
    assert optimal == pytest.approx(0, abs=1e-12)
    assert uniform == pytest.approx(0.3, abs=0.1)
