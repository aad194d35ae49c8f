import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hmm_datasets.errors import InputError
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.dirichlet import _exp, _log, dirichlet_rows
from hmm_datasets.hmm.families import Mixture, PermutedEmissions, PermutedSymbols, RandomChains
from hmm_datasets.hmm.model import HMM
from hmm_datasets.hmm.sampling import philox

BASE = processes.random(3, 4, alpha=0.5, seed=2)
CLEAR = HMM(start=[1, 0, 0, 0], transition=np.roll(np.eye(4), 1, axis=1), emission=np.eye(4))


def families(group: int = 1):
    return [
        PermutedSymbols(BASE, group),
        PermutedSymbols(processes.mess3(), group),
        PermutedEmissions(BASE, group),
        RandomChains(3, 0.5, group),
        Mixture((BASE, CLEAR, processes.random(2, 4, seed=5)), (0.2, 0.3, 0.5), group),
    ]


def words(symbols: int, length: int) -> np.ndarray:
    return np.array(list(itertools.product(range(symbols), repeat=length)))


@given(
    which=st.integers(0, 4),
    group=st.sampled_from([1, 3, 1000]),
    seed=st.integers(0, 2**64 - 1),
    first=st.one_of(st.integers(0, 50), st.integers(2**64 - 6, 2**64 - 1)),
    count=st.integers(1, 8),
)
@settings(max_examples=60, deadline=None)
def test_a_sequence_depends_on_family_seed_and_index_alone(which, group, seed, first, count):
    family = families(group)[which]
    block = family.sample(count, 12, seed=seed, first=first)
    assert block.dtype == np.uint8
    for place in range(count):
        index = (first + place) % 2**64
        alone = family.sample(1, 12, seed=seed, first=index)[0]
        np.testing.assert_array_equal(block[place], alone)
        np.testing.assert_array_equal(block[place, :5], family.sample(1, 5, seed=seed, first=index)[0])


@pytest.mark.parametrize("family", families(3), ids=lambda f: type(f).__name__)
def test_sequences_of_a_group_share_their_hmm_and_others_do_not(family):
    hmms = [family.hmm_at(7, index) for index in range(60)]
    assert all(hmms[i] == hmms[i - i % 3] for i in range(60))
    assert any(hmms[i] != hmms[0] for i in range(3, 60, 3))
    assert len({row.tobytes() for row in family.sample(3, 30, seed=7)}) >= 2


@pytest.mark.parametrize("family", families(), ids=lambda f: type(f).__name__)
def test_seeds_name_different_streams(family):
    assert not np.array_equal(family.sample(20, 20, seed=1), family.sample(20, 20, seed=2))
    assert not np.array_equal(family.sample(20, 20, seed=1), family.sample(20, 20, seed=1 + 2**32))
    assert not np.array_equal(family.sample(20, 20, seed=1), family.sample(20, 20, seed=1, first=2**32))


@pytest.mark.parametrize("family", [*families(2)[2:]], ids=lambda f: type(f).__name__)
def test_sample_gives_what_hmm_at_draws(family):
    tokens = family.sample(9, 25, seed=3, first=4)
    for place, row in enumerate(tokens):
        own = family.hmm_at(3, 4 + place).sample(1, 25, seed=3, first=4 + place)[0]
        np.testing.assert_array_equal(row, own)


@pytest.mark.parametrize("base", [BASE, processes.mess3(), processes.even()])
def test_permuted_symbols_are_the_tokens_of_the_base_renamed(base):
    family = PermutedSymbols(base)
    plain, renamed = base.sample(20, 30, seed=9), family.sample(20, 30, seed=9)
    for index in range(20):
        permutation = family.permutation_at(9, index)
        np.testing.assert_array_equal(renamed[index], permutation[plain[index]])
        # The law of the renamed tokens is that of hmm_at: it gives them what the base gave the plain ones.
        np.testing.assert_allclose(
            family.hmm_at(9, index).log_likelihood(renamed[index : index + 1]),
            base.log_likelihood(plain[index : index + 1]),
            rtol=1e-12,
        )


def test_permuted_emissions_keep_the_chain_and_the_set_of_rows():
    family = PermutedEmissions(BASE)
    for index in range(10):
        hmm = family.hmm_at(0, index)
        np.testing.assert_array_equal(hmm.transition, BASE.transition)
        np.testing.assert_array_equal(hmm.emission, BASE.emission[family.permutation_at(0, index)])
        assert sorted(map(tuple, hmm.emission)) == sorted(map(tuple, BASE.emission))


@pytest.mark.parametrize("make", [PermutedSymbols, PermutedEmissions])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_permutations_are_uniform(make, size):
    family = make(HMM(transition=np.full((size, size), 1 / size), emission=np.eye(size)))
    count = 400 * math.factorial(size)
    drawn = np.array([family.permutation_at(11, index) for index in range(count)])
    assert (np.sort(drawn, axis=1) == np.arange(size)).all()
    _, observed = np.unique(drawn, axis=0, return_counts=True)
    assert len(observed) == math.factorial(size)
    chi_square = ((observed - 400) ** 2 / 400).sum()
    freedom = math.factorial(size) - 1
    assert chi_square < freedom + 4 * math.sqrt(2 * freedom)  # four standard deviations


def test_permutations_do_not_depend_on_the_tokens():
    # Were a block shared, the symbol drawn by the base would tell the permutation.
    family = PermutedSymbols(HMM(transition=[[1.0]], emission=np.full((1, 4), 0.25)))
    count = 4000
    plain = family.hmm.sample(count, 1, seed=3)[:, 0]
    image = np.array([family.permutation_at(3, index)[0] for index in range(count)])
    table = np.bincount(4 * plain.astype(int) + image, minlength=16)
    chi_square = ((table - count / 16) ** 2 / (count / 16)).sum()
    assert chi_square < 37.7  # 99.9th percentile at 15 degrees of freedom


def test_a_permuted_clear_chain_shows_each_symbol_as_often():
    family = PermutedEmissions(CLEAR)
    share = np.bincount(family.sample(4000, 1, seed=1)[:, 0], minlength=4) / 4000
    np.testing.assert_allclose(share, 0.25, atol=4 * math.sqrt(0.25 * 0.75 / 4000))


@pytest.mark.parametrize("alpha", [0.3, 1.0, 2.5])
def test_rows_of_random_chains_have_the_moments_of_a_dirichlet_law(alpha):
    size, count = 3, 2000
    rows = np.concatenate([RandomChains(size, alpha).hmm_at(5, i).transition for i in range(count)])
    variance = (1 / size) * (1 - 1 / size) / (size * alpha + 1)
    error = 4 * math.sqrt(variance / len(rows))
    np.testing.assert_allclose(rows.mean(axis=0), 1 / size, atol=error)
    np.testing.assert_allclose(rows.var(axis=0), variance, rtol=0.08)
    np.testing.assert_allclose(np.cov(rows.T)[0, 1:], -variance / (size - 1), rtol=0.1)
    np.testing.assert_allclose(rows.sum(axis=1), 1, atol=1e-15 * 4)


def test_a_row_of_two_at_alpha_one_is_uniform():
    rows = np.concatenate([RandomChains(2, 1.0).hmm_at(6, i).transition[:, 0] for i in range(2500)])
    observed, _ = np.histogram(rows, bins=10, range=(0, 1))
    assert ((observed - 500) ** 2 / 500).sum() < 27.9  # 99.9th percentile at 9 degrees of freedom


def test_very_small_alpha_gives_rows_that_are_nearly_certain_and_no_nan():
    transition = RandomChains(20, 1e-3).hmm_at(0, 0).transition
    assert np.isfinite(transition).all()
    assert (transition > 0).all()
    assert np.median(transition.max(axis=1)) > 0.999


def test_words_that_are_not_random_end_in_an_error():
    with pytest.raises(RuntimeError, match="not random"):
        dirichlet_rows(1.0, 1, 2, lambda draws, attempt: np.zeros((len(draws), 4), dtype=np.uint32))


def test_logarithm_and_exponential_are_exact_to_a_few_units_in_the_last_place():
    x = np.concatenate([np.random.default_rng(0).random(10_000), 2.0 ** -np.arange(60), [0.7071067811865476, 3.7]])
    reference = np.array([math.log(v) for v in x])
    np.testing.assert_allclose(_log(x), reference, rtol=1e-15, atol=1e-16)
    y = -np.linspace(0, 690, 10_000)
    np.testing.assert_allclose(_exp(y), [math.exp(v) for v in y], rtol=2e-13)
    assert _exp(np.array([-1e9]))[0] > 0


def test_what_is_drawn_never_changes():
    # Fixed when format 1 was; another machine that fails here breaks the promise of purity.
    assert PermutedSymbols(processes.dishonest_casino()).permutation_at(1, 2).tolist() == [0, 2, 3, 5, 4, 1]
    assert PermutedEmissions(CLEAR).permutation_at(2**63, 2**40).tolist() == [2, 1, 0, 3]
    assert RandomChains(5, 0.3).hmm_at(3, 4).fingerprint() == "5b09f4837fad72b170d4aee6d3aae580"
    mixture = Mixture((processes.golden_mean(), processes.rrxor(), processes.even()), (0.2, 0.3, 0.5))
    assert [mixture.component_at(12, index) for index in range(12)] == [2, 2, 2, 0, 1, 2, 2, 2, 1, 2, 2, 2]


def test_permutations_are_those_of_fisher_and_yates_in_unbounded_integers():
    size, seed, index = 9, 2**63 + 5, 2**33 + 7
    counters = [[index & 0xFFFFFFFF, index >> 32, draw, 1] for draw in range(4)]
    blocks = philox(np.array(counters), np.array([[seed & 0xFFFFFFFF, seed >> 32]] * 4)).tolist()
    randoms = [pair[0] << 32 | pair[1] for block in blocks for pair in (block[:2], block[2:])]
    expected = list(range(size))
    for last, random in zip(range(size - 1, 0, -1), randoms, strict=True):
        chosen = random * (last + 1) >> 64
        expected[last], expected[chosen] = expected[chosen], expected[last]
    family = PermutedSymbols(HMM(transition=[[1.0]], emission=np.full((1, size), 1 / size)))
    assert family.permutation_at(seed, index).tolist() == expected


def test_the_next_token_law_of_random_chains_multiplies_to_the_dirichlet_integral():
    for size, alpha, length in ((2, 0.5, 6), (3, 1.5, 4)):
        tokens = words(size, length)
        law = RandomChains(size, alpha).next_token_probs(tokens)
        assert law.shape == (len(tokens), length + 1, size)
        np.testing.assert_allclose(law.sum(-1), 1, atol=1e-12)
        product = np.take_along_axis(law[:, :-1], tokens[..., None], axis=2)[..., 0].prod(axis=1)
        for row, probability in zip(tokens, product, strict=True):
            assert probability == pytest.approx(polya(row, size, alpha), rel=1e-10)
        assert product.sum() == pytest.approx(1, abs=1e-10)


def polya(row: np.ndarray, size: int, alpha: float) -> float:
    counts = np.zeros((size, size))
    np.add.at(counts, (row[:-1], row[1:]), 1)
    total = -math.log(size)
    for line in counts:
        total += math.lgamma(size * alpha) - math.lgamma(size * alpha + line.sum())
        total += sum(math.lgamma(alpha + n) - math.lgamma(alpha) for n in line)
    return math.exp(total)


def test_the_next_token_law_of_random_chains_is_that_of_the_chains_drawn():
    family, tokens = RandomChains(2, 0.7), words(2, 4)
    each = np.exp([family.hmm_at(8, index).log_likelihood(tokens) for index in range(2000)])
    law = family.next_token_probs(tokens)
    product = np.take_along_axis(law[:, :-1], tokens[..., None], axis=2)[..., 0].prod(axis=1)
    error = each.std(axis=0) / math.sqrt(len(each))
    assert (np.abs(each.mean(axis=0) - product) < 4 * error).all()


def test_sampled_chains_score_no_better_than_their_own_law_promises():
    family = RandomChains(4, 0.5)
    tokens = family.sample(300, 60, seed=2).astype(int)
    law = family.next_token_probs(tokens)
    nats = -np.log(np.take_along_axis(law[:, :-1], tokens[..., None], axis=2)[..., 0])
    entropy = -(law[:, :-1] * np.log(law[:, :-1])).sum(-1)
    gap = (nats - entropy).mean(axis=1)
    assert abs(gap.mean()) < 4 * gap.std() / math.sqrt(len(gap))


def test_the_next_token_law_of_a_mixture_is_the_ratio_of_its_marginals():
    family = Mixture((processes.golden_mean(), processes.even(), processes.zero_one_random()), (0.5, 0.3, 0.2))
    law = family.next_token_probs(words(2, 5))
    for row, found in zip(words(2, 5), law, strict=True):
        for t in range(6):
            past = marginal(family, row[:t]) if t > 0 else 1.0
            expected = [marginal(family, [*row[:t], x]) / past if past > 0 else 0.0 for x in range(2)]
            np.testing.assert_allclose(found[t], expected, atol=1e-12)


def marginal(family: Mixture, word) -> float:
    each = [np.exp(hmm.log_likelihood([list(word)]))[0] for hmm in family.hmms]
    return float(np.dot(each, family.weights))


def test_the_components_of_a_mixture_come_by_their_weights():
    family = families()[4]
    observed = np.bincount([family.component_at(1, index) for index in range(4000)], minlength=3)
    expected = 4000 * np.array(family.weights)
    assert ((observed - expected) ** 2 / expected).sum() < 13.8  # 99.9th percentile at 2 degrees of freedom
    assert Mixture((CLEAR, BASE), (1, 0)).component_at(0, 5) == 0
    assert {Mixture((CLEAR, BASE), (0, 1)).component_at(0, i) for i in range(200)} == {1}


def test_tensors_give_tensors():
    for family in families()[3:]:
        tokens = torch.tensor([[0, 1, 2]])
        law = family.next_token_probs(tokens)
        np.testing.assert_array_equal(law.numpy(), family.next_token_probs(tokens.numpy()))
        assert family.next_token_probs(tokens[:, :0]).shape == (1, 1, family.num_symbols)


def test_nothing_can_be_drawn():
    for family in families():
        assert family.sample(0, 5).shape == (0, 5)
        assert family.sample(2, 0).shape == (2, 0)


def test_bad_input_is_told_in_one_line():
    with pytest.raises(InputError, match="group is 0; expected 1 or more"):
        PermutedSymbols(BASE, group=0)
    with pytest.raises(InputError, match="takes a state-emitting HMM"):
        PermutedEmissions(processes.even())
    with pytest.raises(InputError, match="num_states is 0"):
        RandomChains(0, 1.0)
    for alpha in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(InputError, match="alpha is"):
            RandomChains(2, alpha)
    with pytest.raises(InputError, match="0 hmms and 0 weights"):
        Mixture((), ())
    with pytest.raises(InputError, match="1 hmms and 2 weights"):
        Mixture((BASE,), (0.5, 0.5))
    with pytest.raises(InputError, match=r"hmms\[1\] has 2 symbols; expected 4"):
        Mixture((BASE, processes.even()), (0.5, 0.5))
    for weights in ((0.5, 0.6), (1.5, -0.5), (math.nan, 1.0)):
        with pytest.raises(InputError, match="weights sum to"):
            Mixture((BASE, CLEAR), weights)
    for family in families():
        with pytest.raises(InputError, match=r"seed is -1; expected an integer in \[0, 2\*\*64\)"):
            family.sample(1, 2, seed=-1)
        with pytest.raises(InputError, match="first is"):
            family.sample(1, 2, first=2**64)
        with pytest.raises(InputError, match="length is -2"):
            family.sample(1, -2)
        with pytest.raises(InputError, match="num_sequences is -1"):
            family.sample(-1, 2)
    with pytest.raises(InputError, match="first is -1"):
        families()[0].permutation_at(0, -1)
    with pytest.raises(InputError, match=r"tokens\[0, 1\] is 3"):
        RandomChains(3, 1.0).next_token_probs([[0, 3]])
