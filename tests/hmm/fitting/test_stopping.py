"""A fit that is asked to stop saves what it has, on every rank at the same batch, and goes on as if undisturbed."""

import os
import signal
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
import torch

from hmm_datasets.errors import InputError
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.fitting.baum_welch import Sequences, Workers, even_batches, maximize, sum_counts
from hmm_datasets.hmm.fitting.fit import fit_hmm
from hmm_datasets.hmm.fitting.initial import random_guess
from hmm_datasets.hmm.fitting.settings import FitSettings
from hmm_datasets.runtime.stop_requests import STOP, Stopped, StopRequests

TOKENS = processes.random(3, 4, alpha=0.4, seed=7).sample(60, 20, seed=1).astype(int)
SHORT = FitSettings(num_states=3, max_epochs=5, tolerance=0, seed=5, batch_size=7, save_every=100)
WAYS = {
    "full batch": SHORT,
    "stochastic": replace(SHORT, update_every=2),
    "replaced": replace(SHORT, update_every=2, update_rule="replace"),
}


def fit(settings, **arguments):
    return fit_hmm(TOKENS, settings, show_progress=False, **arguments)


class AfterLooks(StopRequests):
    """Asks to stop the `count`-th time that it is asked."""

    def __init__(self, folder, count):
        super().__init__(folder)
        self.count = count

    def look(self, **given):
        self.count -= 1
        if self.count == 0:
            self._wanted, self.reason = STOP, "test"
        return super().look(**given)


@pytest.mark.thorough
@pytest.mark.parametrize("settings", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("looks", [2, 30])
def test_a_stopped_fit_goes_on_to_the_last_bit(settings, looks, tmp_path):
    undisturbed = fit(settings, test_tokens=TOKENS[:9])
    with pytest.raises(Stopped, match="test"):
        fit(settings, test_tokens=TOKENS[:9], checkpoint_dir=tmp_path, requests=AfterLooks(tmp_path, looks))
    saved = [path.name for path in tmp_path.glob("epoch-*")]
    assert saved == ["epoch-0" if looks == 2 else "epoch-2"]
    found = fit(settings, test_tokens=TOKENS[:9], checkpoint_dir=tmp_path)
    assert found.hmm == undisturbed.hmm
    assert found.test_log_likelihood == undisturbed.test_log_likelihood
    assert [row["epoch"] for row in found.history] == list(range(5))
    assert [row["updates"] for row in found.history] == [row["updates"] for row in undisturbed.history]


def test_signals_files_and_the_time_limit_are_requests(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    with StopRequests(tmp_path) as requests:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Stopped, match="SIGTERM"):
            fit(SHORT, checkpoint_dir=tmp_path / "a", requests=requests)
    assert signal.getsignal(signal.SIGTERM) == before
    (tmp_path / "stop").touch()
    with StopRequests(tmp_path) as requests, pytest.raises(Stopped, match=r"file .*stop"):
        fit(SHORT, checkpoint_dir=tmp_path / "b", requests=requests)
    assert not (tmp_path / "stop").exists()
    with StopRequests(tmp_path, timedelta(seconds=30)) as requests, pytest.raises(Stopped, match="time limit is near"):
        fit(SHORT, requests=requests)
    with StopRequests(tmp_path, timedelta(hours=1)) as requests:
        assert fit(SHORT, checkpoint_dir=tmp_path / "a", requests=requests).hmm == fit(SHORT).hmm


def test_replaced_tables_are_those_of_the_last_batches_alone():
    settings = replace(WAYS["replaced"], max_epochs=1)
    guess = random_guess(3, 4, seed=2)
    data = Sequences(torch.from_numpy(TOKENS))
    order = np.random.default_rng([settings.seed, 0]).permutation(len(TOKENS))
    batches = even_batches(order, settings.batch_size)
    expected = guess
    with Workers("cpu") as workers:
        for part in np.array_split(np.arange(len(batches)), -(-len(batches) // 2)):
            chosen = [batches[number] for number in part]
            counts = sum_counts(expected, data, chosen, workers, torch.float32)
            expected = maximize(counts, expected, settings.pseudocounts)
    assert fit(settings, initial=guess).hmm == expected


def test_replacing_without_updates_within_an_epoch_is_refused():
    with pytest.raises(InputError, match="update_rule is replace, but has no effect without update_every"):
        FitSettings(num_states=3, update_rule="replace")


def test_a_file_named_stop_is_seen_before_the_next_batch(tmp_path):
    with StopRequests(tmp_path) as requests, Workers("cpu", requests) as workers:
        assert not workers._asked_to_stop().item()
        (tmp_path / "stop").touch()
        requests._looked = float("-inf")  # as if the last look had been a while ago
        assert workers._asked_to_stop().item()
