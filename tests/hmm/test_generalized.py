"""Generalized HMMs: their laws against sums over words, and their samples against these laws."""

import itertools
import pickle

import numpy as np
import pytest
import torch
from scipy import stats

from hmm_datasets import GeneralizedHMM, load_source, processes
from hmm_datasets.errors import InputError

GENERALIZED = {
    "bloch_walk": processes.bloch_walk(),
    "strong": processes.bloch_walk(1.0, 1.3),
    "frdn": processes.frdn(),
    "slow": processes.frdn(0.7, 0.5),
    "moon": processes.moon(),
    "noisy": processes.noisy(processes.moon(), [[0.7, 0.3], [0.0, 1.0], [0.4, 0.6]]),
}
HMMS = {
    "mess3": processes.mess3(0.15, 0.6),
    "even": processes.even(0.3),
    "casino": processes.dishonest_casino(),
    "random": processes.random(4, 3, alpha=0.5, seed=2),
}
LENGTH = 5


def words(num_symbols: int, length: int = LENGTH) -> np.ndarray:
    return np.array(list(itertools.product(range(num_symbols), repeat=length)))


def probability(process: GeneralizedHMM, word) -> float:
    """From the definition."""
    row = process.initial
    for symbol in word:
        row = row @ process.operators[symbol]
    return float(row @ process.final)


@pytest.fixture(params=GENERALIZED)
def process(request) -> GeneralizedHMM:
    return GENERALIZED[request.param]


def test_likelihoods_are_those_of_the_definition(process):
    tokens = words(process.num_symbols)
    expected = np.array([probability(process, word) for word in tokens])
    expected[expected < 1e-15] = 0
    assert expected.sum() == pytest.approx(1, abs=1e-12)
    found = process.log_likelihood(tokens)
    np.testing.assert_allclose(np.exp(found), expected, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(found == -np.inf, expected == 0)


@pytest.mark.thorough
def test_next_token_probs_are_ratios_of_likelihoods(process):
    tokens = words(process.num_symbols)
    found = process.next_token_probs(tokens)
    for word, rows in zip(tokens, found, strict=True):
        for t in range(LENGTH):
            past = probability(process, word[:t])
            if past < 1e-15:
                assert (rows[t] == 0).all()
                continue
            ratios = [probability(process, [*word[:t], x]) / past for x in range(process.num_symbols)]
            np.testing.assert_allclose(rows[t], ratios, rtol=0, atol=1e-10)


def test_predictive_vectors_tell_the_future(process):
    tokens = process.sample(20, 6, seed=5)
    vectors = process.beliefs(tokens)
    assert vectors.shape == (20, 7, process.belief_width)
    np.testing.assert_allclose(vectors @ process.final, 1, atol=1e-12)
    np.testing.assert_allclose(vectors @ process.columns.T, process.next_token_probs(tokens), atol=1e-12)
    np.testing.assert_array_equal(vectors[:, 0], np.broadcast_to(process.initial, vectors[:, 0].shape))


@pytest.mark.parametrize("name", HMMS)
def test_an_hmm_has_the_same_law_to_rounding(name):
    hmm, process = HMMS[name], GeneralizedHMM.from_hmm(HMMS[name])
    assert process.checked_length is None
    tokens = words(hmm.num_symbols, 4)
    long = hmm.sample(5, 300, seed=3)
    for rows in (tokens, long):
        np.testing.assert_allclose(process.log_likelihood(rows), hmm.log_likelihood(rows), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(process.next_token_probs(rows), hmm.next_token_probs(rows), rtol=0, atol=1e-12)
        np.testing.assert_allclose(process.beliefs(rows), hmm.beliefs(rows), rtol=0, atol=1e-12)
    assert process.is_stationary == bool(np.allclose(hmm.start @ hmm.transition, hmm.start))
    losses = process.optimal_loss(6).nats
    np.testing.assert_allclose(losses, hmm.optimal_loss(6).nats, rtol=0, atol=1e-12)


def test_words_are_drawn_with_their_probabilities(process):
    """Chi-square of 100,000 sequences of 5 tokens, significance 1e-4; the seed is fixed."""
    tokens = process.sample(100_000, LENGTH, seed=11, first=1000)
    expected = np.array([max(probability(process, word), 0.0) for word in words(process.num_symbols)])
    numbers = (tokens.astype(np.int64) * process.num_symbols ** np.arange(LENGTH)[::-1]).sum(axis=1)
    counts = np.bincount(numbers, minlength=len(expected))
    assert (counts[expected < 1e-15] == 0).all()
    # Words expected fewer than 5 times are counted together.
    rare = expected * len(tokens) < 5
    cells = np.append(counts[~rare], counts[rare].sum()), np.append(expected[~rare], expected[rare].sum())
    cells = tuple(part[cells[1] > 1e-9] for part in cells)
    result = stats.chisquare(cells[0], cells[1] / cells[1].sum() * len(tokens))
    assert result.pvalue > 1e-4
    wrong = np.roll(cells[1], 1) / cells[1].sum() * len(tokens)
    assert stats.chisquare(cells[0], wrong).pvalue < 1e-8


def test_golden_sequences():
    """A change of these changes the format: sequence `i` of a stream is the same in every version."""
    drawn = {name: GENERALIZED[name].sample(2, 24, seed=7) for name in ("bloch_walk", "frdn", "moon")}
    assert {name: ["".join(map(str, row)) for row in rows] for name, rows in drawn.items()} == {
        "bloch_walk": ["313220212232211231011320", "133212033333223213300033"],
        "frdn": ["101100101111101111010110", "011001011011011001100011"],
        "moon": ["212111111121111121111211", "122111112122111112201021"],
    }


def test_a_sequence_depends_on_seed_and_index_alone(process):
    drawn = process.sample(40, 30, seed=3, first=5, num_threads=1)
    assert drawn.dtype == np.uint8
    for index in (0, 17, 39):
        np.testing.assert_array_equal(process.sample(1, 30, seed=3, first=5 + index)[0], drawn[index])
    np.testing.assert_array_equal(process.sample(20, 30, seed=3, first=6, step=2), drawn[1::2])
    np.testing.assert_array_equal(process.sample(40, 12, seed=3, first=5), drawn[:, :12])
    np.testing.assert_array_equal(process.sample(40, 30, seed=3, first=5, num_threads=3), drawn)
    room = np.empty((40, 30), np.uint32)
    assert process.sample(40, 30, seed=3, first=5, out=room) is room
    np.testing.assert_array_equal(room, drawn)
    assert (process.sample(40, 30, seed=4, first=5) != drawn).any()
    wrapped = process.sample(2, 30, seed=3, first=2**64 - 1)
    np.testing.assert_array_equal(wrapped[1], process.sample(1, 30, seed=3)[0])
    assert process.sample(0, 30).shape == (0, 30)


def test_a_long_sequence_keeps_its_likelihood(process):
    tokens = process.sample(3, 5000, seed=1)
    found = process.log_likelihood(tokens)
    probs = process.next_token_probs(tokens)[:, :-1]
    steps = np.take_along_axis(probs, tokens[..., None].astype(np.int64), axis=2)
    assert (steps > 0).all()
    np.testing.assert_allclose(probs.sum(axis=2), 1, atol=1e-12)
    np.testing.assert_allclose(found, np.log(steps).sum(axis=(1, 2)), rtol=1e-12)


def test_probabilities_of_any_size_keep_their_digits():
    """Far below the smallest likelihood that float64 can hold, and beside tokens that are nearly impossible."""
    rare = np.array([[[1 - 1e-200]], [[1e-200]]])
    process = GeneralizedHMM(rare)
    assert process.log_likelihood([[1] * 7])[0] == pytest.approx(7 * np.log(1e-200), rel=1e-14)
    tiny = GeneralizedHMM([np.diag([1.0, 0.5]), [[0, 0], [5e-309, 0.5]]], initial=[0, 1], final=[1, 1])
    assert tiny.beliefs([[1, 0, 1]])[0, -1].sum() == pytest.approx(1, abs=1e-15)


def test_rare_tokens_one_after_the_other_keep_their_likelihood():
    rare = GeneralizedHMM([[[1e-140]], [[1e-200]], [[1.0]]], [1.0], [1.0])
    words = [[0, 1, 2], [1, 0, 1], [2, 1, 1]]
    expected = [np.log([1e-140, 1e-200, 1.0])[word].sum() for word in words]
    np.testing.assert_allclose(rare.log_likelihood(words), expected, rtol=1e-12)


def test_more_dimensions_than_lanes_gather_follow_the_same_recurrence():
    hmm = processes.random(20, 6, alpha=0.3, seed=1)
    process = GeneralizedHMM.from_hmm(hmm)
    assert process.operators.size > 2048
    tokens = process.sample(21, 60, seed=4)
    np.testing.assert_allclose(process.next_token_probs(tokens), hmm.next_token_probs(tokens), rtol=0, atol=1e-12)
    np.testing.assert_array_equal(process.sample(1, 60, seed=4, first=20)[0], tokens[20])
    np.testing.assert_array_equal(process.beliefs(tokens[20:])[0], process.beliefs(tokens)[20])


def test_nothing_follows_an_impossible_token():
    moon = GENERALIZED["moon"]
    probs, vectors = moon.next_token_probs([[0, 0, 1]])[0], moon.beliefs([[0, 0, 1]])[0]
    assert probs[1, 0] == 0
    assert probs[1].sum() == pytest.approx(1, abs=1e-14)
    np.testing.assert_array_equal(probs[2:], 0)
    np.testing.assert_array_equal(vectors[2:], 0)
    assert moon.log_likelihood([[0, 0, 1], [0, 1, 0]])[0] == -np.inf


def test_tensors_give_tensors(process):
    tokens = torch.from_numpy(process.sample(3, 7).astype(np.int64))
    for method in (process.next_token_probs, process.log_likelihood, process.beliefs):
        found = method(tokens)
        assert isinstance(found, torch.Tensor)
        assert found.dtype == torch.float64
        np.testing.assert_array_equal(found.numpy(), method(tokens.numpy()))
    assert process.next_token_probs(np.zeros((0, 3), int)).shape == (0, 4, process.num_symbols)
    assert process.log_likelihood(np.zeros((2, 0), int)).tolist() == [0, 0]


@pytest.mark.thorough
def test_a_saved_process_comes_back_with_the_same_stream(process, tmp_path):
    named = GeneralizedHMM(**process.arrays(), vocabulary=[f"s{x}" for x in range(process.num_symbols)])
    for index, saved in enumerate((process, named)):
        saved.save_pretrained(tmp_path / str(index))
        loaded = load_source(tmp_path / str(index))
        assert isinstance(loaded, GeneralizedHMM)
        assert loaded.fingerprint() == saved.fingerprint()
        assert loaded.vocabulary == saved.vocabulary
        np.testing.assert_array_equal(loaded.sample(5, 40, seed=2), process.sample(5, 40, seed=2))
    copy = pickle.loads(pickle.dumps(process))
    assert copy.fingerprint() == process.fingerprint()
    assert not copy.operators.flags.writeable
    np.testing.assert_array_equal(copy.sample(5, 40, seed=2), process.sample(5, 40, seed=2))


def test_vectors_that_are_not_given_are_the_fixed_points(process):
    made = GeneralizedHMM(process.operators)
    assert made.is_stationary
    tokens = words(process.num_symbols)
    np.testing.assert_allclose(np.exp(made.log_likelihood(tokens)), np.exp(process.log_likelihood(tokens)), atol=1e-12)
    edges = processes.mess3(0.15, 0.6).edges
    np.testing.assert_array_equal(GeneralizedHMM(edges).final, np.ones(3))


def test_only_a_process_that_starts_in_its_fixed_point_is_stationary():
    bloch = GENERALIZED["bloch_walk"]
    assert bloch.is_stationary
    pure = GeneralizedHMM(bloch.operators, [1, 0, 1], [1, 0, 0])
    assert not pure.is_stationary
    with pytest.raises(InputError, match="is not stationary and has no entropy rate"):
        pure.entropy_rate()
    with pytest.raises(InputError, match="is not stationary, or no operator has rank one"):
        pure.entropy_rate_bounds()
    assert pure.optimal_loss(3).nats[0] < bloch.optimal_loss(3).nats[0] - 0.01


def test_operators_that_give_a_word_a_negative_probability_are_refused_by_the_word():
    operators = np.array(GENERALIZED["bloch_walk"].operators)
    with pytest.raises(InputError, match=r"the word \[0\] a negative probability"):
        GeneralizedHMM(operators, [1, 0, -5], [1, 0, 0])
    # Outside of the disk, -z is impossible only after a few measurements of +z.
    with pytest.raises(InputError, match=r"the word \[1(, 1)+\] a negative probability"):
        GeneralizedHMM(operators[:2] * 2, [1, 0, 2.0], [1, 0, 0])


def changed_basis(process: GeneralizedHMM, basis: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same process with predictive vectors `v @ basis`."""
    inverse = np.linalg.inv(basis)
    return inverse @ process.operators @ basis, process.initial @ basis, inverse @ process.final


def bases(states: int, condition: float, generator: np.random.Generator) -> np.ndarray:
    """A random matrix of the condition number."""
    left, right = (np.linalg.qr(generator.standard_normal((states, states)))[0] for _ in range(2))
    return left @ np.diag(np.geomspace(1, condition, states)) @ right


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["rotated", "condition 1e3", "gaussian", "triangular", "scaled"])
def test_a_process_in_another_basis_is_the_same_process(kind):
    """Rounding along words of probability 0 (half of the words of these processes) is no negative probability."""
    generator, draw = np.random.default_rng(3), np.random.default_rng
    made = {
        "rotated": lambda states: bases(states, 1.0, generator),
        "condition 1e3": lambda states: bases(states, 1e3, generator),
        "gaussian": lambda states: generator.standard_normal((states, states)),
        "triangular": lambda states: np.triu(generator.standard_normal((states, states))) + 3 * np.eye(states),
        "scaled": lambda states: np.diag(10.0 ** draw(generator.integers(1 << 32)).uniform(-5, 5, states)),
    }[kind]
    hmms = [processes.even(), processes.golden_mean(), processes.rrxor(), processes.mess3()]
    for source in (*map(GeneralizedHMM.from_hmm, hmms), processes.moon(), processes.frdn()):
        tokens, losses = source.sample(20, 50, seed=1), source.optimal_loss(4).nats
        for number in range(8):
            operators, initial, final = changed_basis(source, made(source.num_states))
            arguments = (initial, final) if number % 2 or not source.is_stationary else ()
            other = GeneralizedHMM(operators, *arguments)
            # Entries of a basis of condition number c determine probabilities to c^2 times 1e-16.
            np.testing.assert_allclose(other.log_likelihood(tokens), source.log_likelihood(tokens), atol=1e-7)
            np.testing.assert_allclose(other.optimal_loss(4).nats, losses, atol=1e-8)
            assert np.isfinite(source.log_likelihood(other.sample(50, 40, seed=2))).all()


@pytest.mark.thorough
def test_a_negative_probability_in_another_basis_is_refused():
    generator, source = np.random.default_rng(4), processes.bloch_walk()
    broken = source.operators.copy()
    broken[:2, 0, :] += [[0.0, 0.13, 0.0], [0.0, -0.13, 0.0]]
    moved = changed_basis(source, np.eye(3))[1:]
    with pytest.raises(InputError, match="negative probability"):
        GeneralizedHMM(broken, *moved)
    for number in range(40):
        basis = bases(3, 10.0 ** (number % 5), generator)
        inverse = np.linalg.inv(basis)
        with pytest.raises(InputError, match="negative probability"):
            GeneralizedHMM(inverse @ broken @ basis, source.initial @ basis, inverse @ source.final)


def test_operators_that_determine_no_probabilities_are_refused_with_the_reason():
    basis = bases(3, 1e7, np.random.default_rng(5))
    with pytest.raises(
        InputError, match=r"no better than to .*; expected 1e-3 or less, as in a basis of smaller condi"
    ):
        GeneralizedHMM(*changed_basis(processes.moon(), basis))


def test_a_negative_probability_beyond_the_words_checked_is_met_as_an_error(monkeypatch):
    from hmm_datasets.hmm.analysis import predictive_vectors

    monkeypatch.setattr(predictive_vectors, "SEARCH_DEPTH", 2)
    operators = np.array(GENERALIZED["bloch_walk"].operators)[:2] * 2
    process = GeneralizedHMM(operators, [1, 0, 1.05], [1, 0, 0])
    assert process.checked_length == 2
    for method in (process.next_token_probs, process.log_likelihood, process.beliefs):
        with pytest.raises(
            InputError, match=r"tokens\[0\] or one of the rows after it: a token has a negative probability"
        ):
            method([[0] * 40, [1] * 40])
    with pytest.raises(InputError, match="a sampled sequence: a token has a negative probability"):
        process.sample(100, 100)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"operators": [[1.0]]}, "operators has shape (1, 1); expected 3 axes"),
        ({"operators": np.ones((2, 3, 2))}, "operators has shape (2, 3, 2); expected (E, H, H)"),
        ({"operators": [[[np.nan]]]}, "operators[0, 0, 0] is nan; expected a finite number"),
        (
            {"operators": [[[0.5]], [[0.4]]]},
            "operators.sum(0) has no fixed point that could be final, to 1e-05; give final=",
        ),
        ({"operators": [np.eye(2)], "final": [1, 1]}, "has more than one fixed point that could be initial"),
        (
            {"operators": [[[0.5]], [[0.4]]], "final": [1]},
            "operators.sum(0) @ final is 0.9 in row 0, where final is 1",
        ),
        ({"operators": [[[0.5]], [[0.5]]], "initial": [2]}, "initial @ final is 2, not 1; divide initial by it"),
        ({"operators": [[[0.5]], [[0.5]]], "initial": [1, 0]}, "initial has shape (2,); expected (1,)"),
        ({"operators": [[[0.5]], [[0.5]]], "vocabulary": "abc"}, "vocabulary has 3 names; expected 2"),
        ({"operators": [[[1, 1], [0, 1]]], "final": [1, 0]}, "no stationary vector with initial @ final = 1"),
    ],
)
def test_what_is_no_generalized_hmm_is_refused(arguments, message):
    with pytest.raises(InputError) as caught:
        GeneralizedHMM(**arguments)
    assert message in str(caught.value)


def test_wrong_tokens_and_sources_are_refused():
    with pytest.raises(InputError, match=r"tokens\[0, 1\] is 4"):
        GENERALIZED["bloch_walk"].next_token_probs([[0, 4]])
    with pytest.raises(InputError, match="hmm is a GeneralizedHMM; expected an HMM"):
        GeneralizedHMM.from_hmm(GENERALIZED["moon"])
    with pytest.raises(InputError, match="seed is -1"):
        GENERALIZED["moon"].sample(1, 1, seed=-1)
