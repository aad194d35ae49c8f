import numpy as np
import pytest
from scipy import stats

from hmm_datasets import InputError, load_source
from hmm_datasets.hmm.families import RandomAutomata

REGBENCH = RandomAutomata((4, 12), 18, alphabet=(4, 18), stop=0.04, group=2)
PLAIN = RandomAutomata(3, 4, edges=(1, 2))


def test_automata_have_the_shape_asked_for():
    sizes, degrees, letters = set(), set(), set()
    for index in range(0, 200, 2):
        hmm = REGBENCH.hmm_at(seed=1, index=index)
        states = hmm.num_states - 1
        edges = hmm.edges[:-1, 1:, 1:]
        sizes.add(states)
        degrees |= set((edges > 0).sum(axis=(0, 2)).tolist())
        letters |= set(np.flatnonzero(edges.sum(axis=(1, 2))).tolist())
        assert (edges.max(axis=0)[np.arange(states), np.arange(states)] == 0).all(), "no state leads to itself"
        assert ((edges > 0).sum(axis=0) <= 1).all(), "edges of a state lead to different states"
        assert np.allclose(hmm.edges[-1, 1:, 0], 0.04, rtol=1e-12)
        assert np.allclose(hmm.edges[:-1, 0, 1:], hmm.edges[:-1, 1, 1:] / 0.96, rtol=1e-12)
        assert hmm.is_unifilar()
        assert hmm.start[0] == 1
    assert sizes == set(range(4, 13))
    assert degrees == {1, 2, 3}
    assert letters == set(range(18))


@pytest.mark.thorough
def test_edges_are_drawn_uniformly():
    """Chi-square tests of the number of edges, of symbols and of targets of state 0, each with p above 1e-4."""
    counts = {"edges": np.zeros(2), "symbols": np.zeros(4), "targets": np.zeros(2)}
    for index in range(3000):
        edges = PLAIN.hmm_at(seed=2, index=index).edges[:, 0] > 0
        counts["edges"][edges.sum() - 1] += 1
        counts["symbols"] += edges.any(axis=1)
        if edges.sum() == 1:
            counts["targets"] += edges[:, 1:].any(axis=0)
    for observed in counts.values():
        assert stats.chisquare(observed).pvalue > 1e-4


def test_tokens_are_drawn_from_the_automaton():
    """Chi-square test of pairs of neighbouring tokens given the automaton, with p above 1e-4."""
    family = RandomAutomata(4, 5, edges=(1, 3), group=1 << 20)
    tokens = family.sample(4000, 20, seed=3)
    hmm = family.hmm_at(3, 0)
    observed, expected = np.zeros((5, 5)), np.zeros((5, 5))
    np.add.at(observed, (tokens[:, 10], tokens[:, 11]), 1)
    state = hmm.start
    for _ in range(10):
        state = state @ hmm.transition
    expected = np.einsum("i,xij,yjk->xy", state, hmm.edges, hmm.edges) * len(tokens)
    possible = expected > 0
    assert (observed[~possible] == 0).all()
    assert stats.chisquare(observed[possible], expected[possible]).pvalue > 1e-4


def test_golden_sequences():
    assert REGBENCH.sample(3, 10, seed=7, first=5).tolist() == [
        [15, 17, 5, 17, 17, 1, 17, 18, 7, 1],
        [16, 8, 16, 8, 16, 8, 16, 8, 16, 8],
        [16, 8, 16, 8, 16, 8, 16, 8, 16, 8],
    ]


def test_a_row_depends_on_seed_and_index_alone():
    rows = REGBENCH.sample(9, 40, seed=11, first=3)
    for j in range(9):
        assert np.array_equal(REGBENCH.sample(1, 40, seed=11, first=3 + j)[0], rows[j])
    assert np.array_equal(REGBENCH.sample(3, 40, seed=11, first=3, step=4), rows[::4])
    assert np.array_equal(REGBENCH.sample(9, 40, seed=11, first=3, num_threads=3), rows)
    assert np.array_equal(REGBENCH.sample(9, 11, seed=11, first=3), rows[:, :11])


def test_the_oracle_knows_the_automaton_and_nobody_else_has_a_law():
    tokens = REGBENCH.sample(6, 60, seed=4, first=2)
    probs = REGBENCH.oracle_next_token_probs(tokens, seed=4, first=2)
    assert np.abs(probs.sum(axis=-1) - 1).max() < 1e-12
    for row in range(6):
        found = REGBENCH.hmm_at(4, 2 + row).next_token_probs(tokens[row : row + 1])[0]
        assert np.abs(probs[row] - found).max() < 1e-14
    assert not REGBENCH.has_exact_distribution
    with pytest.raises(InputError, match="oracle_next_token_probs gives a lower bound"):
        REGBENCH.next_token_probs(tokens)


def test_a_saved_family_comes_back_with_the_same_stream(tmp_path):
    for number, family in enumerate((REGBENCH, PLAIN)):
        family.save_pretrained(tmp_path / str(number))
        loaded = load_source(tmp_path / str(number))
        assert loaded == family
        assert loaded.fingerprint() == family.fingerprint()
        assert np.array_equal(loaded.sample(5, 20, seed=1), family.sample(5, 20, seed=1))
    assert PLAIN.num_symbols == 4
    assert REGBENCH.sample_with_states(3, 9)[1].max() < REGBENCH.max_states


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_states": 3, "edges": 3}, "edges is 3; expected at most 2"),
        ({"num_states": (5, 4)}, r"num_states is \(5, 4\); expected a minimum, and then a maximum"),
        ({"alphabet": 9}, "alphabet is 9; expected numbers in 1 .. 6"),
        ({"num_letters": 0}, "num_letters is 0"),
        ({"num_states": 4097}, "num_states is 4097; expected numbers in 1 .. 4,?096"),
        ({"num_letters": 5000, "edges": (1, 4097)}, r"edges is \(1, 4097\); expected numbers in 1 .. 4,?096"),
        ({"stop": 0.0}, "stop is 0.0; expected a probability above 0"),
        ({"group": 0}, "group is 0"),
    ],
)
def test_impossible_automata_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        RandomAutomata(**{"num_states": 5, "num_letters": 6} | arguments)
