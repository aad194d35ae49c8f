"""The tilted HMM against sums over all sequences, and at its limits."""

import itertools
import json
import pickle

import numpy as np
import pytest
import torch
from brute_force import LEFT_TO_RIGHT, random_edges
from safetensors.numpy import load_file, save_file

from hmm_datasets.errors import InputError
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.model import HMM
from hmm_datasets.hmm.tilted import TiltedHMM

HMMS = {
    "state": processes.random(3, 3, seed=1),
    "zeros": LEFT_TO_RIGHT,
    "edge": random_edges(3, 2, seed=4, zeros=0.3),
    "golden mean": processes.golden_mean(0.3),
}
LENGTH = 5
GOLDEN = {
    "symbols": ["1010001111111111", "1111111111101111", "2111211011111111"],
    "pairs": ["0001111111101111", "0000010000000000", "0011000000000000"],
}


def words(num_symbols: int, length: int) -> np.ndarray:
    return np.array(list(itertools.product(range(num_symbols), repeat=length)))


def sums_of_rewards(rewards: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    if rewards.ndim == 1:
        return np.array([sum(rewards[x] for x in row) for row in tokens])
    return np.array([sum(rewards[x, y] for x, y in itertools.pairwise(row)) for row in tokens])


@pytest.fixture(params=list(HMMS))
def hmm(request) -> HMM:
    return HMMS[request.param]


@pytest.fixture(params=[1, 2], ids=["symbols", "pairs"])
def tilted(request, hmm) -> TiltedHMM:
    rewards = np.random.default_rng(request.param).normal(size=(hmm.num_symbols,) * request.param)
    return TiltedHMM(hmm, rewards, 0.4, LENGTH)


@pytest.fixture
def exact(tilted) -> tuple[np.ndarray, np.ndarray, float]:
    """All sequences, their probabilities under the tilted HMM, and `Z`, by their definition."""
    tokens = words(tilted.num_symbols, LENGTH)
    weights = np.exp(tilted.hmm.log_likelihood(tokens) + sums_of_rewards(tilted.rewards, tokens) / tilted.beta)
    return tokens, weights / weights.sum(), weights.sum()


def test_partition_reward_and_divergence_are_the_sums_over_all_sequences(tilted, exact):
    tokens, probs, partition = exact
    rewards = sums_of_rewards(tilted.rewards, tokens)
    np.testing.assert_allclose(tilted.reward(tokens), rewards, atol=1e-12)
    assert tilted.log_partition == pytest.approx(np.log(partition), abs=1e-10)
    assert tilted.expected_reward == pytest.approx(probs @ rewards, abs=1e-10)
    possible = probs > 0
    log_ratio = np.log(probs[possible]) - tilted.hmm.log_likelihood(tokens[possible])
    assert tilted.kl_to_reference == pytest.approx(probs[possible] @ log_ratio, abs=1e-10)


def test_the_law_is_the_tilted_one_for_sequences_and_their_beginnings(tilted, exact):
    tokens, probs, _ = exact
    np.testing.assert_allclose(np.exp(tilted.log_likelihood(tokens)), probs, atol=1e-10)
    for size in range(LENGTH):
        beginnings = words(tilted.num_symbols, size)
        expected = probs.reshape(len(beginnings), -1).sum(1)
        np.testing.assert_allclose(np.exp(tilted.log_likelihood(beginnings)), expected, atol=1e-10)
        rows = tilted.next_token_probs(beginnings)
        assert rows.shape == (len(beginnings), size + 1, tilted.num_symbols)
        following = probs.reshape(len(beginnings), tilted.num_symbols, -1).sum(2)
        following = np.divide(following, expected[:, None], out=np.zeros_like(following), where=expected[:, None] > 0)
        np.testing.assert_allclose(rows[:, -1], following, atol=1e-10)


def test_after_the_last_token_the_hmm_goes_on(tilted, exact):
    tokens = exact[0]
    np.testing.assert_allclose(
        tilted.next_token_probs(tokens)[:, -1], tilted.hmm.next_token_probs(tokens)[:, -1], atol=1e-12
    )


def test_tensors_give_tensors(tilted):
    tokens = torch.from_numpy(tilted.sample(4, seed=1).astype(np.int64))
    for method in (tilted.next_token_probs, tilted.log_likelihood, tilted.reward):
        assert torch.equal(method(tokens), torch.from_numpy(method(tokens.numpy())))


def test_samples_follow_the_law(tilted, exact):
    _, probs, _ = exact
    count = 20_000
    drawn = tilted.sample(count, seed=7)
    numbers = np.ravel_multi_index(tuple(drawn.T.astype(int)), (tilted.num_symbols,) * LENGTH)
    observed = np.bincount(numbers, minlength=len(probs))
    assert observed[probs == 0].sum() == 0
    often = count * probs > 5
    expected = np.append(count * probs[often], count * probs[~often].sum() + 1e-9)
    found = np.append(observed[often], observed[~often].sum())
    chi_square = ((found - expected) ** 2 / expected).sum()
    freedom = often.sum()
    assert chi_square < freedom + 4.5 * np.sqrt(2 * freedom)


def test_a_sequence_depends_on_seed_and_index_alone(tilted):
    drawn = tilted.sample(40, seed=3, first=5)
    assert drawn.dtype == np.uint8
    for index in (0, 17, 39):
        np.testing.assert_array_equal(tilted.sample(1, seed=3, first=5 + index)[0], drawn[index])
    np.testing.assert_array_equal(tilted.sample(20, seed=3, first=6, step=2), drawn[1::2])
    assert (tilted.sample(40, seed=4, first=5) != drawn).any()
    assert tilted.sample(0).shape == (0, LENGTH)


def test_golden_sequences():
    """A change of these changes the format: sequence `i` of a stream is the same in every version."""
    tilted = TiltedHMM(processes.mess3(0.05, 0.85), [0, 0.3, -0.3], 1.0, 16)
    assert ["".join(map(str, row)) for row in tilted.sample(3, seed=1)] == GOLDEN["symbols"]
    pairs = TiltedHMM(processes.random(4, 3, seed=1), np.eye(3), 0.5, 16)
    assert ["".join(map(str, row)) for row in pairs.sample(3, seed=1, first=2**40)] == GOLDEN["pairs"]


def test_a_large_beta_gives_the_hmm(hmm):
    for shape in (hmm.num_symbols, (hmm.num_symbols,) * 2):
        tilted = TiltedHMM(hmm, np.linspace(-1, 1, np.prod(shape)).reshape(shape), 1e9, LENGTH)
        tokens = hmm.sample(50, LENGTH, seed=1)
        np.testing.assert_allclose(tilted.next_token_probs(tokens), hmm.next_token_probs(tokens), atol=1e-7)
        assert abs(tilted.log_partition) < 1e-7
        assert tilted.kl_to_reference == pytest.approx(0, abs=1e-12)
        if hmm.edges is None:  # the same random numbers choose symbols and states
            assert (tilted.sample(50, seed=1) == tokens).mean() > 0.99


def test_a_small_beta_gives_the_best_possible_sequence(tilted, exact):
    tokens, probs, _ = exact
    possible = tokens[probs > 0]
    best = sums_of_rewards(tilted.rewards, possible).max()
    greedy = TiltedHMM(tilted.hmm, tilted.rewards, 1e-3, LENGTH)
    assert greedy.expected_reward == pytest.approx(best, abs=1e-9)
    np.testing.assert_allclose(greedy.reward(greedy.sample(20)), best)
    assert greedy.beta * greedy.log_partition == pytest.approx(best, abs=0.02)


def test_rewards_far_above_beta_leave_distributions():
    hmm = processes.coin(0.75)
    for beta in (1e-3, 1e-6, 1e-9):
        tilted = TiltedHMM(hmm, [[1.0, 1.0], [0.0, 0.0]], beta, 4)
        probs = tilted.next_token_probs([[0, 0, 0]])
        np.testing.assert_allclose(probs.sum(-1), 1, atol=1e-12)
        np.testing.assert_allclose(probs[0, 3], [0.75, 0.25], atol=1e-6)
        assert (tilted.sample(50)[:, 1:3] == 0).all()
    with pytest.raises(InputError, match=r"expected a ratio of at most 1e\+09"):
        TiltedHMM(hmm, [1.0, 0.0], 1e-10, 4)


def separate_parts() -> HMM:
    """Two parts that no token tells apart but 2, which the unlikely part alone emits."""
    return HMM(start=[0.5, 0.5], transition=np.eye(2), emission=[[0.9, 0.1, 0.0], [0.1, 0.8, 0.1]])


@pytest.mark.thorough
@pytest.mark.parametrize("beta", [1e-3, 1.0, 1e6])
@pytest.mark.parametrize(
    ("hmm", "rewards"),
    [
        (processes.golden_mean(), [-1.0, 1.0]),
        (processes.random(4, 3, seed=2), np.eye(3)),
        (separate_parts(), [0.0, -1.0, 1.0]),
    ],
)
def test_a_thousand_tokens_neither_overflow_nor_underflow(hmm, rewards, beta):
    tilted = TiltedHMM(hmm, rewards, beta, 1000)
    tokens = tilted.sample(400, seed=1)
    sampled = tilted.reward(tokens)
    assert sampled.mean() == pytest.approx(tilted.expected_reward, abs=4.5 * sampled.std() / 20 + 1e-6)
    assert 0 <= tilted.kl_to_reference < np.inf
    tokens = tokens[:3]
    probs = tilted.next_token_probs(tokens)
    np.testing.assert_allclose(probs.sum(-1), 1, atol=1e-9)
    log_likelihood = np.log(np.take_along_axis(probs[:, :-1], tokens[..., None].astype(int), -1)).sum((1, 2))
    # log q = log p + r / beta - log Z
    expected = hmm.log_likelihood(tokens) + tilted.reward(tokens) / beta - tilted.log_partition
    np.testing.assert_allclose(log_likelihood, expected, rtol=1e-9, atol=1e-6)


@pytest.mark.thorough
def test_a_state_that_the_past_makes_nearly_impossible_is_not_lost():
    """After a thousand zeros the part that can still emit 2 has a belief of 1e-954, below float64."""
    hmm, length = separate_parts(), 1001
    tilted = TiltedHMM(hmm, [0.0, 0.0, 4000.0], 1.0, length)
    zeros = np.zeros((1, length - 1), dtype=int)
    np.testing.assert_allclose(tilted.next_token_probs(zeros)[0, -1], [0, 0, 1], atol=1e-12)


def test_the_entropy_agrees_with_the_sum_over_all_sequences(tilted, exact):
    probs = exact[1][exact[1] > 0]
    value, error = tilted.entropy(4000, seed=1)
    assert abs(value - -(probs * np.log(probs)).sum()) < 4.5 * error + 1e-9


def test_the_divergence_of_a_policy_is_exact_and_never_negative(tilted, exact):
    tokens, _, _ = exact
    hmm = tilted.hmm
    policy = hmm.log_likelihood(tokens)
    possible = policy > -np.inf
    with np.errstate(divide="ignore"):
        log_probs = np.log(hmm.next_token_probs(tokens)[:, :-1])
    divergence = tilted.divergence(log_probs, tokens)
    assert divergence.shape == tokens.shape
    assert (divergence >= 0).all()
    law = np.exp(policy[possible])
    expected = law @ (policy[possible] - tilted.log_likelihood(tokens[possible]))
    assert law @ divergence[possible].sum(1) == pytest.approx(expected, abs=1e-10)
    # The regret of the HMM itself is what the optimum gains: beta log Z - E_p[r].
    regret = tilted.beta * tilted.log_partition - law @ tilted.reward(tokens[possible])
    assert tilted.beta * expected == pytest.approx(regret, abs=1e-10)
    with np.errstate(divide="ignore"):
        own = np.log(tilted.next_token_probs(tokens[possible])[:, :-1])
    np.testing.assert_allclose(tilted.divergence(own, tokens[possible]), 0, atol=1e-12)


def test_an_impossible_symbol_of_a_policy_costs_infinitely_much():
    tilted = TiltedHMM(processes.golden_mean(), [0.0, 1.0], 1.0, 3)
    assert tilted.divergence(np.log(np.full((1, 2, 2), 0.5)), [[0, 1]]).tolist()[0][1] == np.inf


@pytest.mark.parametrize("nothing", [-800.0, -3.4e38, -np.inf])
def test_an_impossible_symbol_whose_probability_underflows_costs_nothing(nothing):
    tilted = TiltedHMM(processes.golden_mean(), [0.0, 1.0], 1.0, 3)
    probs = tilted.next_token_probs([[0, 1]])[:, :-1]
    own = np.where(probs > 0, np.log(np.where(probs > 0, probs, 1.0)), nothing)
    assert tilted.divergence(own, [[0, 1]]).max() < 1e-12


def test_it_comes_back_from_disk_and_from_a_pickle(tilted, tmp_path):
    tilted.save_pretrained(tmp_path)
    for back in (TiltedHMM.from_pretrained(tmp_path), pickle.loads(pickle.dumps(tilted))):
        assert back.fingerprint() == tilted.fingerprint()
        assert (back.hmm, back.beta, back.length) == (tilted.hmm, tilted.beta, tilted.length)
        assert not back.rewards.flags.writeable
        np.testing.assert_array_equal(back.sample(10, seed=2), tilted.sample(10, seed=2))
    others = [
        TiltedHMM(tilted.hmm, tilted.rewards, 0.5, LENGTH),
        TiltedHMM(tilted.hmm, tilted.rewards, 0.4, LENGTH + 1),
        TiltedHMM(tilted.hmm, tilted.rewards + 1, 0.4, LENGTH),
    ]
    assert len({tilted.fingerprint(), *(other.fingerprint() for other in others)}) == 4


def test_bad_input_is_reported_in_one_line():
    hmm = processes.mess3(0.15, 0.6)

    def message(*arguments) -> str:
        with pytest.raises(InputError) as caught:
            TiltedHMM(*arguments)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    ones = [1.0, 1.0, 1.0]
    assert message(np.eye(2), ones, 1.0, 4) == "hmm is a ndarray; expected an HMM"
    assert message(hmm, [1.0, 2.0], 1.0, 4) == (
        "rewards has shape (2,); expected (3,), one per symbol, or (3, 3), one per pair of neighbouring symbols"
    )
    assert message(hmm, [0, np.nan, 0], 1.0, 4) == "rewards[1] is nan; expected a finite number"
    assert message(hmm, np.diag([0, 0, np.inf]), 1.0, 4) == "rewards[2, 2] is inf; expected a finite number"
    assert (
        message(hmm, [[1], [2, 3]], 1.0, 4)
        == "rewards is not an array of numbers, since its rows have unequal lengths"
    )
    for beta in (0, -1.0, np.nan, np.inf, "large", None):
        assert message(hmm, ones, beta, 4).startswith(f"beta is {beta}; expected a number above 0")
    assert message(hmm, ones, 1e-200, 4) == (
        "beta is 1e-200 and the largest reward 1; expected a ratio of at most 1e+09, beside which logarithms of "
        "probabilities keep seven digits"
    )
    for length in (0, -3, 2.5):
        assert message(hmm, ones, 1.0, length) == f"length is {length}; expected an integer in [1, 2**32)"
    tilted = TiltedHMM(hmm, ones, 1.0, 4)
    for method in (tilted.next_token_probs, tilted.log_likelihood, tilted.reward):
        with pytest.raises(InputError, match=r"tokens have shape \(1, 5\); expected at most length = 4 columns"):
            method([[0, 1, 2, 0, 1]])
        with pytest.raises(InputError, match=r"tokens\[0, 1\] is 3; the symbols of this HMM are 0..2"):
            method([[0, 3]])
    with pytest.raises(InputError, match=r"log_probs has shape \(1, 2, 4\); expected \(1, 2, 3\)"):
        tilted.divergence(np.zeros((1, 2, 4)), [[0, 1]])
    with pytest.raises(InputError, match="log_probs: probabilities sum to 3, not 1; take the log_softmax"):
        tilted.divergence(np.zeros((1, 2, 3)), [[0, 1]])


def test_folders_that_are_not_of_a_tilted_hmm_are_refused(tmp_path):
    def message(load) -> str:
        with pytest.raises(InputError) as caught:
            load(tmp_path)
        return str(caught.value)

    hmm = processes.mess3(0.15, 0.6)
    hmm.save_pretrained(tmp_path)
    assert "model_type 'hmm', format_version 1; expected 'tilted_hmm' and 1" in message(TiltedHMM.from_pretrained)
    TiltedHMM(hmm, [0, 1, 2], 1.0, 4).save_pretrained(tmp_path)
    assert "model_type 'tilted_hmm', format_version 1; expected 'hmm' and 1" in message(HMM.from_pretrained)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "beta": 2.0}))
    assert "tables have fingerprint" in message(TiltedHMM.from_pretrained)
    del config["beta"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "config.json: has no beta; copy the whole folder again" in message(TiltedHMM.from_pretrained)
    (tmp_path / "config.json").write_text(json.dumps({**config, "beta": 1.0}))
    tables = load_file(tmp_path / "model.safetensors")
    del tables["rewards"]
    save_file(tables, tmp_path / "model.safetensors")
    assert message(TiltedHMM.from_pretrained).endswith(
        "contains edges, start; expected the tables of an HMM, and rewards"
    )
