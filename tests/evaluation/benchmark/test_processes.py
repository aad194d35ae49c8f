"""The processes of the benchmark are fixed: the same tables, hence the same sequences, on every machine."""

import hashlib

import numpy as np
import pytest

from hmm_datasets.data.sequences import TEST_FIRST
from hmm_datasets.errors import InputError
from hmm_datasets.evaluation.benchmark.held_out import HeldOut, open_benchmark
from hmm_datasets.evaluation.benchmark.processes import (
    KINDS,
    NUM_SYMBOLS,
    benchmark_processes,
    chosen_processes,
    mixture,
)

PROCESSES = benchmark_processes()


def test_the_processes_and_their_held_out_sequences_are_those_of_the_first_version():
    digest = hashlib.sha256()
    for name, hmm in PROCESSES.items():
        digest.update(name.encode() + hmm.fingerprint().encode() + HeldOut(name, hmm).tokens.tobytes())
    assert digest.hexdigest() == "a16e7b66ea4f48a1fdb14ce65df56153ad3f9669199e851d3f313e6dbdab08bd"


def test_there_are_twelve_different_processes_of_at_most_16_symbols():
    assert list(PROCESSES) == list(KINDS)
    assert len({hmm.fingerprint() for hmm in PROCESSES.values()}) == 12
    assert max(hmm.num_symbols for hmm in PROCESSES.values()) == NUM_SYMBOLS == 16


@pytest.mark.parametrize("name", PROCESSES)
def test_probabilities_are_multiples_of_a_power_of_two(name):
    for table in PROCESSES[name].tables().values():
        assert np.array_equal(table * 2**30, np.rint(table * 2**30))


def test_held_out_sequences_are_beyond_those_of_training_and_of_its_evaluations():
    from hmm_datasets.evaluation.benchmark.held_out import FIRST, NUM_SEQUENCES

    assert FIRST >= TEST_FIRST + 2**40
    assert FIRST + NUM_SEQUENCES < 2**64
    assert len({HeldOut(name, hmm).seed for name, hmm in PROCESSES.items()}) == 12


def test_the_mixture_predicts_like_a_process_once_it_has_recognized_it():
    held_out = HeldOut("noisy_cycle", PROCESSES["noisy_cycle"], 4)
    mixed, own = (source.next_token_probs(held_out.tokens)[:, -1] for source in (mixture(), held_out.hmm))
    np.testing.assert_allclose(mixed[:, :7], own, atol=1e-9)
    assert not mixed[:, 7:].any()


def test_an_unknown_process_is_refused_with_the_names_of_the_known():
    with pytest.raises(
        InputError, match=r"process 'mess4' is not in the benchmark; expected some of golden_mean, even"
    ):
        chosen_processes(["mess3", "mess4"])
    with pytest.raises(InputError, match="num_sequences is 257; expected 2 to 256"):
        open_benchmark(num_sequences=257)
