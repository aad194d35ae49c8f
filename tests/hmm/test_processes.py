import itertools
import re

import brute_force
import numpy as np
import pytest

from hmm_datasets import GeneralizedHMM
from hmm_datasets.errors import InputError
from hmm_datasets.hmm import processes

NAMED = {
    "mess3": processes.mess3(0.15, 0.6),
    "rrxor": processes.rrxor(),
    "leaky_rrxor": processes.leaky_rrxor(),
    "golden_mean": processes.golden_mean(),
    "even": processes.even(),
    "zero_one_random": processes.zero_one_random(),
    "simple_nonunifilar": processes.simple_nonunifilar(),
    "coin": processes.coin(0.3),
    "matching_parentheses": processes.matching_parentheses((1.0, 0.3, 0.6)),
    "mr_name": processes.mr_name(0.3, 0.2),
}
DEFAULTS = {
    "mess3": "54cda719",
    "rrxor": "ff660f3e",
    "leaky_rrxor": "1a30f0ae",
    "golden_mean": "7e9cb3e4",
    "even": "ad1f34ac",
    "zero_one_random": "1a6a22d7",
    "simple_nonunifilar": "398e3d78",
    "dishonest_casino": "9b3fcf84",
    "umbrella": "df63993d",
    "weather": "fc7b8b9d",
}
"""The first digits of fingerprints, so that parameters added later change no stream."""

NOT_UNIFILAR = ("mess3", "leaky_rrxor", "simple_nonunifilar", "coin")


@pytest.mark.parametrize(("x", "a"), [(0.15, 0.6), (0.05, 0.85), (0.5, 0.1)])
def test_mess3_has_the_matrices_of_the_literature(x, a):
    α, β, y = a, (1 - a) / 2, 1 - 2 * x
    expected = [
        [[α * y, β * x, β * x], [α * x, β * y, β * x], [α * x, β * x, β * y]],
        [[β * y, α * x, β * x], [β * x, α * y, β * x], [β * x, α * x, β * y]],
        [[β * y, β * x, α * x], [β * x, β * y, α * x], [β * x, β * x, α * y]],
    ]
    hmm = processes.mess3(x, a)
    np.testing.assert_allclose(hmm.edges, expected, rtol=0, atol=3e-16)
    np.testing.assert_allclose(hmm.start, np.full(3, 1 / 3), atol=1e-15)


@pytest.mark.parametrize("name", NAMED)
def test_a_process_starts_in_its_stationary_distribution(name):
    hmm = NAMED[name]
    np.testing.assert_allclose(hmm.start @ hmm.transition, hmm.start, atol=1e-14)
    distributions = hmm.next_token_probs(hmm.sample(1, 0))[0, 0]
    later = sum(
        brute_force.likelihood(hmm, word) * np.eye(hmm.num_symbols)[word[-1]]
        for word in itertools.product(range(hmm.num_symbols), repeat=3)
    )
    np.testing.assert_allclose(later, distributions, atol=1e-14)


@pytest.mark.parametrize("name", [name for name in NAMED if name not in NOT_UNIFILAR])
def test_symbol_and_state_tell_the_next_state_where_they_should(name):
    assert NAMED[name].is_unifilar()


def text(hmm, seed=0) -> list[str]:
    return ["".join(map(str, row)) for row in hmm.sample(200, 300, seed=seed)]


@pytest.mark.parametrize("p", [0.5, 0.2])
def test_even_closes_no_odd_block_of_ones(p):
    rows = text(processes.even(p))
    blocks = [len(block) for row in rows for block in re.findall(r"(?<=0)1+(?=0)", row)]
    assert len(blocks) > 1000
    assert all(length % 2 == 0 for length in blocks)
    assert len(set(blocks)) > 3


@pytest.mark.parametrize("p", [0.5, 0.8])
def test_golden_mean_has_no_two_zeros_in_a_row(p):
    rows = text(processes.golden_mean(p))
    assert all("00" not in row for row in rows)
    assert any("0110" in row for row in rows)
    # State A with probability 1 / (2 - p), then a 0 with 1 - p.
    share = np.mean([row.count("0") / len(row) for row in rows])
    assert share == pytest.approx((1 - p) / (2 - p), abs=0.01)


def test_every_third_bit_of_rrxor_is_the_xor_of_the_two_before():
    hmm = processes.rrxor()
    tokens = hmm.sample(300, 60, seed=1).astype(int)
    third = tokens[:, 2:] == tokens[:, 1:-1] ^ tokens[:, :-2]
    phases = np.stack([third[:, phase::3].all(1) for phase in range(3)])
    np.testing.assert_array_equal(phases.sum(0), 1)
    # Starting stationary, each of the three phases comes in a third of the sequences (4 standard errors).
    assert np.abs(phases.mean(1) - 1 / 3).max() < 4 * np.sqrt(2 / 9 / 300)
    from_start = np.eye(5)[0]
    assert (processes.HMM(edges=hmm.edges, start=from_start).sample(50, 3, seed=1) @ [1, 1, 1] % 2 == 0).all()


def test_zero_one_random_is_a_zero_a_one_and_a_fair_bit():
    tokens = processes.zero_one_random().sample(300, 60, seed=2)
    phases = [((tokens[:, p::3] == 0).all(1) & (tokens[:, (p + 1) % 3 :: 3][:, :19] == 1).all(1)) for p in range(3)]
    assert np.stack(phases).any(0).all()
    distribution = [
        brute_force.likelihood(processes.zero_one_random(), word) for word in [(0, 0), (0, 1), (1, 0), (1, 1)]
    ]
    # Phases 01, 1?, ?0 with a third each.
    np.testing.assert_allclose(distribution, np.array([1 / 2, 1, 1 / 2 + 1 / 2, 1 / 2]) / 3, atol=1e-15)


def test_only_a_zero_of_the_simple_nonunifilar_source_tells_the_state():
    hmm = processes.simple_nonunifilar(0.3, 0.6)
    assert not hmm.is_unifilar()
    beliefs = hmm.beliefs([[1, 1, 0, 1]])[0]
    np.testing.assert_allclose(beliefs[3], [1, 0], atol=1e-15)
    np.testing.assert_allclose(beliefs[4], [0.7, 0.3], atol=1e-15)
    assert ((beliefs[:3] > 0) & (beliefs[:3] < 1)).all()
    assert hmm.transition.tolist() == [[0.7, 0.3], [0.6, 0.4]]


def test_the_casino_and_the_umbrella_have_the_numbers_of_their_books():
    casino = processes.dishonest_casino()
    assert casino.start.tolist() == [1, 0]
    assert casino.transition.tolist() == [[0.95, 0.05], [0.1, 0.9]]
    np.testing.assert_allclose(casino.emission[0], 1 / 6)
    assert casino.emission[1].tolist() == [0.1] * 5 + [0.5]
    # Russell and Norvig, section 14.2.1: the filter gives 0.818 and 0.883 on two umbrellas, the smoother 0.883 for
    # day 1. Their chain moves before the first umbrella, and from a fair start that changes nothing.
    umbrella = processes.umbrella()
    posteriors = [umbrella.posteriors([[1] * days])[0] for days in (1, 2)]
    assert posteriors[0][0, 0] == pytest.approx(0.818, abs=5e-4)
    assert posteriors[1][1, 0] == pytest.approx(0.883, abs=5e-4)
    assert posteriors[1][0, 0] == pytest.approx(0.883, abs=5e-4)


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0])
def test_leaky_rrxor_shows_a_fair_bit_and_goes_anywhere_with_probability_epsilon(epsilon):
    hmm, tight = processes.leaky_rrxor(epsilon), processes.rrxor()
    np.testing.assert_allclose(hmm.edges, (1 - epsilon) * tight.edges + epsilon / 10, atol=1e-16)
    assert hmm.is_unifilar() == (epsilon == 0)
    # A step that leaks forgets the state: the belief after it is uniform.
    words = np.array(list(itertools.product((0, 1), repeat=4)))
    if epsilon == 1:
        np.testing.assert_allclose(hmm.beliefs(words)[:, 1:], 0.2, atol=1e-15)
        assert hmm.entropy_rate_bounds(50).lower == pytest.approx(np.log(2), abs=1e-12)
    else:
        np.testing.assert_array_less(hmm.beliefs(words)[:, 1:].min(), 0.2)


@pytest.mark.thorough
def test_a_leak_takes_the_entropy_rate_of_rrxor_towards_that_of_fair_bits():
    bounds = [processes.leaky_rrxor(epsilon).entropy_rate_bounds(12) for epsilon in (0.02, 0.2, 0.6)]
    assert 2 / 3 * np.log(2) < bounds[0].lower
    for one, more in itertools.pairwise(bounds):
        assert one.upper < more.lower
    assert bounds[-1].upper < np.log(2)


def test_the_weather_has_the_numbers_of_its_book():
    # Jurafsky and Martin, figure A.5: the trellis of 3, 1, 3 ice creams.
    hmm = processes.weather()
    beliefs, likelihood = hmm.beliefs([[2, 0, 2]])[0], np.exp(hmm.log_likelihood([[2], [0]]))
    np.testing.assert_allclose(likelihood[0], 0.32 + 0.02, rtol=1e-12)
    # Their forward values include the emission: hot 0.0404, cold 0.069 on day 2.
    forward = np.exp(hmm.log_likelihood([[2]]))[0] * beliefs[1] * hmm.emission[:, 0]
    np.testing.assert_allclose(forward, [0.0404, 0.069], rtol=1e-12)
    np.testing.assert_allclose(hmm.stationary(), [5 / 9, 4 / 9], atol=1e-14)


def test_a_left_right_chain_never_goes_back_and_stays_in_its_last_state():
    hmm = processes.left_right(4, 6, stay=0.75, seed=1)
    assert hmm.start.tolist() == [1, 0, 0, 0]
    expected = [[0.75, 0.25, 0, 0], [0, 0.75, 0.25, 0], [0, 0, 0.75, 0.25], [0, 0, 0, 1]]
    assert hmm.transition.tolist() == expected
    np.testing.assert_allclose(hmm.stationary(), [0, 0, 0, 1], atol=1e-12)
    path = hmm.viterbi(hmm.sample(5, 80, seed=1)).states
    assert (np.isin(np.diff(path, axis=1), (0, 1))).all()
    # Dwell times are geometric: mean 1 / (1 - stay).
    visits = np.linalg.inv(np.eye(3) - hmm.transition[:3, :3])[0]
    np.testing.assert_allclose(visits, 4, rtol=1e-12)
    assert processes.left_right(1, 2).transition.tolist() == [[1]]


def test_random_hmms_repeat_by_seed_and_are_flatter_for_a_larger_alpha():
    assert processes.random(5, 6, seed=1) == processes.random(5, 6, seed=1)
    assert processes.random(5, 6, seed=1) != processes.random(5, 6, seed=2)
    peaks = [processes.random(20, 20, alpha=alpha).emission.max(1).mean() for alpha in (0.05, 1.0, 50.0)]
    assert peaks == sorted(peaks, reverse=True)
    assert processes.random(4, 9, seed=3).emission.shape == (4, 9)


def entropy(*probabilities: float) -> float:
    return float(-sum(p * np.log(p) for p in probabilities if p > 0))


def binary(p: float) -> float:
    return entropy(p, 1 - p)


@pytest.mark.parametrize(("p", "q"), [(0.5, 0.5), (0.3, 0.2), (0.9, 0.05), (1.0, 0.4)])
def test_entropy_rates_are_their_closed_forms(p, q):
    depths = [1.0, p / 2, q]
    shares = np.cumprod([1.0, *(a / (1 - b) for a, b in itertools.pairwise([*depths, 0.0]))])
    shares /= shares.sum()
    expected = {
        processes.coin: ((p,), binary(p)),
        processes.rrxor: ((p, q), (binary(p) + binary(q)) / 3),
        processes.zero_one_random: ((p,), binary(p) / 3),
        processes.golden_mean: ((p,), binary(p) / (2 - p)),
        processes.even: ((p,), binary(p) / (2 - p)),
        processes.matching_parentheses: ((depths,), shares[:3] @ [binary(d) for d in depths]),
    }
    if 0 < q <= 1 - p:
        rest = max(0.0, 1 - p - q)
        expected[processes.mr_name] = ((p, q), (q * np.log(2) + entropy(p, q, rest)) / (1 + 2 * q))
    for make, (parameters, value) in expected.items():
        if (make, p) in ((processes.golden_mean, 1.0), (processes.even, 1.0)):
            continue  # reducible: the other state is never entered again
        hmm = make(*parameters)
        # Not unifilar, but with one belief.
        found = (GeneralizedHMM.from_hmm(hmm) if make is processes.coin else hmm).entropy_rate()
        assert found.value == pytest.approx(value, abs=1e-12), make
        assert found.standard_error == 0


def test_defaults_are_the_same_streams_as_ever():
    made = {name: getattr(processes, name)().fingerprint()[:8] for name in DEFAULTS}
    assert made == DEFAULTS
    assert processes.mess3(0.15, 0.6).fingerprint()[:8] == "989bd094"  # the default of version 0.1


def test_the_bits_of_rrxor_and_of_zero_one_random_have_their_probabilities():
    assert np.exp(processes.HMM(edges=processes.rrxor(0.2, 0.7).edges, start=np.eye(5)[0]).log_likelihood(
        [[0, 0, 0], [0, 1, 1], [1, 0, 1], [1, 1, 0], [1, 1, 1]]
    )) == pytest.approx([0.14, 0.06, 0.56, 0.24, 0])  # fmt: skip
    bits = processes.HMM(edges=processes.zero_one_random(0.2).edges, start=np.eye(3)[0])
    np.testing.assert_allclose(bits.next_token_probs([[0, 1]])[0], [[1, 0], [0, 1], [0.8, 0.2]], atol=1e-15)


def test_parentheses_match_and_are_nested_to_their_depth():
    hmm = processes.matching_parentheses((1.0, 0.3, 0.6))
    assert hmm.num_states == 4
    from_start = processes.HMM(edges=hmm.edges, start=np.eye(4)[0])
    depth = np.cumsum(1 - 2 * from_start.sample(200, 60, seed=1).astype(int), axis=1)
    assert (depth.min(), depth.max()) == (0, 3)
    opens = from_start.next_token_probs([[0, 0, 0]])[0, :, 0]
    np.testing.assert_allclose(opens, [1, 0.3, 0.6, 0], atol=1e-15)


def test_a_week_goes_on_and_each_symbol_tells_the_day():
    hmm = processes.days_of_week()
    names = {name: symbol for symbol, name in enumerate(hmm.vocabulary)}
    after = hmm.beliefs(
        [[names["Sunday"], names["tomorrow"], names["yesterday"], names["weekend"], names["tomorrow"]]]
    )
    np.testing.assert_allclose(after[0, 1:4], np.eye(7)[[6, 0, 6]], atol=1e-15)
    np.testing.assert_allclose(after[0, 4], [0, 0, 0, 0, 0, 0.5, 0.5], atol=1e-15)
    np.testing.assert_allclose(after[0, 5], [0.5, 0, 0, 0, 0, 0, 0.5], atol=1e-15)
    np.testing.assert_allclose(hmm.emission.max(axis=1), 1 / 3, atol=1e-15)
    assert processes.days_of_week(1.0).emission == pytest.approx(1 / 11)
    rate = GeneralizedHMM.from_hmm(hmm).entropy_rate()
    assert rate.value == pytest.approx(2.193174, abs=1e-6)
    assert rate.standard_error == 0
    estimate = hmm.entropy_rate(num_sequences=64, length=300, burn_in=20)
    assert abs(rate.value - estimate.value) < 4 * estimate.standard_error


def test_a_name_follows_only_mr():
    hmm = processes.mr_name()
    assert hmm.transition[0].tolist() == [0, 0, 0, 1]
    assert hmm.transition[:, 3].tolist() == [1, 0, 0, 0]
    np.testing.assert_allclose(hmm.transition[1], [0.25, 0.35, 0.4, 0], atol=1e-15)
    np.testing.assert_allclose(hmm.emission, hmm.transition, atol=1e-15)


NOISY = {
    "edges": processes.golden_mean(),
    "states": processes.random(3, 2, seed=4),
    "generalized": processes.frdn(),
}


@pytest.mark.parametrize("name", NOISY)
@pytest.mark.parametrize("channel", [0.3, 0.0, [[0.9, 0.1], [0.2, 0.8]], [[0.5, 0.2, 0.3], [0.0, 1.0, 0.0]]])
def test_a_noisy_word_has_the_probabilities_of_all_the_words_behind_it(name, channel):
    process = NOISY[name]
    noisy = processes.noisy(process, channel)
    assert type(noisy) is type(process)
    table = np.array([[1 - channel / 2, channel / 2]] * 2) if np.ndim(channel) == 0 else np.array(channel)
    if np.ndim(channel) == 0:
        table[1] = table[1, ::-1]
    before = np.array(list(itertools.product((0, 1), repeat=5)))
    seen = np.array(list(itertools.product(range(noisy.num_symbols), repeat=5)))
    replaced = table[before[:, None], seen[None]].prod(axis=2)
    expected = np.exp(process.log_likelihood(before)) @ replaced
    np.testing.assert_allclose(np.exp(noisy.log_likelihood(seen)), expected, rtol=0, atol=1e-12)
    if channel == 0.0:
        np.testing.assert_allclose(noisy.next_token_probs(seen), process.next_token_probs(seen), atol=1e-12)


def test_a_channel_keeps_names_where_symbols_stay_the_same():
    week = processes.days_of_week()
    assert processes.noisy(week, 0.1).vocabulary == week.vocabulary
    merged = processes.noisy(week, np.repeat(np.eye(2), [9, 2], axis=0))
    assert (merged.vocabulary, merged.num_symbols) == (None, 2)
    assert processes.noisy(processes.coin(), np.eye(2), vocabulary=("a", "b")).vocabulary == ("a", "b")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: processes.coin(1.1), "p is 1.1; expected a number in [0, 1]"),
        (lambda: processes.rrxor(p2=-1), "p2 is -1"),
        (lambda: processes.zero_one_random(2), "p is 2"),
        (lambda: processes.days_of_week(-1), "next_day is -1; expected a weight of 0 or more"),
        (lambda: processes.matching_parentheses((0.5,)), "expected 1, then numbers between 0 and 1"),
        (lambda: processes.matching_parentheses(()), "expected 1, then"),
        (lambda: processes.mr_name(0.4, 0.7), "q is 0.7; expected a number in [0, 0.6]"),
        (lambda: processes.mr_name(q=0), "q is 0; expected a positive number"),
        (lambda: processes.noisy(processes.coin(), 1.5), "channel is 1.5"),
        (lambda: processes.noisy(processes.coin(), [[1.0]]), "channel has shape (1, 1); expected (2, F)"),
        (lambda: processes.noisy(processes.coin(), [[1, 0], [1, 1]]), "channel[1] sums to 2, not 1"),
        (lambda: processes.noisy("coin", 0.1), "process is a str; expected an HMM or a GeneralizedHMM"),
        (lambda: processes.mess3(x=0.6), "x is 0.6; expected a number in [0, 0.5]"),
        (lambda: processes.mess3(a=-0.1), "a is -0.1; expected a number in [0, 1]"),
        (lambda: processes.golden_mean(1.5), "p is 1.5"),
        (lambda: processes.even(float("nan")), "p is nan"),
        (lambda: processes.simple_nonunifilar(q=2), "q is 2; expected a number in [0, 1]"),
        (lambda: processes.leaky_rrxor(1.5), "epsilon is 1.5; expected a number in [0, 1]"),
        (lambda: processes.left_right(3, 2, stay=-0.1), "stay is -0.1; expected a number in [0, 1]"),
        (lambda: processes.left_right(0, 2), "num_states is 0; expected an integer in [1"),
        (lambda: processes.random(0, 3), "num_states is 0; expected an integer in [1"),
        (lambda: processes.random(2, 3, alpha=0), "alpha is 0; expected a positive number"),
    ],
)
def test_parameters_out_of_range_are_refused_by_name(make, message):
    with pytest.raises(InputError) as caught:
        make()
    assert message in str(caught.value)
