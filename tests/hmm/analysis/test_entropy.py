import itertools

import brute_force
import numpy as np
import pytest
from brute_force import likelihood, random_edges
from hypothesis import given, settings
from hypothesis import strategies as st

from hmm_datasets.errors import InputError
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.analysis import entropy, predictors
from hmm_datasets.hmm.analysis.entropy import excess_entropy
from hmm_datasets.hmm.model import HMM


def error(function, *arguments, **settings) -> str:
    with pytest.raises(InputError) as caught:
        function(*arguments, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# The rate


def binary_entropy(p: float) -> float:
    return -sum(q * np.log(q) for q in (p, 1 - p) if q > 0)


@pytest.mark.parametrize(
    ("hmm", "nats"),
    [
        (processes.golden_mean(), 2 / 3 * np.log(2)),
        (processes.golden_mean(0.3), binary_entropy(0.3) / (2 - 0.3)),
        (processes.even(), 2 / 3 * np.log(2)),
        (processes.even(0.8), binary_entropy(0.8) / (2 - 0.8)),
        (processes.rrxor(), 2 / 3 * np.log(2)),
        (processes.zero_one_random(), np.log(2) / 3),
        (HMM(transition=[[1.0]], emission=[[0.2, 0.5, 0.3]]), -sum(p * np.log(p) for p in (0.2, 0.5, 0.3))),
        (HMM(transition=np.roll(np.eye(3), 1, axis=1), emission=np.eye(3)), 0.0),
    ],
)
def test_the_entropy_rate_of_a_unifilar_hmm_is_its_closed_form(hmm, nats):
    assert hmm.is_unifilar()
    value, standard_error = hmm.entropy_rate()
    assert value == pytest.approx(nats, abs=1e-12)
    assert standard_error == 0


def block_entropies(hmm: HMM, length: int) -> tuple[float, float]:
    """Entropies of the words of `length` symbols: alone, and given the state they start from."""

    def entropy(start) -> float:
        weights = np.asarray(start)[None]
        matrices = np.stack([HMM(**hmm.tables()).parameters().edges[x].numpy() for x in range(hmm.num_symbols)])
        for _ in range(length):
            weights = np.einsum("wi,xij->wxj", weights, matrices).reshape(-1, hmm.num_states)
        distribution = weights.sum(1)
        distribution = distribution[distribution > 0]
        return float(-(distribution * np.log(distribution)).sum())

    steady = hmm.stationary()
    given_state = sum(p * entropy(row) for p, row in zip(steady, np.eye(hmm.num_states), strict=True))
    return entropy(steady), given_state


def entropy_rate_bounds(hmm: HMM, length: int) -> tuple[float, float]:
    """`H(X_n | X_1 .. X_{n-1}, S_1) <= h <= H(X_n | X_1 .. X_{n-1})` (Cover and Thomas, theorem 4.5.1)."""
    (upper, lower), (shorter, shorter_lower) = block_entropies(hmm, length), block_entropies(hmm, length - 1)
    return lower - shorter_lower, upper - shorter


def test_block_entropies_are_those_of_all_words():
    hmm = processes.mess3(0.15, 0.6)
    words = [likelihood(hmm, (a, b)) for a in range(3) for b in range(3)]
    assert block_entropies(hmm, 2)[0] == pytest.approx(-sum(p * np.log(p) for p in words), abs=1e-12)


@pytest.mark.parametrize(
    ("hmm", "length", "width"), [(processes.mess3(0.15, 0.6), 10, 1e-4), (processes.simple_nonunifilar(), 16, 1e-4)]
)
def test_the_estimate_of_a_nonunifilar_hmm_lies_within_its_error_of_brute_force(hmm, length, width):
    assert not hmm.is_unifilar()
    low, high = entropy_rate_bounds(hmm, length)
    assert 0 <= high - low < width, "the bounds are too wide to test anything"
    value, standard_error = hmm.entropy_rate(num_sequences=128, length=1024, burn_in=64, seed=5)
    assert 0 < standard_error < 2e-3
    assert low - 4 * standard_error < value < high + 4 * standard_error


def test_the_estimate_does_not_depend_on_the_start():
    hmm = processes.mess3(0.15, 0.6)
    elsewhere = HMM(edges=hmm.edges, start=[1, 0, 0])
    settings = {"num_sequences": 8, "length": 64, "burn_in": 16}
    np.testing.assert_allclose(elsewhere.entropy_rate(**settings), hmm.entropy_rate(**settings), rtol=1e-9)


def test_an_estimate_without_tokens_is_refused():
    assert "expected 0 <= burn_in < length" in error(processes.mess3(0.15, 0.6).entropy_rate, length=64, burn_in=64)
    assert "num_sequences is 1; expected an integer in [2" in error(
        processes.mess3(0.15, 0.6).entropy_rate, num_sequences=1
    )


def test_what_is_left_of_a_left_right_chain_is_the_entropy_of_its_last_row():
    hmm = processes.left_right(4, 5, stay=0.7, seed=3)
    last = hmm.emission[-1]
    value, standard_error = hmm.entropy_rate(num_sequences=4, length=20, burn_in=10)
    assert value == pytest.approx(float(-(last * np.log(last)).sum()), abs=1e-12)
    assert standard_error < 1e-12


# Bounds on it


@pytest.mark.parametrize(
    "hmm", [processes.mess3(0.15, 0.6), processes.simple_nonunifilar(), random_edges(3, 3, seed=8, zeros=0.6)]
)
@pytest.mark.parametrize("length", [1, 2, 5])
def test_bounds_are_those_of_all_words(hmm, length):
    bounds = hmm.entropy_rate_bounds(length)
    low, high = entropy_rate_bounds(hmm, length)
    assert bounds.lower == pytest.approx(low, abs=1e-11)
    assert bounds.upper == pytest.approx(high, abs=1e-11)
    assert (bounds.lower_error, bounds.upper_error) == (0, 0)


@pytest.mark.thorough
@given(seed=st.integers(0, 10**6), edges=st.booleans())
@settings(deadline=None, derandomize=True, max_examples=15)
def test_bounds_close_in_on_the_rate_from_both_sides(seed, edges):
    hmm = random_edges(3, 2, seed=seed, zeros=0.3) if edges else processes.random(3, 2, alpha=0.5, seed=seed)
    bounds = [hmm.entropy_rate_bounds(length) for length in (1, 3, 6, 9)]
    lower, upper = [b.lower for b in bounds], [b.upper for b in bounds]
    # Merged beliefs differ by rounding.
    assert (np.diff(lower) > -1e-9).all()
    assert (np.diff(upper) < 1e-9).all()
    assert lower[-1] <= upper[-1] + 1e-9


@pytest.mark.parametrize("hmm", [processes.rrxor(), processes.even(0.3), processes.zero_one_random()])
def test_bounds_of_a_unifilar_hmm_are_its_rate(hmm):
    bounds = hmm.entropy_rate_bounds()
    assert bounds.lower == bounds.upper == hmm.entropy_rate().value
    assert (bounds.lower_error, bounds.upper_error) == (0, 0)


def test_a_closed_tree_gives_exact_bounds_at_any_length():
    # Two states that show the same: not unifilar, but one belief is all there is after the first symbol.
    hmm = HMM(transition=[[0.3, 0.7], [0.3, 0.7]], emission=[[0.9, 0.1], [0.2, 0.8]])
    assert not hmm.is_unifilar()
    bounds = hmm.entropy_rate_bounds(10_000)
    assert (bounds.lower_error, bounds.upper_error) == (0, 0)
    p = 0.3 * 0.9 + 0.7 * 0.2
    assert bounds.upper == pytest.approx(binary_entropy(p), abs=1e-12)
    assert bounds.lower == pytest.approx(binary_entropy(p), abs=1e-12)


@pytest.mark.parametrize("hmm", [processes.leaky_rrxor(0.1), processes.mess3(0.05, 0.85)])
def test_sampled_bounds_lie_within_their_errors_of_the_exact_ones(hmm, monkeypatch):
    # Positions 4 and 5 alone, exactly, against the estimate over just these positions.
    exact = [hmm.entropy_rate_bounds(length) for length in (5, 6)]
    monkeypatch.setattr(entropy, "_MAX_STATES", 1)
    found = hmm.entropy_rate_bounds(6, burn_in=4, num_sequences=2000, seed=3)
    for side in ("lower", "upper"):
        error = getattr(found, f"{side}_error")
        assert 0 < error < 0.01
        expected = np.mean([getattr(bounds, side) for bounds in exact])
        assert getattr(found, side) == pytest.approx(expected, abs=4 * error)


def test_long_sequences_leave_the_bounds_no_gap():
    hmm = processes.mess3(0.15, 0.6)
    bounds = hmm.entropy_rate_bounds(256, burn_in=128, num_sequences=64)
    assert bounds.upper_error < 1e-3
    assert bounds.upper - bounds.lower < 1e-4
    rate = hmm.entropy_rate(length=256, burn_in=128, num_sequences=64)
    assert bounds.upper == pytest.approx(rate.value, abs=4 * rate.standard_error)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "hmm",
    [
        processes.mess3(0.15, 0.6),
        processes.rrxor(),
        processes.weather(),
        processes.left_right(3, 2, seed=1),
        random_edges(3, 2, seed=8),
    ],
)
def test_the_optimal_loss_is_that_of_all_words(hmm):
    found = hmm.optimal_loss(5)
    np.testing.assert_allclose(found.nats, brute_force.optimal_loss(hmm, 5), atol=1e-11)
    assert (found.standard_error == 0).all()


def test_the_optimal_loss_of_rrxor_is_exact_at_any_length_and_ends_at_the_rate():
    found = processes.rrxor().optimal_loss(400)
    assert (found.standard_error == 0).all()
    assert found.nats[0] == pytest.approx(np.log(2), abs=1e-12)
    assert (np.diff(found.nats) < 1e-9).all()
    assert found.nats[-1] == pytest.approx(2 / 3 * np.log(2), abs=1e-9)


def test_sampled_positions_lie_within_their_errors_of_the_exact_ones(monkeypatch):
    hmm = processes.random(3, 6, alpha=0.5, seed=4)
    exact = hmm.optimal_loss(6)
    assert (exact.standard_error == 0).all()
    monkeypatch.setattr(entropy, "_MAX_STATES", 1 + 6 + 36)
    mixed = hmm.optimal_loss(6, num_sequences=4000, seed=2)
    assert (mixed.standard_error[:3] == 0).all()
    assert (mixed.standard_error[3:] > 0).all()
    np.testing.assert_allclose(mixed.nats[:3], exact.nats[:3], atol=1e-12)
    assert (np.abs(mixed.nats - exact.nats)[3:] < 4 * mixed.standard_error[3:]).all()


def test_the_bayes_predictor_reaches_the_optimal_loss_and_no_other_does():
    hmm = processes.mess3(0.05, 0.85)
    loss = hmm.optimal_loss(8)
    for name, distribution in predictors.predictors_of(hmm).items():
        found = predictors.cross_entropy(distribution, hmm.sample(20_000, 8, seed=1), show_progress=False)
        if name == "bayes":
            assert (np.abs(found.nats - loss.nats) < 4 * found.standard_error + 1e-12).all()
        else:
            assert found.nats[-1] > loss.nats[-1] + 4 * found.standard_error[-1]


@pytest.mark.parametrize("hmm", [processes.mess3(0.15, 0.6), processes.rrxor()])
def test_no_positions_have_no_loss(hmm):
    assert hmm.optimal_loss(0).nats.shape == (0,)
    assert hmm.optimal_loss(1).nats.tolist() == pytest.approx(brute_force.optimal_loss(hmm, 1))


@pytest.mark.thorough
def test_estimates_of_nothing_are_refused():
    many = processes.random(3, 200)
    assert "length is -1; expected an integer" in error(many.optimal_loss, -1)
    assert "num_sequences is 1; expected an integer in [2" in error(many.optimal_loss, 9, num_sequences=1)
    assert "expected 0 <= burn_in < length" in error(many.entropy_rate_bounds, 64, burn_in=64)
    assert "length is 0; expected an integer in [1" in error(many.entropy_rate_bounds, 0)


@pytest.mark.thorough
@pytest.mark.parametrize("hmm", [processes.umbrella(), processes.simple_nonunifilar(), processes.dishonest_casino()])
def test_an_estimate_agrees_with_its_bounds(hmm):
    rate, bounds = hmm.entropy_rate(num_sequences=16), hmm.entropy_rate_bounds(length=64, num_sequences=4)
    found, around = entropy.made_to_agree(rate, bounds)
    assert around.lower <= found.value <= around.upper
    assert around.upper - around.lower == pytest.approx(bounds.upper - bounds.lower, abs=1e-12)
    # What is known better stays.
    exact = bounds.lower_error <= rate.standard_error
    assert (around == bounds) if exact else (found == rate)
    assert found.standard_error == rate.standard_error


@pytest.mark.thorough
def test_bounds_that_are_nearly_equal_are_not_exchanged_by_rounding():
    bounds = processes.weather().entropy_rate_bounds(length=512)
    assert bounds.lower <= bounds.upper


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["mess3", "dishonest_casino", "random"])
def test_bounds_on_the_entropy_rate_never_widen_with_length(name, monkeypatch):
    """Where the tree of mixed states is small its bounds hold at every length; the gap of samples only shrinks."""
    monkeypatch.setattr(entropy, "_MAX_STATES", 2000)
    hmm = processes.random(8, 6, alpha=0.3, seed=2) if name == "random" else getattr(processes, name)()
    found = [hmm.entropy_rate_bounds(length, num_sequences=64) for length in (1, 2, 4, 8, 12, 24, 48)]
    widths = np.array([bounds.upper - bounds.lower for bounds in found])
    assert (np.diff(widths) <= 1e-15).all()
    rate = hmm.entropy_rate_bounds(256)
    for bounds in found:
        assert bounds.lower - 4 * bounds.lower_error <= rate.upper + 4 * rate.upper_error
        assert bounds.upper + 4 * bounds.upper_error >= rate.lower - 4 * rate.lower_error


@pytest.mark.thorough
def test_the_excess_entropy_is_that_of_blocks():
    """`H[X_1 .. X_n] - n h`, of blocks that are enumerated, and closed forms."""
    golden, even = processes.golden_mean(), processes.even()
    assert excess_entropy(golden).value == pytest.approx(0.63651417 - 0.46209812, abs=1e-8)
    assert excess_entropy(even).value == pytest.approx(0.63651417, abs=1e-8)
    assert excess_entropy(processes.coin(0.5)) == (0.0, 0.0)
    hmm = processes.mess3()
    found = excess_entropy(hmm)
    words = np.array(list(itertools.product(range(3), repeat=10)))
    logs = hmm.log_likelihood(words)
    blocks = -(np.exp(logs) * logs).sum()
    rate = hmm.entropy_rate_bounds(11)
    assert found.error < 1e-4
    assert found.value == pytest.approx(blocks - 10 * (rate.lower + rate.upper) / 2, abs=1e-4)
    assert found.value == pytest.approx(0.3957, abs=1e-4)
