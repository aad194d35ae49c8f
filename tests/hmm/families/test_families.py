import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hmm_datasets.errors import InputError
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.families import HMMMixture, PermutedEmissions, PermutedSymbols, RandomChains
from hmm_datasets.hmm.model import HMM
from hmm_datasets.hmm.sampling import philox

BASE = processes.random(3, 4, alpha=0.5, seed=2)
CLEAR = HMM(start=[1, 0, 0, 0], transition=np.roll(np.eye(4), 1, axis=1), emission=np.eye(4))


def families(group: int = 1):
    return [
        PermutedSymbols(BASE, group),
        PermutedSymbols(processes.mess3(0.15, 0.6), group),
        PermutedEmissions(BASE, group),
        RandomChains(3, 0.5, group),
        HMMMixture((BASE, CLEAR, processes.random(2, 4, seed=5)), (0.2, 0.3, 0.5), group),
        RandomChains((2, 5), zipf=1.5, group=group, alphabet=9, start="stationary"),
        RandomChains((1, 4), 1.0, group, doubly_stochastic=True, emission_alpha=0.5, alphabet=6),
    ]


@given(
    which=st.integers(0, 6),
    group=st.sampled_from([1, 3, 1000]),
    seed=st.integers(0, 2**64 - 1),
    first=st.one_of(st.integers(0, 50), st.integers(2**64 - 6, 2**64 - 1)),
    step=st.sampled_from([1, 2, 5, 2**63 + 1, 2**64 - 1]),
    count=st.integers(1, 20),
    threads=st.integers(1, 3),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_a_sequence_depends_on_family_seed_and_index_alone(which, group, seed, first, step, count, threads):
    family = families(group)[which]
    block = family.sample(count, 12, seed=seed, first=first, step=step, num_threads=threads)
    assert block.dtype == np.uint8
    for number in range(count):
        index = (first + number * step) % 2**64
        alone = family.sample(1, 12, seed=seed, first=index)[0]
        np.testing.assert_array_equal(block[number], alone)
        np.testing.assert_array_equal(block[number, :5], family.sample(1, 5, seed=seed, first=index)[0])


@pytest.mark.thorough
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
    tokens = family.sample(40, 25, seed=3, first=4, step=3)
    for number, row in enumerate(tokens):
        own = family.hmm_at(3, 4 + 3 * number).sample(1, 25, seed=3, first=4 + 3 * number)[0]
        np.testing.assert_array_equal(row, own)


@pytest.mark.parametrize("group", [1, 3, 20, 1000])
def test_groups_that_straddle_what_is_drawn_side_by_side_keep_their_permutation(group):
    family = PermutedEmissions(processes.random(6, 9, alpha=0.3, seed=8), group)
    tokens = family.sample(70, 11, seed=5, first=7)
    for index in range(70):
        own = family.hmm_at(5, 7 + index).sample(1, 11, seed=5, first=7 + index)[0]
        np.testing.assert_array_equal(tokens[index], own)


@pytest.mark.parametrize("which", range(7))
@pytest.mark.parametrize("step", [1, 2])
def test_the_last_group_before_indices_wrap_may_be_short_and_shares_nothing_with_the_first(which, step):
    # 2^64 leaves 1 when divided by 3, so index 2^64 - 1 is alone in its group.
    family = families(3)[which]
    tokens = family.sample(8, 12, seed=4, first=2**64 - 4, step=step)
    for number, row in enumerate(tokens):
        alone = family.sample(1, 12, seed=4, first=(2**64 - 4 + step * number) % 2**64)
        np.testing.assert_array_equal(row, alone[0])


@pytest.mark.thorough
@pytest.mark.parametrize("which", range(7))
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
def test_out_of_any_unsigned_type_is_filled_and_nothing_beside_it(which, dtype):
    family = families(2)[which]
    wide = np.full((21, 14), 250, dtype=dtype)
    returned = family.sample(21, 12, seed=6, out=wide[:, 1:-1], num_threads=2)
    assert returned.base is wide
    np.testing.assert_array_equal(wide[:, 1:-1], family.sample(21, 12, seed=6))
    assert (wide[:, [0, -1]] == 250).all()


@pytest.mark.thorough
@pytest.mark.parametrize("make", [PermutedSymbols, PermutedEmissions])
def test_more_symbols_than_a_byte_holds_come_in_two(make):
    base = HMM(transition=np.full((300, 300), 1 / 300), emission=np.eye(300))
    family = make(base, 4)
    tokens = family.sample(6, 40, seed=1)
    assert tokens.dtype == np.uint16
    permutation, plain = family.permutation_at(1, 5), base.sample(6, 40, seed=1)
    np.testing.assert_array_equal(tokens[5], permutation[plain[5]])
    with pytest.raises(InputError, match="at least uint16"):
        family.sample(6, 40, out=np.empty((6, 40), np.uint8))


def test_a_large_draw_on_all_cores_is_the_same_as_on_one():
    for family in families(3)[:3] + families(3)[4:5]:
        np.testing.assert_array_equal(family.sample(4000, 70, seed=2), family.sample(4000, 70, seed=2, num_threads=1))


@pytest.mark.parametrize("base", [BASE, processes.mess3(0.15, 0.6), processes.even()])
def test_permuted_symbols_are_the_tokens_of_the_base_renamed(base):
    family = PermutedSymbols(base)
    plain, renamed = base.sample(20, 30, seed=9), family.sample(20, 30, seed=9)
    for index in range(20):
        permutation = family.permutation_at(9, index)
        np.testing.assert_array_equal(renamed[index], permutation[plain[index]])
        # The distribution of the renamed tokens is that of hmm_at: it gives them what the base gave the plain ones.
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


def test_what_is_drawn_never_changes():
    # Fixed when format 1 was; another machine that fails here breaks the promise of purity.
    assert PermutedSymbols(processes.dishonest_casino()).permutation_at(1, 2).tolist() == [1, 2, 4, 0, 3, 5]
    assert PermutedEmissions(CLEAR).permutation_at(2**63, 2**40).tolist() == [2, 3, 0, 1]
    assert RandomChains(5, 0.3).hmm_at(3, 4).fingerprint() == "5b09f4837fad72b170d4aee6d3aae580"
    assert RandomChains(50, 1.7).hmm_at(2**40 + 1, 2**35).fingerprint() == "89495edf3cd7a68d1c9303aaee897eed"
    assert RandomChains(7, zipf=1.5).hmm_at(3, 4).fingerprint() == "862f96d7961f497e2102e7a3f5b5d3c2"
    sinkhorn = RandomChains((3, 9), 0.4, doubly_stochastic=True, alphabet=20)
    assert sinkhorn.hmm_at(3, 4).fingerprint() == "a964bedca6717214b3c148ff6197755a"
    hidden = RandomChains(6, 0.4, emission_alpha=0.2, start="stationary")
    assert hidden.hmm_at(3, 4).fingerprint() == "acd035a038cc27ad7ee76ce4f68b79c1"
    mixture = HMMMixture((processes.golden_mean(), processes.rrxor(), processes.even()), (0.2, 0.3, 0.5))
    assert mixture.components_at(12, 12).tolist() == [2, 2, 2, 0, 1, 2, 2, 2, 1, 2, 2, 2]


@pytest.mark.parametrize("size", [1, 2, 9, 200, 50_000])
def test_permutations_are_those_of_fisher_and_yates_in_unbounded_integers(size):
    seed, index = 2**63 + 5, 2**33 + 7
    key, blocks = [seed & 0xFFFFFFFF, seed >> 32], -(-size // 8)

    def words(draws: list[int]) -> list[list[int]]:
        counters = [[index & 0xFFFFFFFF, index >> 32, draw, 1] for draw in draws]
        return philox(np.array(counters), np.array([key] * len(draws))).tolist()

    # Of block `b`, half `h` decides position `h * blocks + b`.
    halves = [
        half for word in zip(*words(list(range(blocks))), strict=True) for half in zip(*map(split, word), strict=True)
    ]
    randoms = list(itertools.chain.from_iterable(halves))
    expected, redrawn = list(range(size)), 0
    for position in range(size):
        random, attempt = randoms[position], 0
        while random * (position + 1) % 2**16 < 2**16 % (position + 1):
            attempt += 1
            redrawn += 1
            random = words([position + (attempt << 16)])[0][0] & 0xFFFF
        chosen = random * (position + 1) >> 16
        expected[position], expected[chosen] = expected[chosen], position
    assert (redrawn > 100) == (size == 50_000)
    family = PermutedSymbols(HMM(transition=[[1.0]], emission=np.full((1, size), 1 / size)))
    assert family.permutation_at(seed, index).tolist() == expected


def split(word: int) -> tuple[int, int]:
    return word & 0xFFFF, word >> 16


def test_more_things_than_sixteen_bits_choose_among_are_not_permuted():
    size = 2**16 + 1
    with pytest.raises(InputError, match="the HMM has 65,537 symbols; expected at most 65,536 to permute"):
        PermutedSymbols(HMM(transition=[[1.0]], emission=np.full((1, size), 1 / size)))


def test_the_components_of_a_mixture_come_by_their_weights():
    family = families()[4]
    observed = np.bincount(family.components_at(4000, 1), minlength=3)
    expected = 4000 * np.array(family.weights)
    assert ((observed - expected) ** 2 / expected).sum() < 13.8  # 99.9th percentile at 2 degrees of freedom
    assert not HMMMixture((CLEAR, BASE), (1, 0)).components_at(200).any()
    assert HMMMixture((CLEAR, BASE), (0, 1)).components_at(200).all()


def test_nothing_can_be_drawn():
    for family in families():
        assert family.sample(0, 5).shape == (0, 5)
        assert family.sample(2, 0).shape == (2, 0)


def test_bad_input_is_reported_in_one_line():
    with pytest.raises(InputError, match="group is 0; expected an integer"):
        PermutedSymbols(BASE, group=0)
    with pytest.raises(InputError, match="takes a state-emitting HMM"):
        PermutedEmissions(processes.even())
    with pytest.raises(InputError, match="num_states is 0"):
        RandomChains(0, 1.0)
    with pytest.raises(InputError, match=r"num_states is \(5, 2\); expected a minimum, and then a maximum"):
        RandomChains((5, 2), 1.0)
    with pytest.raises(InputError, match=r"num_states is \(2, 40000\); expected a number in 1 \.\. 32768"):
        RandomChains((2, 40_000), 1.0)
    with pytest.raises(InputError, match="alpha is None, zipf None; expected one of them"):
        RandomChains(3)
    with pytest.raises(InputError, match=r"alpha is 1\.0, zipf 1\.0; expected one of them"):
        RandomChains(3, 1.0, zipf=1.0)
    with pytest.raises(InputError, match="zipf is -1; expected an exponent"):
        RandomChains(3, zipf=-1)
    with pytest.raises(InputError, match=r"alphabet is 4; expected 5 \.\. 65536 symbols"):
        RandomChains((2, 5), 1.0, alphabet=4)
    with pytest.raises(InputError, match="start is 'last'; expected 'uniform' or 'stationary'"):
        RandomChains(3, 1.0, start="last")
    with pytest.raises(InputError, match="emission_alpha is 0"):
        RandomChains(3, 1.0, emission_alpha=0)
    for alpha in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(InputError, match="alpha is"):
            RandomChains(2, alpha)
    with pytest.raises(InputError, match="0 hmms and 0 weights"):
        HMMMixture((), ())
    with pytest.raises(InputError, match="1 hmms and 2 weights"):
        HMMMixture((BASE,), (0.5, 0.5))
    for weights in ((0.5, 0.6), (1.5, -0.5), (math.nan, 1.0)):
        with pytest.raises(InputError, match="weights sum to"):
            HMMMixture((BASE, CLEAR), weights)
    for family in families():
        with pytest.raises(InputError, match=r"seed is -1; expected an integer in \[0, 2\*\*64\)"):
            family.sample(1, 2, seed=-1)
        with pytest.raises(InputError, match="first is"):
            family.sample(1, 2, first=2**64)
        with pytest.raises(InputError, match="step is 0"):
            family.sample(1, 2, step=0)
        with pytest.raises(InputError, match=r"out is int64 of shape \(1, 2\); expected unsigned"):
            family.sample(1, 2, out=np.empty((1, 2), np.int64))
        with pytest.raises(InputError, match="length is -2"):
            family.sample(1, -2)
        with pytest.raises(InputError, match="num_sequences is -1"):
            family.sample(-1, 2)
    with pytest.raises(InputError, match="first is -1"):
        families()[0].permutation_at(0, -1)
