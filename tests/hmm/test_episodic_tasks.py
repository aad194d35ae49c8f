"""Tasks against the enumeration of all their episodes, and their closed forms."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
from scipy import stats

from hmm_datasets import InputError, load_source
from hmm_datasets.hmm.families.episodic_tasks import AssociativeRecall, Bijection, Copying
from hmm_datasets.hmm.kernels.episodic_tasks import below


def bijection_episodes(values: int, pairs: int) -> Counter:
    return Counter(
        tuple(token for x in inputs for token in (x, values + outputs[x]))
        for inputs in itertools.permutations(range(values), pairs)
        for outputs in itertools.permutations(range(values))
    )


def copying_episodes(letters: int, size: int) -> Counter:
    return Counter((*word, letters, *word) for word in itertools.product(range(letters), repeat=size))


def recall_episodes(keys: int, values: int, pairs: int, queries: int) -> Counter:
    return Counter(
        tuple(
            token
            for pair in [*zip(chosen, found, strict=True), *((chosen[j], found[j]) for j in order)]
            for token in (pair[0], keys + pair[1])
        )
        for chosen in itertools.permutations(range(keys), pairs)
        for found in itertools.product(range(values), repeat=pairs)
        for order in itertools.permutations(range(pairs), queries)
    )


TASKS = {
    "bijection": (Bijection(3), bijection_episodes(3, 3)),
    "some pairs": (Bijection(4, 2), bijection_episodes(4, 2)),
    "copying": (Copying(3, 2), copying_episodes(3, 2)),
    "recall": (AssociativeRecall(3, 2, 2), recall_episodes(3, 2, 2, 2)),
    "one query": (AssociativeRecall(3, 2, 3, 1), recall_episodes(3, 2, 3, 1)),
}


def law(episodes: Counter, num_symbols: int, row: tuple[int, ...]) -> np.ndarray:
    """`P(x | row)` by counting the episodes that continue what the row has of its last one."""
    size = len(next(iter(episodes)))
    begun = row[len(row) - len(row) % size :]
    counts = np.zeros(num_symbols)
    whole = [row[i : i + size] for i in range(0, len(row) - len(row) % size, size)]
    if all(episodes[episode] for episode in whole):
        for episode, count in episodes.items():
            if episode[: len(begun)] == begun:
                counts[episode[len(begun)]] += count
    return counts / max(counts.sum(), 1)


@pytest.mark.parametrize("name", TASKS)
def test_the_law_is_that_of_all_episodes(name):
    task, episodes = TASKS[name]
    rows = task.sample(40, 2 * task.episode_length + 1, seed=3)
    wrong = np.random.default_rng(1).integers(0, task.num_symbols, rows.shape)
    wrong[: len(wrong) // 2, : task.episode_length - 2] = rows[: len(rows) // 2, : task.episode_length - 2]
    for row, found in zip(
        [*rows, *wrong], task.next_token_probs(np.concatenate([rows.astype(int), wrong])), strict=True
    ):
        for t in range(len(row) + 1):
            assert np.abs(found[t] - law(episodes, task.num_symbols, tuple(row[:t].tolist()))).max() < 1e-15


@pytest.mark.parametrize("name", TASKS)
def test_the_optimal_loss_is_the_entropy_of_all_episodes(name):
    task, episodes = TASKS[name]
    size, total = task.episode_length, sum(episodes.values())
    entropies = [0.0]
    for t in range(1, size + 1):
        counts: Counter = Counter()
        for episode, count in episodes.items():
            counts[episode[:t]] += count
        entropies.append(-sum(count / total * math.log(count / total) for count in counts.values()))
    loss = task.optimal_loss(2 * size + 1)
    assert loss.nats[:size] == pytest.approx(np.diff(entropies), abs=1e-12)
    assert np.array_equal(loss.nats[size : 2 * size], loss.nats[:size])
    assert (loss.standard_error == 0).all()
    rows = task.sample(50, 2 * size + 1, seed=2)
    expected = np.full(50, -loss.nats.sum())
    assert task.log_likelihood(rows) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", TASKS)
def test_episodes_are_drawn_with_their_probabilities(name):
    """Chi-square tests of the first and the second episode of 20,000 rows, each with p above 1e-4."""
    task, episodes = TASKS[name]
    rows = task.sample(20000, 2 * task.episode_length, seed=5).reshape(20000, 2, -1)
    expected = np.array(list(episodes.values())) / sum(episodes.values())
    for which in range(2):
        counts = Counter(map(tuple, rows[:, which].tolist()))
        assert set(counts) <= set(episodes)
        observed = [counts[episode] for episode in episodes]
        assert stats.chisquare(observed, expected * len(rows)).pvalue > 1e-4


def test_numbers_below_a_bound_are_uniform_where_many_words_are_drawn_again():
    """A quarter of the words is refused for a bound of 3 * 2^30; chi-square test with p above 1e-4."""
    found = [below(3 << 30, np.uint64(0), choice, np.uint64(1)) for choice in range(9000)]
    assert stats.chisquare(np.histogram(found, bins=9, range=(0, 3 << 30))[0]).pvalue > 1e-4
    assert found[:3] == GOLDEN_NUMBERS


def test_the_two_episodes_of_a_row_are_independent():
    """Chi-square test of pairs of first tokens of a row, and of neighbouring rows, with p above 1e-4."""
    rows = Bijection(5).sample(20000, 20, seed=9)[:, [1, 11]] - 5
    for pairs in (rows, np.stack([rows[:-1, 0], rows[1:, 0]], axis=1)):
        table = np.zeros((5, 5))
        np.add.at(table, tuple(pairs.T.astype(int)), 1)
        assert stats.chi2_contingency(table).pvalue > 1e-4


GOLDEN_NUMBERS = [3193118105, 2571610489, 2023689185]
GOLDEN = {
    "bijection": [[1, 5, 0, 3, 2, 4, 2, 5, 1, 3], [0, 5, 1, 3, 2, 4, 2, 5, 1, 4]],
    "some pairs": [[2, 7, 1, 4, 0, 6, 3, 7, 0, 6], [0, 7, 1, 4, 1, 5, 3, 7, 1, 5]],
    "copying": [[1, 2, 3, 1, 2, 1, 2, 3, 1, 2], [0, 2, 3, 0, 2, 1, 2, 3, 1, 2]],
    "recall": [[1, 4, 0, 4, 1, 4, 0, 4, 0, 4], [0, 4, 1, 4, 0, 4, 1, 4, 0, 3]],
    "one query": [[1, 4, 0, 4, 2, 4, 2, 4, 0, 4], [0, 4, 1, 4, 2, 3, 2, 3, 0, 3]],
}


@pytest.mark.parametrize("name", TASKS)
def test_golden_sequences(name):
    assert TASKS[name][0].sample(2, 10, seed=7, first=2**33).tolist() == GOLDEN[name]


@pytest.mark.parametrize("name", TASKS)
def test_a_row_depends_on_seed_and_index_alone(name):
    task, _ = TASKS[name]
    rows = task.sample(9, 30, seed=11, first=3)
    for j in range(9):
        assert np.array_equal(task.sample(1, 30, seed=11, first=3 + j)[0], rows[j])
    assert np.array_equal(task.sample(3, 30, seed=11, first=3, step=4), rows[::4])
    assert np.array_equal(task.sample(9, 30, seed=11, first=3, num_threads=3), rows)
    assert np.array_equal(task.sample(9, 7, seed=11, first=3), rows[:, :7])
    assert not np.array_equal(task.sample(9, 30, seed=12, first=3), rows)


@pytest.mark.parametrize("name", TASKS)
def test_a_saved_task_comes_back_with_the_same_stream(name, tmp_path):
    task, _ = TASKS[name]
    task.save_pretrained(tmp_path / "task")
    loaded = load_source(tmp_path / "task")
    assert (type(loaded), loaded.settings()) == (type(task), task.settings())
    assert loaded.fingerprint() == task.fingerprint()
    assert np.array_equal(loaded.sample(4, 20, seed=3), task.sample(4, 20, seed=3))
    assert len({other.fingerprint() for other, _ in TASKS.values()}) == len(TASKS)


def test_scored_positions_are_those_that_the_episode_tells_of():
    assert Bijection(3, 2).scored(9).tolist() == [False, True, False, True] * 2 + [False]
    assert Copying(3, 2).scored(6).nonzero()[0].tolist() == [3, 4]
    assert AssociativeRecall(8, 8, 3, 2).scored(10).nonzero()[0].tolist() == [7, 9]
    loss = AssociativeRecall(8, 8, 3, 2).optimal_loss(20)
    assert (loss.nats[AssociativeRecall(8, 8, 3, 2).scored(20)] == 0).all()


def test_the_loss_of_bijections_is_that_of_the_paper():
    assert Bijection(20).optimal_loss(40).nats[1::2] == pytest.approx(np.log(20 - np.arange(20)), abs=1e-15)


def test_tensors_give_tensors():
    task = Copying(3, 2)
    tokens = task.sample(4, 8, seed=1).astype(np.int64)
    found = task.next_token_probs(torch.from_numpy(tokens))
    assert isinstance(found, torch.Tensor)
    assert np.array_equal(found.numpy(), task.next_token_probs(tokens))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Bijection(0), "num_values is 0; expected an integer in"),
        (lambda: Bijection(3, 4), "num_pairs is 4; expected at most num_values, 3"),
        (lambda: Copying(3, 0), "string_length is 0"),
        (lambda: AssociativeRecall(3, 3, 4), "num_queries is 4, num_pairs 4, num_keys 3; expected no more"),
        (lambda: AssociativeRecall(3, 3, 2, 3), "num_queries is 3"),
        (lambda: Copying(3, 2).next_token_probs([[4]]), r"tokens\[0, 0\] is 4"),
        (lambda: Copying(3, 2).entropy_rate(), "not stationary"),
    ],
)
def test_impossible_tasks_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()
