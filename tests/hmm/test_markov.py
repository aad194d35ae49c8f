import numpy as np
import pytest
from composed_examples import random_rows

from hmm_datasets import MarkovChain, RandomChains
from hmm_datasets.errors import InputError
from hmm_datasets.hmm.structured.markov import random_markov_chain

TABLES = {order: random_rows(*[3] * (order + 1), seed=order) for order in range(4)}


@pytest.mark.parametrize("order", TABLES)
@pytest.mark.parametrize("given", [False, True], ids=["stationary", "given"])
def test_a_chain_agrees_with_its_hmm(order, given):
    start = random_rows(1, 3**order, seed=20).reshape((3,) * order) if given else None
    chain = MarkovChain(TABLES[order], start)
    hmm = chain.to_hmm()
    for length in (0, 1, 2, 9):
        tokens = chain.sample(8, length, seed=2)
        np.testing.assert_allclose(chain.log_likelihood(tokens), hmm.log_likelihood(tokens), atol=1e-10)
        np.testing.assert_allclose(chain.next_token_probs(tokens), hmm.next_token_probs(tokens), atol=1e-10)
        np.testing.assert_allclose(chain.beliefs(tokens), hmm.beliefs(tokens), atol=1e-10)
    assert chain.entropy_rate().value == pytest.approx(hmm.entropy_rate_bounds(order + 3).upper, abs=1e-10)
    np.testing.assert_allclose(chain.optimal_loss(7).nats, hmm.optimal_loss(7).nats, atol=1e-10)


def test_a_start_that_is_stationary_stays():
    chain = MarkovChain(TABLES[2])
    after = (chain.start[..., None] * chain.table).sum(axis=0)
    np.testing.assert_allclose(after, chain.start, atol=1e-14)
    np.testing.assert_allclose(chain.optimal_loss(9).nats[2:], chain.entropy_rate().value, atol=1e-12)


def test_many_contexts_are_stepped_to_the_same_stationary_distribution(monkeypatch):
    dense = MarkovChain(TABLES[3]).start
    monkeypatch.setattr("hmm_datasets.hmm.structured.markov._DENSE_CONTEXTS", 1)
    np.testing.assert_allclose(MarkovChain(TABLES[3]).start, dense, atol=1e-13)
    periodic = np.roll(np.eye(3), 1, axis=1)
    np.testing.assert_allclose(MarkovChain(periodic).start, np.full(3, 1 / 3), atol=1e-13)


def test_random_tables_are_those_of_the_family_of_random_chains():
    chain = random_markov_chain(1, 5, alpha=0.3, seed=4, index=7)
    np.testing.assert_array_equal(chain.table, RandomChains(5, alpha=0.3).hmm_at(4, 7).transition)
    assert random_markov_chain(2, 4, seed=1).table.shape == (4, 4, 4)
    assert not np.array_equal(random_markov_chain(1, 5).table, random_markov_chain(1, 5, index=1).table)


def test_a_chain_of_one_symbol_repeats_it():
    assert random_markov_chain(2, 1, alpha=0.5).entropy_rate().value == 0
    assert not random_markov_chain(2, 1, alpha=0.5).sample(3, 4).any()


def test_zipf_rows_are_one_distribution_in_many_orders():
    chain = MarkovChain(RandomChains(50, zipf=1.2).hmm_at(3, 0).transition)
    expected = np.arange(1, 51) ** -1.2 / (np.arange(1, 51) ** -1.2).sum()
    np.testing.assert_allclose(np.sort(chain.table, axis=1)[:, ::-1], np.tile(expected, (50, 1)), rtol=1e-12)
    assert len(np.unique(chain.table.argmax(axis=1))) > 10
    scaled = MarkovChain(RandomChains(50, zipf=1.0, doubly_stochastic=True).hmm_at(0, 0).transition)
    np.testing.assert_allclose(scaled.table.sum(axis=0), 1, atol=1e-10)
    np.testing.assert_allclose(scaled.start, np.full(50, 1 / 50), atol=1e-10)


def test_constructed_tables_stay_as_they_were_when_written_down():
    found = [
        random_markov_chain(2, 3, alpha=0.7, seed=9).table[1, 2],
        RandomChains(3, zipf=1.0).hmm_at(9, 0).transition[0],
    ]
    assert [[value.hex() for value in row] for row in found] == GOLDEN


GOLDEN = [
    ["0x1.992ce0079c284p-6", "0x1.92fd4f74f5794p-2", "0x1.29b7f14548622p-1"],
    ["0x1.1745d1745d174p-2", "0x1.1745d1745d174p-1", "0x1.745d1745d1746p-3"],
]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: MarkovChain(np.ones((2, 3)) / 3), r"expected \(E,\) \* k \+ \(E,\)"),
        (lambda: MarkovChain(1.0), "has shape"),
        (lambda: MarkovChain([[0.5, 0.6], [0.5, 0.5]]), r"table\[0\] sums to 1.1"),
        (lambda: MarkovChain(np.eye(2), [1, 0, 0]), r"start has shape \(3,\)"),
        (lambda: MarkovChain(np.eye(2), [1, 1]), "start sums to 2"),
        (lambda: random_markov_chain(16, 2), "order is 16"),
        (lambda: random_markov_chain(5, 50), "too many"),
        (lambda: random_markov_chain(1, 5, alpha=0), "alpha is 0"),
        (lambda: MarkovChain(np.eye(2)).next_token_probs([[2]]), "tokens"),
        (lambda: random_markov_chain(4, 9).beliefs([[0]]), "6,561 contexts; expected at most 4,096"),
    ],
)
def test_what_is_no_chain_is_refused(make, words):
    with pytest.raises(InputError, match=words):
        make()
