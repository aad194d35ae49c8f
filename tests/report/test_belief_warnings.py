"""What `describe` warns of before an experiment on beliefs."""

import itertools

import brute_force
import numpy as np
import pytest

from hmm_datasets import HMM, processes
from hmm_datasets.cli import main
from hmm_datasets.hmm.analysis.stationary import entropy
from hmm_datasets.report import belief_warnings
from hmm_datasets.report.belief_warnings import belief_warnings as warnings_of

MESS3 = processes.mess3(0.15, 0.6)


@pytest.mark.outside(
    "https://github.com/jsboige/CoursIA/issues/16225",
    "measure the belief geometry of a Mess3 whose symbols, as it turned out, are its states",
    "describe warns that a symbol alone reveals the hidden state, and what to change",
)
def test_a_mess3_whose_symbols_are_its_states_is_warned_of(tmp_path, capsys):
    visible = HMM(transition=MESS3.transition, emission=np.eye(3))
    visible.save_pretrained(tmp_path)
    assert main(["describe", str(tmp_path), "--length", "4", "--num_sequences", "8"]) == 0
    said = capsys.readouterr().out
    assert "beliefs: a symbol alone reveals its hidden state (of whose entropy it leaves 0.0%)" in said
    # Gaussians four standard deviations apart, cut in the middle between the states, as one of the two published ones.
    blurred = HMM(
        transition=MESS3.transition, emission=[[0.977, 0.023, 0], [0.0115, 0.977, 0.0115], [0, 0.023, 0.977]]
    )
    assert not any("a symbol alone" in warning for warning in warnings_of(blurred)), "its symbols leave 11%"
    assert warnings_of(MESS3) == []
    assert warnings_of(processes.random(40, 60, seed=1)) == []


@pytest.mark.outside(
    "https://github.com/jsboige/CoursIA/pull/16675",
    "an RRXOR with the 36 mixed states of the literature, not the XOR of independent bits",
    "describe prints that rrxor has 36 beliefs, and that it never mixes",
)
def test_a_chain_that_does_not_mix_and_few_beliefs_are_warned_of():
    periodic, revealed, few = warnings_of(processes.rrxor())
    assert "the chain is periodic and never mixes" in periodic
    assert "the past reveals the hidden state (after 32 tokens 0.0% of its entropy are left)" in revealed
    assert "there are only 36 beliefs that differ by 1e-10, which" in few
    parts = np.kron(np.eye(2), [[0.5, 0.5], [0.2, 0.8]])
    reducible = HMM(start=[0.3, 0.2, 0.5, 0], transition=parts, emission=[[0.9, 0.1], [0.4, 0.6]] * 2)
    assert "the chain has 2 closed classes" in warnings_of(reducible)[0]
    (single,) = warnings_of(processes.coin())
    assert single.startswith("there is a single belief, which a model may keep as a table")


def test_what_a_symbol_leaves_of_the_entropy_of_its_state_is_that_of_enumerated_paths():
    for seed, hmm in enumerate([processes.random(3, 4, seed=1), processes.weather(), MESS3, processes.rrxor()]):
        stationary = hmm.stationary()
        steady = HMM(**{**hmm.tables(), "start": stationary})
        left = 0.0
        for symbol in range(hmm.num_symbols):
            weight = brute_force.likelihood(steady, [symbol])
            # That of an edge-emitting HMM is the state that the edge enters.
            state = brute_force.state_distribution(steady, [symbol], 0 if hmm.edges is None else 1)
            left += weight * float(entropy(state))
        share = belief_warnings._uncertainty(stationary, belief_warnings._given_symbol(hmm, stationary))
        assert share == pytest.approx(left / float(entropy(stationary)), abs=1e-10), seed


def test_every_warning_is_a_sentence_with_what_to_do():
    hmms = [processes.rrxor(), processes.golden_mean(), processes.coin(), brute_force.LEFT_TO_RIGHT]
    for warning in itertools.chain.from_iterable(map(warnings_of, hmms)):
        assert "; " in warning
        assert "\n" not in warning
