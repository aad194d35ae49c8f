import numpy as np
import pytest
from composed_examples import random_rows

from hmm_datasets import FactoredProcess, MarkovChain, RandomChains
from hmm_datasets.errors import InputError
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.sampling import derived_seed
from hmm_datasets.hmm.structured import factored
from hmm_datasets.hmm.structured.markov import random_markov_chain

THREE = [processes.mess3(0.15, 0.6), processes.golden_mean(0.3), processes.random(3, 2, seed=1)]


def test_codes_are_mixed_radix_with_the_last_factor_least_significant():
    process = FactoredProcess(THREE)
    assert np.ravel_multi_index((2, 1, 0), process.sizes) == (2 * 2 + 1) * 2
    codes = np.arange(12).reshape(3, 4)
    np.testing.assert_array_equal(process.factor_tokens(codes), np.unravel_index(codes, process.sizes))


def test_independent_factors_are_drawn_by_themselves_with_derived_seeds():
    process = FactoredProcess(THREE)
    parts = process.factor_tokens(process.sample(9, 15, seed=4, first=3))
    for k, factor in enumerate(THREE):
        np.testing.assert_array_equal(parts[k], factor.sample(9, 15, seed=derived_seed(4, k), first=3))


def test_equal_factors_are_drawn_independently():
    process = FactoredProcess([processes.mess3(0.15, 0.6)] * 2)
    codes = process.sample(2000, 20, seed=4)
    together = np.bincount(codes.ravel(), minlength=9) / codes.size
    # Five standard errors of a share of 1/9 among 40,000 tokens; neighbours in a sequence are nearly independent.
    np.testing.assert_allclose(together, np.full(9, 1 / 9), atol=5 * np.sqrt(8 / 81 / codes.size) * 1.5)


def test_tuples_are_the_same_symbols_one_factor_after_the_other():
    product, tuples = FactoredProcess(THREE), FactoredProcess(THREE, symbols="tuple")
    parts = np.moveaxis(product.factor_tokens(product.sample(5, 7, seed=2)), 0, -1)
    shifted = parts + np.cumsum([0, *product.sizes[:-1]])
    np.testing.assert_array_equal(tuples.sample(5, 21, seed=2), shifted.reshape(5, 21))
    np.testing.assert_array_equal(np.moveaxis(tuples.factor_tokens(shifted.reshape(5, 21)), 0, -1), parts)


def by_factor(process, tokens):
    """The distribution of each factor's next symbol, as the message about large tables says."""
    return [
        factor.next_token_probs(symbols)
        for factor, symbols in zip(process.factors, process.factor_tokens(tokens), strict=True)
    ]


def test_factors_filtered_by_themselves_agree_with_the_joint_hmm():
    process = FactoredProcess(THREE)
    joint, tokens = process.joint_process(), process.sample(20, 30, seed=8)
    np.testing.assert_allclose(process.log_likelihood(tokens), joint.log_likelihood(tokens), atol=1e-10)
    np.testing.assert_allclose(process.next_token_probs(tokens), joint.next_token_probs(tokens), atol=1e-10)
    np.testing.assert_allclose(process.joint_beliefs(tokens), joint.beliefs(tokens), atol=1e-10)


def test_laws_by_factors_multiply_to_the_law_of_the_product():
    process = FactoredProcess(THREE)
    tokens = process.sample(4, 6)
    first, second, third = by_factor(process, tokens)
    expected = np.einsum("bta,btc,btd->btacd", first, second, third).reshape(4, 7, -1)
    np.testing.assert_allclose(process.next_token_probs(tokens), expected, atol=1e-14)
    parts = np.stack(np.unravel_index(tokens, process.sizes), axis=-1)
    rows, steps = np.indices(tokens.shape)
    surprise = first[rows, steps, parts[..., 0]] * second[rows, steps, parts[..., 1]]
    surprise *= third[rows, steps, parts[..., 2]]
    np.testing.assert_allclose(np.log(surprise).sum(axis=1), process.log_likelihood(tokens), atol=1e-10)


def test_a_result_may_be_as_large_as_the_limit_and_no_larger(monkeypatch):
    process = FactoredProcess(THREE)
    tokens = process.sample(2, 3)
    monkeypatch.setattr(factored, "_MAX_TABLE", 2 * 4 * process.num_symbols)
    assert process.next_token_probs(tokens).shape == (2, 4, process.num_symbols)
    monkeypatch.setattr(factored, "_MAX_TABLE", 2 * 4 * process.num_symbols - 1)
    with pytest.raises(InputError, match=r"2 x 4 distributions over 12 symbols are more than 95 numbers"):
        process.next_token_probs(tokens)


def test_ten_factors_of_three_states_need_no_joint_table():
    process = FactoredProcess([processes.mess3(0.15, 0.6)] * 10)
    assert process.num_symbols == process.num_joint_states == 3**10
    tokens = process.sample(3, 50, seed=1)
    one = processes.mess3(0.15, 0.6)
    parts = np.stack(np.unravel_index(tokens, process.sizes), axis=-1)
    expected = sum(one.log_likelihood(parts[:, :, k]) for k in range(10))
    np.testing.assert_allclose(process.log_likelihood(tokens), expected, rtol=1e-12)
    assert process.beliefs(tokens).shape == (3, 51, 30)
    assert [law.shape for law in by_factor(process, tokens)] == [(3, 51, 3)] * 10
    np.testing.assert_allclose(process.next_token_probs(tokens[:1, :3]).sum(axis=2), 1, atol=1e-12)
    assert process.optimal_loss(2).nats[0] == pytest.approx(10 * np.log(3), abs=1e-12)
    with pytest.raises(InputError, match="59,049 joint states"):
        process.joint_beliefs(tokens)
    with pytest.raises(InputError, match=r"or factors\[k\]\.next_token_probs\(factor_tokens"):
        process.next_token_probs(np.zeros((1000, 50), int))


def test_the_entropy_rate_is_the_sum_of_the_factors():
    factors = [processes.rrxor(), processes.golden_mean(0.3)]
    values = [factor.entropy_rate().value for factor in factors]
    rate = FactoredProcess(factors).entropy_rate()
    assert rate.value == pytest.approx(sum(values), abs=1e-12)
    assert rate.standard_error == 0
    assert FactoredProcess(factors, symbols="tuple").entropy_rate().value == pytest.approx(sum(values) / 2, abs=1e-12)


@pytest.mark.thorough
def test_bounds_on_the_entropy_rate_are_sums_or_those_of_the_joint_process():
    coin, hidden = processes.golden_mean(0.3), processes.simple_nonunifilar()
    rate, bounds = coin.entropy_rate().value, hidden.entropy_rate_bounds(length=512)
    for symbols, tokens in (("product", 1), ("tuple", 2)):
        found = FactoredProcess([coin, hidden], symbols=symbols).entropy_rate_bounds()
        np.testing.assert_allclose(found[:2], (np.array(bounds[:2]) + rate) / tokens, atol=1e-12)
        np.testing.assert_allclose(found[2:], np.array(bounds[2:]) / tokens, atol=1e-15)
    noisy = FactoredProcess([coin, coin], noise=0.1)
    found, bounds = noisy.entropy_rate_bounds(), noisy.joint_process().entropy_rate_bounds()
    assert found.lower <= bounds.upper
    assert bounds.lower <= found.upper
    with pytest.raises(InputError, match="no bounds are known"):
        FactoredProcess([coin, processes.bloch_walk()]).entropy_rate_bounds()


@pytest.mark.thorough
def test_errors_of_sampled_factors_add_in_squares():
    factors = [processes.random(12, 6, alpha=0.5, seed=1), processes.random(14, 5, alpha=0.5, seed=2)]
    loss = FactoredProcess(factors).optimal_loss(9, num_sequences=64, seed=5)
    parts = [factor.optimal_loss(9, num_sequences=64, seed=derived_seed(5, 2 + k)) for k, factor in enumerate(factors)]
    assert all(part.standard_error[-1] > 0.001 for part in parts)
    expected = np.hypot(*(part.standard_error for part in parts))
    np.testing.assert_allclose(loss.standard_error, expected, rtol=1e-12)


def test_noise_replaces_symbols_by_uniform_ones():
    clean, noisy = FactoredProcess(THREE[:2]), FactoredProcess(THREE[:2], noise=0.3)
    before, after = clean.sample(4000, 10, seed=6), noisy.sample(4000, 10, seed=6)
    # A replaced symbol stays the same in one case of six; five standard errors.
    assert (before != after).mean() == pytest.approx(0.3 * 5 / 6, abs=5 * np.sqrt(0.25 * 0.75 / before.size))
    tokens = noisy.sample(5, 12)
    joint = noisy.joint_process()
    expected = 0.7 * clean.joint_process().edges[0] + 0.05 * joint.transition
    np.testing.assert_allclose(joint.edges[0], expected, atol=1e-15)
    marginals = noisy.beliefs(tokens)
    beliefs = noisy.joint_beliefs(tokens).reshape(5, 13, 3, 2)
    np.testing.assert_allclose(marginals, np.concatenate([beliefs.sum(3), beliefs.sum(2)], axis=2), atol=1e-14)
    # Noise makes the factors depend on each other.
    assert np.abs(beliefs - beliefs.sum(3)[..., None] * beliefs.sum(2)[:, :, None]).max() > 1e-3
    assert FactoredProcess(THREE[:2], noise=1.0).log_likelihood(tokens) == pytest.approx(-12 * np.log(6))


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_generalized_factors_agree_with_their_joint_process(noise):
    process = FactoredProcess([processes.golden_mean(0.3), processes.bloch_walk(), processes.frdn()], noise=noise)
    tokens, joint = process.sample(6, 8, seed=2), process.joint_process()
    assert joint.num_states == 2 * 3 * 4
    np.testing.assert_allclose(process.next_token_probs(tokens), joint.next_token_probs(tokens), atol=1e-10)
    np.testing.assert_allclose(process.log_likelihood(tokens), joint.log_likelihood(tokens), atol=1e-10)
    np.testing.assert_allclose(process.joint_beliefs(tokens), joint.beliefs(tokens), atol=1e-10)
    # All words of two tokens.
    words = np.stack(np.divmod(np.arange(process.num_symbols**2), process.num_symbols), axis=1)
    assert np.exp(process.log_likelihood(words)).sum() == pytest.approx(1, abs=1e-10)
    parts = [process.beliefs(tokens)[:, :, part] for part in process.belief_parts().values()]
    for part, final in zip(parts, ([1, 1], [1, 0, 0], [1, 1, 1, 1]), strict=True):
        np.testing.assert_allclose(part @ final, 1, atol=1e-10)
    if noise == 0:
        np.testing.assert_allclose(parts[1], process.factors[1].beliefs(process.factor_tokens(tokens)[1]), atol=1e-12)


def test_beliefs_within_a_step_know_the_symbols_already_shown():
    process = FactoredProcess(THREE[:2], symbols="tuple")
    tokens = process.sample(3, 6)
    found, parts = process.beliefs(tokens), process.factor_tokens(tokens)
    first, second = (factor.beliefs(part) for factor, part in zip(THREE, parts, strict=False))
    np.testing.assert_array_equal(found[:, 3, :3], first[:, 2])
    np.testing.assert_array_equal(found[:, 3, 3:], second[:, 1])
    np.testing.assert_array_equal(found[:, 4, 3:], second[:, 2])


def test_factors_may_be_factored_themselves():
    inner = FactoredProcess(THREE[1:])
    outer, flat = FactoredProcess([THREE[0], inner]), FactoredProcess(THREE)
    tokens = outer.sample(4, 9, seed=3)
    np.testing.assert_allclose(outer.log_likelihood(tokens), flat.log_likelihood(tokens), atol=1e-10)
    assert outer.belief_width == flat.belief_width


def test_factors_may_be_of_any_kind_with_beliefs():
    chain = MarkovChain(random_rows(2, 2, 2, seed=1))
    edges = processes.mess3(0.15, 0.6)
    process = FactoredProcess([chain, edges, processes.random(2, 2, seed=3)], noise=0.0)
    tokens, joint = process.sample(6, 15), process.joint_process()
    np.testing.assert_allclose(process.next_token_probs(tokens), joint.next_token_probs(tokens), atol=1e-10)
    np.testing.assert_allclose(process.joint_beliefs(tokens), joint.beliefs(tokens), atol=1e-10)


def test_a_factor_of_one_symbol_beside_one_of_256_fits_in_bytes():
    many = MarkovChain(np.full((256, 256), 1 / 256)).to_hmm()
    process = FactoredProcess([MarkovChain([[1.0]]), many])
    tokens = process.sample(50, 100, seed=1)
    assert tokens.dtype == np.uint8
    np.testing.assert_array_equal(tokens, many.sample(50, 100, seed=derived_seed(1, 1)))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: FactoredProcess([]), "expected one or more"),
        (lambda: FactoredProcess([RandomChains(3, alpha=1.0)]), r"factors\[0\] is RandomChains"),
        (lambda: FactoredProcess([random_markov_chain(4, 9)]), "expected a process with beliefs"),
        (lambda: FactoredProcess(THREE, symbols="pairs"), "expected 'product', 'tuple' or 'shared'"),
        (lambda: FactoredProcess(THREE, noise=2), "expected a probability"),
        (lambda: FactoredProcess(THREE, symbols="tuple", noise=0.1), "'product' if not 0"),
        (lambda: FactoredProcess([processes.mess3(0.15, 0.6)] * 6, noise=0.1), "387,420,489 entries"),
        (lambda: FactoredProcess([processes.mess3(0.15, 0.6)] * 21), "at most 2\\^32"),
        (lambda: FactoredProcess(THREE, symbols="tuple").factor_tokens([[0, 0]]), r"factor 1, 3 \.\. 4"),
        (lambda: FactoredProcess([FactoredProcess(THREE)]).joint_process(), "factors that are HMMs or"),
    ],
)
def test_what_cannot_be_factored_is_refused(make, words):
    with pytest.raises(InputError, match=words):
        make()
