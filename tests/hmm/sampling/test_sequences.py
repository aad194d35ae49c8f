import contextlib
import io
import itertools
import subprocess
import sys

import numpy as np
import pytest
from brute_force import likelihood, random_edges
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from hmm_datasets.errors import InputError
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.kernels.draws import philox_block, pick
from hmm_datasets.hmm.model import HMM
from hmm_datasets.hmm.sampling import AliasTable, integer_weights, philox, smallest_unsigned
from hmm_datasets.hmm.storage import FORMAT_VERSION

LITERAL = HMM(
    start=[0.5, 0.3, 0.2],
    transition=[[0.8, 0.15, 0.05], [0.1, 0.6, 0.3], [0.0, 0.25, 0.75]],
    emission=[[0.7, 0.1, 0.1, 0.1, 0.0], [0.0, 0.45, 0.45, 0.05, 0.05], [0.2, 0.2, 0.2, 0.2, 0.2]],
)
SOURCES = {
    "states": LITERAL,
    "mess3": processes.mess3(0.15, 0.6),
    "even": processes.even(),
    "random edges": random_edges(3, 4, seed=1),
    "one state": HMM(transition=[[1.0]], emission=[[0.5, 0.25, 0.25]]),
}
fixed = settings(deadline=None, derandomize=True, max_examples=60)
words64 = st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 20), st.sampled_from([2**63, 2**64 - 1, 2**32]))


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


# Philox


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ("0 0 0 0", "0 0", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_philox_gives_the_known_answers_of_random123(counter, key, expected):
    assert philox([words(counter)], [words(key)]).tolist() == [words(expected)]
    compiled = philox_block(*map(np.uint64, words(counter)), *map(np.uint64, words(key)))
    assert [int(word) for word in compiled] == words(expected)


def philox_in_integers(counter: list[int], key: list[int]) -> list[int]:
    """Salmon et al. 2011, written once more, with Python's integers."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 % 2**32, (p0 >> 32) ^ c3 ^ k1, p0 % 2**32
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return [c0, c1, c2, c3]


@pytest.mark.thorough
@given(st.lists(st.lists(st.integers(0, 2**32 - 1), min_size=6, max_size=6), min_size=1, max_size=5))
@fixed
def test_philox_of_many_counters_agrees_with_the_kernels_and_with_plain_integers(rows):
    table = np.array(rows, dtype=np.uint64)
    many = philox(table[:, :4], table[:, 4:])
    assert many.dtype == np.uint32
    for row, found in zip(table, many.tolist(), strict=True):
        assert found == [int(word) for word in philox_block(*row)]
        assert found == philox_in_integers(row[:4].tolist(), row[4:].tolist())


# Alias tables


def masses(table: AliasTable, row: int, categories: int) -> list[int]:
    """How many of the `2**(32 + bits)` draws give each category."""
    mass = [0] * max(categories, table.threshold.shape[1])
    for column, (threshold, alias) in enumerate(zip(table.threshold[row], table.alias[row], strict=True)):
        mass[column] += int(threshold)
        mass[int(alias)] += 2**32 - int(threshold)
    return mass


distributions = st.lists(st.one_of(st.just(0.0), st.floats(1e-12, 1)), min_size=1, max_size=40).filter(
    lambda v: sum(v) > 0
)


@given(distributions)
@fixed
def test_alias_tables_hold_the_integer_weights_exactly(values):
    distribution = np.array([values]) / np.sum(values)
    weights = integer_weights(distribution)[0].tolist()
    table = AliasTable.from_probabilities(distribution)
    assert table.threshold.shape == (1, 2**table.bits)
    found = masses(table, 0, len(values))
    assert found[: len(values)] == [weight << table.bits for weight in weights]
    assert not any(found[len(values) :]), "a padded column can be drawn"


@given(distributions, st.floats(-9e-10, 9e-10))
@fixed
def test_integer_weights_sum_to_two_to_the_32_and_move_no_probability_far(values, excess):
    # An HMM keeps rows bit for bit that are off by less than 1e-9.
    distribution = np.array(values) / np.sum(values) * (1 + excess)
    weights = integer_weights(distribution[None])[0]
    assert weights.sum() == 2**32
    assert weights.max() <= 2**32
    assert (weights[distribution == 0] == 0).all()
    slack = abs(excess) * 2**32
    assert np.abs(weights.astype(float) - distribution * 2**32).max() <= len(distribution) + 1 + slack


def test_a_rare_symbol_beside_a_sum_above_one_is_not_drawn_as_often_as_the_others():
    rows = np.array(
        [[0.5000000007, 0.5, 2.9e-10, 0.0], [1.0000000009, 2.4e-10, 0, 0], [0.5, 0.5000000005, 2.9e-10, 4e-10]]
    )
    weights = integer_weights(rows)
    assert [sum(row) for row in weights.tolist()] == [2**32] * 3
    assert np.abs(weights.astype(float) - rows * 2**32).max() < 5
    table = AliasTable.from_probabilities(rows)
    assert [masses(table, row, 4) for row in range(3)] == (weights << np.uint64(2)).tolist()
    assert HMM(transition=[[1]], emission=rows[:1]).sample(10, 10_000).max() == 1


def test_what_rounding_leaves_goes_to_the_largest_and_of_equals_to_the_first():
    distribution = np.tile([0.004, 0.016], 50)
    floors = [int(p * 2**32) for p in distribution]
    largest = sorted(range(100), key=lambda x: -floors[x])[: 2**32 - sum(floors)]
    assert integer_weights(distribution[None])[0].tolist() == [floors[x] + (x in largest) for x in range(100)]
    assert integer_weights(np.array([[0.1, 0.6, 0.3]]))[0].tolist() == [429496729, 2576980378, 1288490189]


def test_a_large_distribution_is_held_exactly_too():
    distribution = np.random.default_rng(0).dirichlet(np.full(1000, 0.05), 2)
    table = AliasTable.from_probabilities(distribution)
    weights = integer_weights(distribution)
    for row in range(2):
        assert masses(table, row, 1000) == [int(w) << 10 for w in weights[row]] + [0] * 24


def test_a_column_is_split_exactly_at_its_threshold():
    table = AliasTable.from_probabilities(np.array([[0.7, 0.3, 0.0]]))
    for column, (threshold, alias) in enumerate(zip(table.threshold[0], table.alias[0], strict=True)):
        high = np.uint64(column << (32 - table.bits))
        picked = {
            low: int(pick(table.flat[0], np.uint64(0), table.flat[1], high, np.uint64(low)))
            for low in {0, max(int(threshold) - 1, 0), int(threshold), 2**32 - 1}
        }
        assert picked == {low: column if low < threshold else int(alias) for low in picked}


def test_a_certain_symbol_is_always_drawn_and_an_impossible_one_never():
    hmm = HMM(transition=np.full((2, 2), 0.5), emission=[[0, 0, 1, 0, 0], [0, 0, 1, 0, 0]])
    assert (hmm.sample(1000, 20) == 2).all()
    tokens = LITERAL.sample(4000, 50, seed=3)
    assert set(np.unique(tokens)) == {0, 1, 2, 3, 4}
    # State 0 never emits 4, and from a start in it the first token is never 4.
    first = HMM(start=[1, 0, 0], transition=LITERAL.transition, emission=LITERAL.emission).sample(20_000, 1)
    assert (first != 4).all()


# The stream


def tokens_in_integers(hmm: HMM, length: int, seed: int, index: int) -> list[int]:
    """The stream by its definition: what a second implementation would have to give."""

    def draw(table: AliasTable, row: int, high: int, low: int) -> int:
        column = high >> (32 - table.bits)
        return column if low < int(table.threshold[row, column]) else int(table.alias[row, column])

    key = [seed % 2**32, seed >> 32]
    words = [index % 2**32, index >> 32]
    start, symbol, transition = hmm._alias_tables
    state = draw(start, 0, *philox_in_integers([*words, 0xFFFFFFFF, 0], key)[:2])
    tokens = []
    for t in range(length):
        w0, w1, w2, w3 = philox_in_integers([*words, t, 0], key)
        drawn = draw(symbol, state, w0, w1)
        if transition is None:
            state, drawn = divmod(drawn, hmm.num_symbols)
        else:
            state = draw(transition, state, w2, w3)
        tokens.append(drawn)
    return tokens


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize(("seed", "index"), [(0, 0), (7, 3), (2**63 + 5, 2**64 - 1), (2**64 - 1, 2**32)])
def test_the_stream_is_what_its_definition_says(name, seed, index):
    found = SOURCES[name].sample(1, 30, seed=seed, first=index)[0]
    assert found.tolist() == tokens_in_integers(SOURCES[name], 30, seed, index)


@given(
    name=st.sampled_from(sorted(SOURCES)),
    seed=words64,
    first=words64,
    count=st.integers(1, 8),
    length=st.integers(1, 30),
    threads=st.integers(1, 5),
)
@fixed
def test_a_sequence_depends_on_hmm_seed_and_index_alone(name, seed, first, count, length, threads):
    hmm = SOURCES[name]
    block = hmm.sample(count, length, seed=seed, first=first, num_threads=threads)
    for number in range(count):
        alone = hmm.sample(1, length, seed=seed, first=(first + number) % 2**64)[0]
        np.testing.assert_array_equal(block[number], alone)


@given(name=st.sampled_from(sorted(SOURCES)), seed=words64, first=words64, short=st.integers(0, 20))
@fixed
def test_the_first_tokens_of_a_sequence_do_not_depend_on_its_length(name, seed, first, short):
    hmm = SOURCES[name]
    long = hmm.sample(3, 21, seed=seed, first=first)
    np.testing.assert_array_equal(hmm.sample(3, short, seed=seed, first=first), long[:, :short])


@given(first=words64, step=st.one_of(st.integers(1, 10), st.integers(2**64 - 3, 2**64 - 1)), count=st.integers(1, 6))
@fixed
def test_a_step_takes_every_nth_sequence(first, step, count):
    block = LITERAL.sample(count, 12, seed=5, first=first, step=step, num_threads=2)
    for number in range(count):
        alone = LITERAL.sample(1, 12, seed=5, first=(first + number * step) % 2**64)
        np.testing.assert_array_equal(block[number], alone[0])


def test_ranks_that_step_by_their_number_share_out_the_stream():
    whole = LITERAL.sample(12, 9, seed=2, first=100)
    for rank in range(3):
        np.testing.assert_array_equal(LITERAL.sample(4, 9, seed=2, first=100 + rank, step=3), whole[rank::3])


def test_a_large_draw_on_all_cores_is_the_same_as_on_one():
    one = LITERAL.sample(3001, 100, seed=1, num_threads=1)
    for threads in (None, 2, 7):
        np.testing.assert_array_equal(LITERAL.sample(3001, 100, seed=1, num_threads=threads), one)


def test_seeds_and_indices_name_different_sequences():
    rows = [LITERAL.sample(1, 64, seed=seed, first=first)[0] for seed in (0, 1, 2**32) for first in (0, 1, 2**32)]
    assert len({row.tobytes() for row in rows}) == 9


GOLDEN = {
    "states": ["020012132014132142212124", "324142021001200001003011"],
    "mess3": ["001201111011111012211112", "122022012110121002200202"],
}


@pytest.mark.parametrize("name", GOLDEN)
def test_the_stream_of_format_version_1_has_not_changed(name):
    assert FORMAT_VERSION == 1, "a new format version needs golden tokens of its own"
    tokens = SOURCES[name].sample(2, 24, seed=2**40 + 17, first=2**33 + 5)
    assert ["".join(map(str, row)) for row in tokens] == GOLDEN[name]


CHILD = """
import hashlib
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.model import HMM
for hmm in (processes.mess3(0.15, 0.6), processes.umbrella()):
    tokens = hmm.sample(2000, 40, seed=9, first=3)
    print(hashlib.sha256(tokens.tobytes()).hexdigest())
    print(hmm.log_likelihood(tokens).sum().round(6), hmm.posteriors(tokens)[:, 20].sum(0).round(6).tolist())
    print(hashlib.sha256(hmm.viterbi(tokens).states.tobytes()).hexdigest())
"""


def test_another_process_draws_and_infers_the_same(child_environment):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CHILD],
        env=child_environment,
        capture_output=True,
        text=True,
        check=True,
    )
    here = io.StringIO()
    with contextlib.redirect_stdout(here):
        exec(CHILD, {})
    assert done.stdout.splitlines() == here.getvalue().splitlines()


# The distribution of the stream


@pytest.mark.parametrize("name", ["states", "mess3", "even", "random edges"])
def test_words_of_three_come_as_often_as_the_exact_distribution_says(name):
    hmm = SOURCES[name]
    num_sequences, length = 60_000, 3
    tokens = hmm.sample(num_sequences, length, seed=12).astype(np.int64)
    code = tokens @ hmm.num_symbols ** np.arange(length)[::-1]
    counts = np.bincount(code, minlength=hmm.num_symbols**length)
    distribution = np.array(
        [likelihood(hmm, word) for word in itertools.product(range(hmm.num_symbols), repeat=length)]
    )
    assert (counts[distribution == 0] == 0).all()
    possible = distribution > 0
    statistic = (
        (counts - num_sequences * distribution)[possible] ** 2 / (num_sequences * distribution[possible])
    ).sum()
    assert stats.chi2.sf(statistic, possible.sum() - 1) > 1e-3
    # The same test would notice a distribution that is off by a twentieth.
    tilted = distribution[possible] * (1 + 0.05 * np.sign(np.arange(possible.sum()) % 2 - 0.5))
    tilted /= tilted.sum()
    worse = ((counts[possible] - num_sequences * tilted) ** 2 / (num_sequences * tilted)).sum()
    assert stats.chi2.sf(worse, possible.sum() - 1) < 1e-6


@pytest.mark.parametrize("name", ["states", "mess3"])
def test_pairs_deep_in_the_sequence_follow_the_distribution_of_their_place(name):
    hmm = SOURCES[name]
    num_sequences, position = 60_000, 37
    tokens = hmm.sample(num_sequences, position + 2, seed=4)[:, -2:].astype(np.int64)
    late = hmm.start @ np.linalg.matrix_power(hmm.transition, position)
    shifted = HMM(**{**hmm.tables(), "start": late / late.sum()})
    counts = np.bincount(tokens @ [hmm.num_symbols, 1], minlength=hmm.num_symbols**2)
    distribution = np.array(
        [likelihood(shifted, pair) for pair in itertools.product(range(hmm.num_symbols), repeat=2)]
    )
    expected = num_sequences * distribution
    assert stats.chi2.sf(((counts - expected) ** 2 / expected).sum(), len(distribution) - 1) > 1e-3


# Types, `out`, errors


@pytest.mark.parametrize(
    ("num_symbols", "dtype"), [(1, "uint8"), (256, "uint8"), (257, "uint16"), (65_536, "uint16"), (65_537, "uint32")]
)
def test_tokens_have_the_smallest_type_that_can_store_them(num_symbols, dtype):
    assert smallest_unsigned(num_symbols) == dtype
    if num_symbols > 257:
        return
    emission = np.zeros((1, num_symbols))
    emission[0, -1] = 1
    tokens = HMM(transition=[[1.0]], emission=emission).sample(2, 3)
    assert tokens.dtype == dtype
    assert (tokens == num_symbols - 1).all()


@pytest.mark.thorough
def test_out_is_filled_and_returned():
    wide = np.full((4, 11), 99, dtype=np.uint32)
    returned = LITERAL.sample(4, 10, seed=3, out=wide[:, 1:])
    assert returned.base is wide
    np.testing.assert_array_equal(wide[:, 1:], LITERAL.sample(4, 10, seed=3))
    assert (wide[:, 0] == 99).all(), "wrote outside of out"


@pytest.mark.thorough
@pytest.mark.parametrize(
    "view",
    [
        lambda wide: wide[:4, :10],
        lambda wide: wide[1:9:2, 2:22:2],
        lambda wide: wide[3::-1, 5:15],
        lambda wide: wide[:4, 20:10:-1],
        lambda wide: wide[:10, :4].T,
    ],
    ids=["columns", "steps", "rows backwards", "columns backwards", "transposed"],
)
@pytest.mark.parametrize("process", [LITERAL, processes.mess3()], ids=["states", "edges"])
def test_any_view_is_filled_and_nothing_beside_it(process, view):
    wide = np.full((12, 24), 99, dtype=np.uint16)
    expected = wide.copy()
    view(expected)[...] = process.sample(4, 10, seed=3)
    process.sample(4, 10, seed=3, out=view(wide))
    np.testing.assert_array_equal(wide, expected)


@pytest.mark.parametrize(
    ("out", "found"),
    [
        (np.empty((4, 9), np.uint8), "out is uint8 of shape (4, 9)"),
        (np.empty((4, 10), np.int64), "out is int64"),
        (np.empty((4, 10), np.float32), "out is float32"),
    ],
)
def test_an_out_that_does_not_fit_is_refused(out, found):
    with pytest.raises(InputError, match="expected unsigned, at least uint8, of shape") as caught:
        LITERAL.sample(4, 10, out=out)
    assert found in str(caught.value)


def test_an_out_too_narrow_for_the_symbols_is_refused():
    hmm = HMM(transition=[[1.0]], emission=np.full((1, 300), 1 / 300))
    with pytest.raises(InputError, match="at least uint16"):
        hmm.sample(2, 3, out=np.empty((2, 3), np.uint8))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seed": -1}, "seed is -1; expected an integer in [0, 2**64)"),
        ({"seed": 2**64}, f"seed is {2**64}; expected an integer in [0, 2**64)"),
        ({"seed": 0.5}, "seed is 0.5; expected an integer in [0, 2**64)"),
        ({"first": -3}, "first is -3; expected an integer in [0, 2**64)"),
        ({"first": 2**64}, f"first is {2**64}; expected an integer in [0, 2**64)"),
        ({"step": 0}, "step is 0; expected an integer in [1, 2**64)"),
        ({"length": -1}, "length is -1; expected an integer in [0, 2**32)"),
        ({"length": 2**32}, f"length is {2**32}; expected an integer in [0, 2**32)"),
        ({"num_sequences": -1}, "num_sequences is -1; expected an integer in [0, 2**63)"),
        ({"num_sequences": 2.0}, "num_sequences is 2.0; expected an integer in [0, 2**63)"),
    ],
)
def test_arguments_out_of_range_are_refused_by_name(arguments, message):
    with pytest.raises(InputError) as caught:
        LITERAL.sample(**{"num_sequences": 1, "length": 1, **arguments})
    assert str(caught.value) == message


def test_integers_of_numpy_serve_as_indices():
    expected = LITERAL.sample(3, 5, seed=4, first=2**63 + 1)
    found = LITERAL.sample(np.int32(3), np.int64(5), seed=np.uint8(4), first=np.uint64(2**63 + 1))
    np.testing.assert_array_equal(found, expected)


def test_nothing_asked_for_gives_empty_arrays():
    assert LITERAL.sample(0, 5).shape == (0, 5)
    assert LITERAL.sample(5, 0).shape == (5, 0)
