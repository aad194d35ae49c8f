"""The exact next-token distributions of families equal sums over every HMM that the family can draw."""

import itertools
import math

import numpy as np
import pytest
import torch
from brute_force import likelihood, random_edges

from hmm_datasets.errors import InputError
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.families import HMMMixture, PermutedEmissions, PermutedSymbols, RandomChains
from hmm_datasets.hmm.families import permuted as permutation_averages
from hmm_datasets.hmm.model import HMM

STATES = processes.random(3, 4, alpha=0.5, seed=2)
CLEAR = HMM(start=[1, 0, 0, 0], transition=np.roll(np.eye(4), 1, axis=1), emission=np.eye(4))
EDGES = random_edges(2, 3, seed=4, zeros=0.4)


def words(symbols: int, length: int) -> np.ndarray:
    return np.array(list(itertools.product(range(symbols), repeat=length)))


def ratio_of_marginals(hmms, weights, word) -> np.ndarray:
    """The next-token distributions along one word, from the likelihood of every continuation under every HMM."""

    def marginal(tokens) -> float:
        return sum(weight * likelihood(hmm, tokens) for hmm, weight in zip(hmms, weights, strict=True))

    symbols = hmms[0].num_symbols
    rows = []
    for t in range(len(word) + 1):
        past = marginal(word[:t])
        rows.append([marginal([*word[:t], x]) / past if past > 0 else 0.0 for x in range(symbols)])
    return np.array(rows)


def relabelled(hmm: HMM) -> list[HMM]:
    images = []
    for permutation in itertools.permutations(range(hmm.num_symbols)):
        origin = np.argsort(permutation)
        if hmm.edges is not None:
            images.append(HMM(start=hmm.start, edges=hmm.edges[origin]))
        else:
            images.append(HMM(start=hmm.start, transition=hmm.transition, emission=hmm.emission[:, origin]))
    return images


def shuffled(hmm: HMM) -> list[HMM]:
    return [
        HMM(start=hmm.start, transition=hmm.transition, emission=hmm.emission[list(permutation)])
        for permutation in itertools.permutations(range(hmm.num_states))
    ]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("family", "all_of"),
    [
        (PermutedSymbols(STATES), relabelled),
        (PermutedSymbols(EDGES), relabelled),
        (PermutedSymbols(processes.rrxor()), relabelled),
        (PermutedEmissions(STATES), shuffled),
    ],
    ids=["symbols, states", "symbols, edges", "symbols, rrxor", "emissions"],
)
def test_the_distribution_of_a_permuted_hmm_is_the_mean_over_all_permutations(family, all_of):
    hmms = all_of(family.hmm)
    tokens = words(family.num_symbols, 3)[1::7]
    found = family.next_token_probs(tokens)
    for word, distribution in zip(tokens, found, strict=True):
        expected = ratio_of_marginals(hmms, [1 / len(hmms)] * len(hmms), word.tolist())
        np.testing.assert_allclose(distribution, expected, atol=1e-12)


def test_the_clear_chain_gives_itself_away_symbol_by_symbol():
    # CLEAR goes round four states; permuted, each new symbol is any of those left, and then all is known.
    distribution = PermutedEmissions(CLEAR).next_token_probs([[2, 0, 3, 1, 2]])[0]
    expected = [[0.25] * 4, [1 / 3, 1 / 3, 0, 1 / 3], [0, 0.5, 0, 0.5], [0, 1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 0]]
    np.testing.assert_allclose(distribution, expected, atol=1e-15)


def test_tokens_no_permutation_allows_are_followed_by_zeros():
    distribution = PermutedEmissions(CLEAR).next_token_probs([[2, 2, 1]])[0]
    np.testing.assert_allclose(distribution.sum(axis=1), [1, 1, 0, 0], atol=1e-15)


@pytest.mark.parametrize("make", [PermutedSymbols, PermutedEmissions])
def test_rows_taken_in_small_parts_give_the_same_distributions(make, monkeypatch):
    tokens = make(STATES).sample(9, 12, seed=2)
    whole = make(STATES).next_token_probs(tokens)
    monkeypatch.setattr(permutation_averages, "_NUMBERS", 1)
    np.testing.assert_allclose(make(STATES).next_token_probs(tokens), whole, atol=1e-14)


@pytest.mark.parametrize("make", [PermutedSymbols, PermutedEmissions])
def test_long_sequences_keep_their_posterior_weights(make):
    # 400 tokens have a probability of some 1e-200 under the right permutation, and less under the others.
    family = make(processes.random(4, 4, alpha=0.2, seed=6))
    tokens = family.sample(2, 400, seed=1)
    distribution = family.next_token_probs(tokens)
    np.testing.assert_allclose(distribution.sum(-1), 1, atol=1e-9)
    np.testing.assert_allclose(distribution[:, -1], family.oracle_next_token_probs(tokens, seed=1)[:, -1], atol=0.05)


def test_too_many_permutations_are_refused_with_the_bound_to_use_instead():
    base = HMM(transition=np.full((8, 8), 1 / 8), emission=np.eye(8))
    for family, what in ((PermutedSymbols(base), "symbols"), (PermutedEmissions(base), "states")):
        with pytest.raises(InputError, match=f"of 8 {what} has 40320 permutations to sum over") as caught:
            family.next_token_probs([[0, 1]])
        assert "oracle_next_token_probs" in str(caught.value)
    assert PermutedSymbols(processes.random(2, 7, seed=1)).next_token_probs([[0, 1]]).shape == (1, 3, 7)


def test_the_oracle_gives_the_distribution_of_the_hmm_itself():
    for family in (
        PermutedSymbols(EDGES, 2),
        PermutedEmissions(STATES, 3),
        RandomChains((2, 4), zipf=1.0, alphabet=6),
        HMMMixture((STATES, CLEAR), (0.5, 0.5), 2),
    ):
        tokens = family.sample(7, 9, seed=5, first=3, step=2)
        distribution = family.oracle_next_token_probs(tokens, seed=5, first=3, step=2)
        for row in range(7):
            own = family.hmm_at(5, 3 + 2 * row).next_token_probs(tokens[row : row + 1])
            np.testing.assert_array_equal(distribution[row : row + 1], own)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "family",
    [
        PermutedSymbols(STATES),
        PermutedEmissions(processes.random(4, 6, alpha=0.2, seed=3)),
        RandomChains((2, 6), 0.5, alphabet=8),
        HMMMixture((STATES, CLEAR, processes.random(2, 4, seed=5)), (0.2, 0.3, 0.5)),
    ],
    ids=lambda family: type(family).__name__,
)
def test_the_exact_distribution_costs_what_it_promises_and_no_less_than_knowing_the_hmm(family):
    tokens = family.sample(400, 25, seed=11).astype(int)
    distribution, oracle = family.next_token_probs(tokens), family.oracle_next_token_probs(tokens, seed=11)
    np.testing.assert_allclose(distribution.sum(-1), 1, atol=1e-12)
    nats, optimum = (
        -np.log(np.take_along_axis(p[:, :-1], tokens[..., None], axis=2)[..., 0]) for p in (distribution, oracle)
    )
    promised = -(distribution * np.log(np.where(distribution > 0, distribution, 1))).sum(-1)[:, :-1]
    surprise = (nats - promised).mean(axis=1)
    assert abs(surprise.mean()) < 4 * surprise.std() / math.sqrt(len(surprise))
    gap = (nats - optimum).mean(axis=1)
    assert gap.mean() > 4 * gap.std() / math.sqrt(len(gap))


@pytest.mark.thorough
def test_the_distribution_of_chains_of_unknown_size_is_the_ratio_of_dirichlet_integrals_over_all_subsets():
    minimum, maximum, alphabet, alpha = 1, 3, 4, 0.7
    family = RandomChains((minimum, maximum), alpha, alphabet=alphabet)

    def marginal(word) -> float:
        total = 0.0
        for size in range(minimum, maximum + 1):
            subsets = list(itertools.combinations(range(alphabet), size))
            inside = [subset for subset in subsets if set(word) <= set(subset)]
            each = polya([inside[0].index(x) for x in word], size, alpha) if inside else 0.0
            total += each * len(inside) / len(subsets) / (maximum - minimum + 1)
        return total

    for word, distribution in zip(words(alphabet, 4), family.next_token_probs(words(alphabet, 4)), strict=True):
        for t in range(5):
            past = marginal(word[:t].tolist()) if t > 0 else 1.0
            expected = [marginal([*word[:t], x]) / past if past > 0 else 0.0 for x in range(alphabet)]
            np.testing.assert_allclose(distribution[t], expected, atol=1e-12)


def test_chains_without_a_closed_form_say_so_and_name_the_bounds():
    for family, named in (
        (RandomChains(3, zipf=1.0), "zipf"),
        (RandomChains(3, 1.0, doubly_stochastic=True), "doubly_stochastic"),
        (RandomChains(3, 1.0, start="stationary"), "start='stationary'"),
        (RandomChains(3, 1.0, emission_alpha=1.0), "emission_alpha"),
    ):
        with pytest.raises(
            InputError, match=f"chains with {named} have no next-token distribution in closed form"
        ) as caught:
            family.next_token_probs([[0, 1]])
        assert "oracle_next_token_probs" in str(caught.value)
    with pytest.raises(InputError, match=r"tokens\[0, 1\] is 3"):
        RandomChains(3, 1.0).next_token_probs([[0, 3]])


def test_the_next_token_distribution_of_random_chains_multiplies_to_the_dirichlet_integral():
    for size, alpha, length in ((2, 0.5, 6), (3, 1.5, 4)):
        tokens = words(size, length)
        distribution = RandomChains(size, alpha).next_token_probs(tokens)
        assert distribution.shape == (len(tokens), length + 1, size)
        np.testing.assert_allclose(distribution.sum(-1), 1, atol=1e-12)
        product = np.take_along_axis(distribution[:, :-1], tokens[..., None], axis=2)[..., 0].prod(axis=1)
        for row, probability in zip(tokens, product, strict=True):
            assert probability == pytest.approx(polya(row, size, alpha), rel=1e-10)
        assert product.sum() == pytest.approx(1, abs=1e-10)


def polya(row, size: int, alpha: float) -> float:
    if len(row) == 0:
        return 1.0
    counts = np.zeros((size, size))
    np.add.at(counts, (row[:-1], row[1:]), 1)
    total = -math.log(size)
    for line in counts:
        total += math.lgamma(size * alpha) - math.lgamma(size * alpha + line.sum())
        total += sum(math.lgamma(alpha + n) - math.lgamma(alpha) for n in line)
    return math.exp(total)


@pytest.mark.thorough
def test_the_next_token_distribution_of_random_chains_is_that_of_the_chains_drawn():
    family, tokens = RandomChains(2, 0.7), words(2, 4)
    each = np.exp([family.hmm_at(8, index).log_likelihood(tokens) for index in range(2000)])
    distribution = family.next_token_probs(tokens)
    product = np.take_along_axis(distribution[:, :-1], tokens[..., None], axis=2)[..., 0].prod(axis=1)
    error = each.std(axis=0) / math.sqrt(len(each))
    assert (np.abs(each.mean(axis=0) - product) < 4 * error).all()


@pytest.mark.thorough
def test_the_next_token_distribution_of_a_mixture_is_the_ratio_of_its_marginals():
    family = HMMMixture((processes.golden_mean(), processes.even(), processes.zero_one_random()), (0.5, 0.3, 0.2))
    for word, distribution in zip(words(2, 5), family.next_token_probs(words(2, 5)), strict=True):
        np.testing.assert_allclose(
            distribution, ratio_of_marginals(family.hmms, family.weights, word.tolist()), atol=1e-12
        )


def test_tensors_give_tensors():
    for family in (
        PermutedSymbols(STATES),
        PermutedEmissions(STATES),
        RandomChains(3, 0.5),
        HMMMixture((STATES,), (1,)),
    ):
        tokens = torch.tensor([[0, 1, 2]])
        distribution = family.next_token_probs(tokens)
        np.testing.assert_array_equal(distribution.numpy(), family.next_token_probs(tokens.numpy()))
        assert family.next_token_probs(tokens[:, :0]).shape == (1, 1, family.num_symbols)
        assert torch.is_tensor(family.oracle_next_token_probs(tokens))
