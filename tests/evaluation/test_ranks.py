"""Results do not depend on the number of processes."""

import json
from pathlib import Path

import numpy as np
import pytest

from hmm_datasets.data.sequences import HMMSequences
from hmm_datasets.evaluation.beliefs import probe_beliefs
from hmm_datasets.evaluation.optimum import measure_optimum
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.causal_lm import HMMForCausalLM
from hmm_datasets.hmm.families import PermutedSymbols


def measurements(accelerator) -> dict:
    """On three processes the last batches have 4 rows, and 1 row, for which two ranks run only padding."""
    hmm, family = processes.mess3(0.15, 0.6), PermutedSymbols(processes.random(2, 3, alpha=0.3, seed=1))
    model = HMMForCausalLM.from_hmm(processes.mess3(0.1, 0.8), 3)
    rows = HMMSequences(hmm, 10, num_sequences=13)
    drawn = HMMSequences(family, 10, seed=2, num_sequences=10)
    symbols = hmm.sample(13, 10)
    arrays = np.log(hmm.next_token_probs(symbols)), hmm.beliefs(symbols)
    return {
        "optimum": measure_optimum(model, hmm, rows, accelerator, batch_size=3),
        "family": measure_optimum(model, family, drawn, accelerator, batch_size=3),
        "beliefs": probe_beliefs(model, hmm, rows, accelerator, batch_size=2),
        "array": measure_optimum(arrays[0], hmm, rows, accelerator, batch_size=3),
        "activations": probe_beliefs(arrays[1], hmm, rows, accelerator, batch_size=2),
    }


SCRIPT = """
import json, sys
import torch
sys.path.insert(0, sys.argv[1])
from accelerate import Accelerator
from hmm_datasets.evaluation.rank_batches import share_rows
from hmm_datasets.runtime.program import exit_without_teardown
from test_ranks import measurements

with exit_without_teardown():
    accelerator = Accelerator(cpu=True)
    assert accelerator.num_processes == 3
    for count in range(1, 11):
        labels = torch.arange(2 * count).reshape(count, 2)
        gathered = accelerator.gather(share_rows(labels, accelerator))[:count]
        assert torch.equal(gathered, labels), (count, gathered)
    found = measurements(accelerator)
    if accelerator.is_main_process:
        print(json.dumps(found))
    else:
        assert found == dict.fromkeys(found, {})
    accelerator.wait_for_everyone()
    accelerator.end_training()
"""


def test_three_processes_measure_what_one_does(launch, tmp_path):
    """With three processes or more, padding could get between the rows of two ranks."""
    from accelerate import Accelerator

    script = tmp_path / "measure_on_three.py"
    script.write_text(SCRIPT)
    done = launch("torch.distributed.run", "--standalone", "--nproc_per_node=3", script, Path(__file__).parent)
    assert done.returncode == 0, done.stderr
    told = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert_close(told, measurements(Accelerator(cpu=True)))


def assert_close(found, expected, at: str = "") -> None:
    """Check that nested results are equal, numbers up to rounding."""
    if isinstance(expected, dict):
        assert list(found) == list(expected), at
        for name, value in expected.items():
            assert_close(found[name], value, f"{at}/{name}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), at
        for index, value in enumerate(expected):
            assert_close(found[index], value, f"{at}/{index}")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-12), at
    else:
        assert found == expected, at
