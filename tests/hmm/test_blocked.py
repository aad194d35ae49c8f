"""HMMs with blocked emissions and transitions of a low rank, beside dense HMMs of the same distribution."""

import numpy as np
import pytest
import torch
from composed_examples import EXAMPLES, blocked

from hmm_datasets import HMM
from hmm_datasets.errors import InputError
from hmm_datasets.hmm.fitting.fit import fit_hmm
from hmm_datasets.hmm.structured.blocked import BlockedHMM

SMALL = blocked([0, 1, 0, 2, 1], 2, 3, seed=21)
# Blocks with one symbol and with many, and sizes that are no multiples of the lanes.
LARGE = blocked([0, *[1] * 30, *[2, 3] * 6], 19, 21, seed=3)


def with_gaps(process: BlockedHMM, count: int, length: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    tokens = process.sample(count, length, seed=1).astype(int)
    return np.where(generator.random(tokens.shape) < 0.2, -1, tokens), generator.integers(0, length + 1, count)


@pytest.mark.parametrize("process", [SMALL, LARGE], ids=["small", "large"])
def test_it_is_the_dense_hmm_also_where_tokens_are_missing(process):
    dense = process.to_hmm()
    tokens, lengths = with_gaps(process, 33, 20)
    np.testing.assert_allclose(process.beliefs(tokens) @ process.enter, dense.beliefs(tokens), atol=1e-10)
    np.testing.assert_allclose(process.next_token_probs(tokens), dense.next_token_probs(tokens), atol=1e-10)
    np.testing.assert_allclose(process.log_likelihood(tokens), dense.log_likelihood(tokens), atol=1e-10)
    found = process.log_likelihood(torch.from_numpy(tokens), lengths=lengths)
    np.testing.assert_allclose(found, dense.log_likelihood(tokens, lengths=lengths), atol=1e-10)
    rate = process.entropy_rate(num_sequences=32, length=128, burn_in=32)
    again = dense.entropy_rate(num_sequences=32, length=128, burn_in=32, seed=1)
    assert abs(rate.value - again.value) < 5 * np.hypot(rate.standard_error, again.standard_error)


@pytest.mark.parametrize("process", [SMALL, LARGE], ids=["small", "large"])
def test_posteriors_and_most_probable_paths_are_those_of_the_dense_hmm(process):
    dense = process.to_hmm()
    tokens, lengths = with_gaps(process, 33, 20)
    tokens[0, 3:12] = -1
    for ends in (None, lengths):
        found = process.posteriors(tokens, lengths=ends)
        np.testing.assert_allclose(found, dense.posteriors(tokens, lengths=ends), atol=1e-10)
        states, scores = process.viterbi(torch.from_numpy(tokens), lengths=ends)
        expected = dense.viterbi(tokens, lengths=ends)
        assert torch.is_tensor(states)
        np.testing.assert_array_equal(states, expected.states)
        np.testing.assert_allclose(scores, expected.log_probability, atol=1e-10)
    path, score = (part[0] for part in process.viterbi(tokens[1:2]))
    steps = [dense.start[path[0]], *dense.transition[path[:-1], path[1:]]]
    emitted = [dense.emission[state, symbol] for state, symbol in zip(path, tokens[1], strict=True) if symbol >= 0]
    assert score == pytest.approx(np.log([*steps, *emitted]).sum())
    assert process.viterbi(np.zeros((2, 0), int)).log_probability.tolist() == [0.0, 0.0]


def test_a_path_that_is_improbable_until_the_last_token_is_found():
    """After 400 tokens the one state that explains the last is as likely as 1e-800 of the other."""
    tables = [[0.5, 0.5], np.eye(2), np.eye(2), [[0.99, 0.01], [0.01, 0.98], [0, 0.01]], [0, 0, 0]]
    process = BlockedHMM(*tables)
    tokens = [[0] * 400 + [2]]
    path = process.viterbi(tokens)
    assert path.states.tolist() == [[1] * 401]
    assert path.log_probability[0] == pytest.approx(np.log(0.5) + 401 * np.log(0.01))
    assert process.viterbi([[2, 0]]).states.tolist() == [[1, 1]]


@pytest.mark.thorough
@pytest.mark.parametrize("process", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_expected_counts_are_the_derivatives_of_the_log_likelihood(process, dtype):
    """Fisher's identity: an expected count is what the log-likelihood gains by the logarithm of its entry."""
    tokens, lengths = with_gaps(process, 21, 9, seed=2)
    weights = np.random.default_rng(3).uniform(0, 2, 21)
    read = torch.from_numpy(np.where(tokens < 0, process.num_symbols, tokens)), torch.from_numpy(lengths)
    read_tables = process.parameters(dtype).with_missing()
    counts, scores = read_tables.sums(*read, torch.from_numpy(weights))
    np.testing.assert_allclose(read_tables.log_likelihood(*read), scores, rtol=1e-12)
    tables = {name: torch.tensor(table).log().requires_grad_() for name, table in process.tables().items()}
    logs = _log_likelihoods(tables, torch.tensor(process.blocks), *read)
    tolerance = 1e-10 if dtype == torch.float64 else 1e-4
    np.testing.assert_allclose(scores, logs.detach(), atol=10 * tolerance)
    (logs @ torch.from_numpy(weights)).backward()
    for name, log in tables.items():
        np.testing.assert_allclose(counts[name], log.grad, atol=tolerance, err_msg=name)
        assert (counts[name].numpy()[process.tables()[name] == 0] == 0).all()


def _log_likelihoods(tables, blocks, tokens, lengths) -> torch.Tensor:
    start, enter, leave, emission = (tables[name].exp() for name in ("start", "enter", "leave", "emission"))
    by_block = emission.shape[1]
    states = torch.arange(enter.shape[1])
    dense = torch.stack([
        torch.where(states // by_block == k, row.repeat(enter.shape[1] // by_block), 0.0)
        for k, row in zip(blocks, emission, strict=True)
    ])  # fmt: skip
    dense = torch.cat([dense, torch.ones(1, len(states))])
    rows = []
    for row, end in zip(tokens, lengths, strict=True):
        belief = start
        for symbol in row[:end]:
            emitted = belief @ enter * dense[symbol]
            belief = emitted @ leave
        # A row without tokens has no first class to count, and none draws a class after its last token.
        rows.append(emitted.sum().log() if end > 0 else torch.zeros(()))
    return torch.stack(rows)


def test_impossible_tokens_have_no_likelihood_and_add_no_count():
    emission = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    process = BlockedHMM(
        [1, 0], [[1, 0, 0, 0], [0, 0, 0.5, 0.5]], [[0, 1], [1, 0], [1, 0], [1, 0]], emission, [0, 0, 1]
    )
    assert process.log_likelihood([[0, 2], [0, 0], [1, 2]]).tolist() == [0.0, -np.inf, -np.inf]
    assert (process.next_token_probs([[1, 2]])[0, 1:] == 0).all()
    assert process.posteriors([[0, 0], [0, 2]])[:, 0].sum(1).tolist() == [0.0, 1.0]
    path = process.viterbi([[0, 0], [0, 2]])
    assert path.states.tolist() == [[0, 0], [0, 2]]
    assert path.log_probability.tolist() == [-np.inf, np.log(0.5)]
    for dtype in (torch.float64, torch.float32):
        counts, scores = process.parameters(dtype).sums(torch.tensor([[0, 2], [0, 0]]), None, None)
        assert scores.tolist() == [0.0, -np.inf]
        assert counts["emission"][2].sum() == 1
        assert all(np.isfinite(table).all() for table in counts.values())


def test_the_same_counts_whichever_rows_are_together():
    tokens, lengths = (torch.from_numpy(part) for part in with_gaps(LARGE, 40, 12, seed=5))
    tokens = tokens.masked_fill(tokens < 0, LARGE.num_symbols)
    tables = LARGE.parameters()
    whole, scores = tables.sums(tokens, lengths, None)
    parts = [tables.sums(tokens[rows], lengths[rows], None) for rows in (slice(0, 1), slice(1, 7), slice(7, 40))]
    np.testing.assert_array_equal(scores, torch.cat([part[1] for part in parts]))
    for name, table in whole.items():
        np.testing.assert_allclose(table, sum(part[0][name] for part in parts), rtol=1e-12, atol=1e-14)


def test_emissions_off_by_float32_rounding_are_rescaled():
    tables = {name: table.astype(np.float32).astype(float) for name, table in LARGE.tables().items()}
    assert np.abs(LARGE.totals("emission", tables["emission"]) - 1).max() > 1e-9
    taken = LARGE.with_tables(tables)
    for name, table in taken.tables().items():
        np.testing.assert_allclose(taken.totals(name, table), 1, rtol=0, atol=1e-9)
    again = taken.with_tables(taken.tables())
    assert all((again.tables()[name] == table).all() for name, table in taken.tables().items())


def test_names_of_symbols_are_kept_in_its_folder(tmp_path):
    process = BlockedHMM(**SMALL.arrays(), vocabulary=["a", "b", "c", "d", "e"])
    process.save_pretrained(tmp_path / "hmm")
    from hmm_datasets import load_source

    loaded = load_source(tmp_path / "hmm")
    assert loaded.vocabulary == ("a", "b", "c", "d", "e")
    assert loaded.to_hmm().vocabulary == loaded.vocabulary
    np.testing.assert_array_equal(loaded.sample(3, 9), SMALL.sample(3, 9))
    for method in (loaded.log_likelihood, loaded.next_token_probs, loaded.posteriors):
        np.testing.assert_array_equal(method([["b", None, "e"]]), method([[1, -1, 4]]))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"emission": np.ones((5, 2))}, r"emission\[blocks == 0, 0\] sums to 2, not 1"),
        ({"blocks": [0, 1, 0, 3, 1]}, "no symbol is in block 2"),
        ({"blocks": [0, 1, 0, -1, 1]}, "-1 is a block"),
        ({"blocks": [0, 1, 0]}, r"blocks have shape \(3,\) and emission \(5, 2\)"),
        ({"enter": np.full((3, 4), 0.25)}, r"enter has shape \(3, 4\) and leave \(6, 3\); expected \(3, 6\)"),
        ({"start": [0.5, 0.4, 0]}, "start sums to 0.9, not 1"),
        ({"vocabulary": ["a"]}, "vocabulary has 1 names; expected 5"),
    ],
)
def test_what_is_no_model_is_refused(changed, words):
    with pytest.raises(InputError, match=words):
        BlockedHMM(**{**EXAMPLES["blocked"].arrays(), **changed})


def test_a_device_other_than_the_cpu_is_refused_before_a_fit():
    with pytest.raises(InputError, match=r"device is 'meta', but HMMs of blocks are computed on the CPU; leave it"):
        fit_hmm(SMALL.sample(4, 8), initial=SMALL, device="meta", show_progress=False)


def test_a_table_too_large_is_refused():
    many = 4100
    large = BlockedHMM([1], np.full((1, 2 * many), 0.5 / many), np.ones((2 * many, 1)), np.ones((2, many)), [0, 1])
    with pytest.raises(InputError, match="8,200 states"):
        large.to_hmm()
    with pytest.raises(InputError, match="no known bounds on an entropy rate"):
        large.entropy_rate_bounds()
    assert isinstance(SMALL.to_hmm(), HMM)


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/hmmlearn/hmmlearn/issues/524",
    "an emission matrix of 15,000 states and 30,000 symbols, and transitions of 15,000",
    "`BlockedHMM`: 4.2 million numbers with blocks of 125 and rank 16 instead of 675 million; drawn and scored",
)
def test_fifteen_thousand_states_and_thirty_thousand_symbols_fit_into_memory():
    generator = np.random.default_rng(0)
    blocks = np.arange(30_000) % 120
    emission = generator.gamma(1.0, size=(30_000, 125))
    emission /= emission.reshape(250, 120, 125).sum(0)[blocks]
    enter, leave = generator.dirichlet(np.ones(15_000), 16), generator.dirichlet(np.ones(16), 15_000)
    process = BlockedHMM(np.full(16, 1 / 16), enter, leave, emission, blocks)
    tokens, states = process.sample_with_states(4, 50)
    np.testing.assert_array_equal(blocks[tokens], states // 125)
    expected = np.zeros(4)
    for row, symbols in enumerate(tokens):
        belief = process.start
        for symbol in symbols:
            here = slice(125 * blocks[symbol], 125 * (blocks[symbol] + 1))
            belief = (belief @ enter[:, here] * emission[symbol]) @ leave[here]
            expected[row] += np.log(belief.sum())
            belief = belief / belief.sum()
    np.testing.assert_allclose(process.log_likelihood(tokens), expected, rtol=1e-12)
