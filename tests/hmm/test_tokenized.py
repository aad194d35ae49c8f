"""Tokens of HMMs: distributions, windows and draws, against enumeration, dense chains and closed forms."""

import itertools
import re

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from hmm_datasets import HMM, load_source
from hmm_datasets.errors import InputError
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.analysis.stationary import cesaro_limit, entropy
from hmm_datasets.hmm.arrays import operators
from hmm_datasets.hmm.structured import symbol_tokenizer as module_of_tokenizers
from hmm_datasets.hmm.structured import tokenized as module
from hmm_datasets.hmm.structured.symbol_tokenizer import SymbolTokenizer, train_symbol_bpe
from hmm_datasets.hmm.structured.tokenized import TokenizedProcess, tokenized

BINARY = [(0,), (1,), (0, 1), (1, 1), (1, 0, 1), (1, 1, 1, 0)]
TERNARY = [(0,), (1,), (2,), (0, 1), (1, 2, 2), (2, 2)]
SOURCES = {
    "golden_mean": processes.golden_mean(),
    "even": processes.even(),
    "random": processes.random(4, 2, alpha=0.5, seed=3),
    "mess3": processes.mess3(0.15, 0.6),
}


def text(symbols):
    return "".join(chr(0x10000 + symbol) for symbol in symbols)


def longest(pieces):
    vocabulary = {text(piece): token for token, piece in enumerate(pieces)}
    return SymbolTokenizer.of(Tokenizer(models.WordPiece(vocabulary, unk_token="", continuing_subword_prefix="")))


def unigram(pieces, scores):
    model = models.Unigram([(text(piece), score) for piece, score in zip(pieces, scores, strict=True)])
    return SymbolTokenizer.of(Tokenizer(model))


def library_cuts(tokenizer, rows):
    """What the library of tokenizers does with each row; the longest pieces are those of an expression."""
    texts, rules = list(map(text, tokenizer.pieces)), tokenizer.rules
    if tokenizer.kind == "WordPiece":  # that of the library takes quadratic time, since it looks from the end
        longest_first = re.compile("|".join(sorted(texts, key=len, reverse=True)))
        return [[texts.index(piece) for piece in longest_first.findall(text(row))] for row in rows]
    if tokenizer.kind == "Unigram":
        library = Tokenizer(models.Unigram(list(zip(texts, rules, strict=True))))
    else:
        merges = [(texts[left], texts[right]) for left, right in rules]
        library = Tokenizer(models.BPE({piece: token for token, piece in enumerate(texts)}, merges))
    return [library.encode(text(row)).ids for row in rows]


def tokens_of(kind, source):
    if kind == "BPE":
        tokenizer = train_symbol_bpe(source.sample(100, 100, 0), source.num_symbols, 6)
    elif kind == "WordPiece":
        tokenizer = longest(BINARY if source.num_symbols == 2 else TERNARY)
    elif source.num_symbols == 2:  # those whose cuts are decided a few symbols later, so that enumeration shows them
        tokenizer = unigram([(0,), (1,), (0, 1), (0, 0, 1)], [-2.0, -1.7, -3.2, -5.6])
    else:
        tokenizer = unigram([(0,), (1,), (2,), (0, 1), (0, 1, 2)], [-2.0, -1.7, -2.5, -3.2, -5.0])
    return TokenizedProcess(source, tokenizer)


def enumerated(tokens, length):
    """The probabilities of the first tokens of all cuts, by all symbols up to `length`."""
    strings = np.array(list(itertools.product(range(tokens.process.num_symbols), repeat=length)))
    total = {}
    for cut, probability in zip(
        library_cuts(tokens.tokenizer, strings.tolist()), np.exp(tokens.process.log_likelihood(strings)), strict=True
    ):
        for count in range(min(3, len(cut)) + 1):
            total[tuple(cut[:count])] = total.get(tuple(cut[:count]), 0.0) + probability
    return {prefix: probability for prefix, probability in total.items() if probability > 0}


def covering(tokens, symbols):
    """All tokens that spell these symbols, the last of them possibly more."""
    if not symbols:
        return [()]
    found = []
    for token, piece in enumerate(tokens.tokenizer.pieces):
        if piece[: len(symbols)] == symbols[: len(piece)]:
            found += [(token, *rest) for rest in covering(tokens, symbols[len(piece) :])]
    return found


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("kind", ["BPE", "WordPiece", "Unigram"])
def test_distributions_are_those_of_all_sequences_cut(kind, name):
    tokens = tokens_of(kind, SOURCES[name])
    expected = enumerated(tokens, 14 if name != "mess3" else 9)
    for prefix in (prefix for prefix in expected if len(prefix) < 2):
        row = np.array([prefix], np.int64).reshape(1, -1)
        joint = [expected.get((*prefix, token), 0.0) for token in range(tokens.num_symbols)]
        np.testing.assert_allclose(tokens.next_token_probs(row)[0, -1], np.array(joint) / sum(joint), atol=1e-10)
        np.testing.assert_allclose(np.exp(tokens.log_likelihood(row)), expected[prefix], rtol=1e-10)


@pytest.mark.parametrize("kind", ["BPE", "WordPiece", "Unigram"])
def test_the_likelihood_of_symbols_is_the_sum_over_all_their_cuts(kind):
    for source in SOURCES.values():
        tokens = tokens_of(kind, source)
        for symbols in itertools.product(range(source.num_symbols), repeat=4):
            cuts = covering(tokens, symbols)
            total = sum(np.exp(tokens.log_likelihood([list(cut)]))[0] for cut in cuts)
            np.testing.assert_allclose(total, np.exp(source.log_likelihood([symbols]))[0], rtol=1e-10, atol=1e-14)
            canonical = library_cuts(tokens.tokenizer, [list(symbols)])[0]
            # What canonical tokens alone lose: the probability that the text is cut after these symbols.
            assert tokens.log_likelihood([canonical])[0] <= source.log_likelihood([symbols])[0] + 1e-12


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("kind", ["BPE", "WordPiece", "Unigram"])
def test_windows_are_those_of_a_stationary_chain_of_contexts_and_states(kind, name):
    tokens, source = tokens_of(kind, SOURCES[name]), SOURCES[name]
    states, contexts = source.num_states, len(tokens.tokenizer.contexts.token)
    of_symbol = operators(source)
    moves = np.zeros((tokens.num_symbols, contexts * states, contexts * states))
    for token, piece in enumerate(tokens.tokenizer.pieces):
        through = np.linalg.multi_dot([np.eye(states), *of_symbol[list(piece)]])
        for context, after in enumerate(tokens.tokenizer.contexts.following[:-1, token]):
            if after >= 0:
                here, there = (slice(c * states, (c + 1) * states) for c in (context, after))
                moves[token, here, there] = through
    stays = tokens._stays[:-1].ravel()
    np.testing.assert_allclose(moves.sum(0) @ stays, stays, atol=1e-12)
    chain = moves.sum(0) * stays / np.where(stays > 0, stays, 1)[:, None]
    chain[stays == 0] = np.eye(len(chain))[stays == 0]
    start = np.zeros(len(stays))
    start[:states] = source.start * stays[:states]
    steady = cesaro_limit(start, chain)
    begin = np.divide(steady, stays, out=np.zeros_like(steady), where=stays > 0)
    windows = np.array(list(itertools.product(range(tokens.num_symbols), repeat=3)))
    expected = [
        begin @ np.linalg.multi_dot([np.eye(len(stays)), *moves[window], stays[:, None]]) for window in windows
    ]
    np.testing.assert_allclose(np.exp(-tokens.window_losses(windows).sum(1)), np.ravel(expected), atol=1e-10)
    frequencies = [begin @ move @ stays for move in moves]
    np.testing.assert_allclose(tokens.frequencies, frequencies, atol=1e-10)
    np.testing.assert_allclose(
        tokens.mean_length, np.dot(frequencies, [len(piece) for piece in tokens.tokenizer.pieces])
    )


@pytest.mark.parametrize("kind", ["BPE", "WordPiece", "Unigram"])
def test_draws_begin_the_cut_of_an_endless_sequence(kind):
    tokens = tokens_of(kind, SOURCES["random"])
    rows = tokens.sample(4000, 12, seed=3)
    np.testing.assert_array_equal(tokens.sample(3, 5, seed=3, first=7, step=2), rows[7:12:2, :5])
    symbols = tokens.process.sample(4000, 200, seed=3)
    cuts = library_cuts(tokens.tokenizer, symbols.tolist())
    assert all(cut[:12] == row for cut, row in zip(cuts, rows.tolist(), strict=True))
    counts = np.bincount(rows[:, 0] * tokens.num_symbols + rows[:, 1], minlength=tokens.num_symbols**2)
    probs = np.exp(tokens.log_likelihood([divmod(pair, tokens.num_symbols) for pair in range(len(counts))]))
    assert (np.abs(counts - 4000 * probs) <= 5 * np.sqrt(4000 * probs * (1 - probs)) + 1e-9).all()


def test_the_entropy_of_tokens_is_that_of_their_symbols():
    # The states of these processes are known from the past, and tokens are a Markov chain of contexts.
    for name in ("golden_mean", "even"):
        source = HMM(start=[1.0, 0.0], edges=operators(SOURCES[name]))
        tokens = tokens_of("BPE", source)
        rows = tokens.sample(4000, 12, seed=1)
        rate = tokens.entropy_rate().value
        np.testing.assert_allclose(rate, source.entropy_rate().value * tokens.mean_length)
        losses = entropy(tokens.next_token_probs(rows)[:, 6:-1]).mean(1)
        assert abs(losses.mean() - rate) < 5 * losses.std() / np.sqrt(len(losses))
        windows = tokens.window_losses(rows[:, 4:])
        assert np.all(windows.mean(0)[-1] < rate + 5 * windows[:, -1].std() / np.sqrt(len(rows)))


def test_a_unigram_model_of_tokens_nears_the_entropy_of_a_chain():
    """Rajaraman, Jiao and Ramchandran, arXiv 2404.08335: without tokens it stays at that of single symbols."""
    chain = HMM(transition=[[0.95, 0.05], [0.05, 0.95]], emission=np.eye(2))
    losses = []
    for size in (2, 8, 64):
        tokens = tokenized(chain, size)
        losses.append(float(entropy(tokens.frequencies)) / tokens.mean_length)
    assert losses == sorted(losses, reverse=True)
    np.testing.assert_allclose(losses[0], np.log(2))
    rows = library_cuts(tokens.tokenizer, chain.sample(50, 4000, 9).tolist())
    counts = np.bincount(np.concatenate(rows), minlength=64) / sum(map(len, rows))
    np.testing.assert_allclose(losses[-1], float(entropy(counts)) * sum(map(len, rows)) / 2e5, rtol=0.02)
    assert 1 < losses[-1] / chain.entropy_rate().value < 1.3


def test_every_token_is_a_tensor_or_an_array_as_it_was_given():
    tokens = tokenized(SOURCES["mess3"], 8)
    row = torch.tensor([[0, 1, 2]])
    assert isinstance(tokens.next_token_probs(row), torch.Tensor)
    assert isinstance(tokens.log_likelihood(row), torch.Tensor)
    assert tokens.next_token_probs(np.zeros((0, 3), int)).shape == (0, 4, 8)
    assert tokens.window_losses(np.zeros((2, 0), int)).shape == (2, 0)
    assert tokens.sample(2, 0).shape == (2, 0)


@pytest.mark.parametrize("num_symbols", [2, 3, 4])
def test_neighbours_are_those_that_the_library_leaves_as_they_are(num_symbols):
    for seed in range(3):
        source = processes.random(5, num_symbols, alpha=0.3, seed=seed)
        tokenizer = train_symbol_bpe(source.sample(40, 200, seed), num_symbols, 24)
        for token, piece in enumerate([*tokenizer.pieces, ()]):
            before = [] if piece == () else [token]
            cuts = library_cuts(tokenizer, [[*piece, *after] for after in tokenizer.pieces])
            allowed = [cut == [*before, after] for after, cut in enumerate(cuts)]
            row = 0 if piece == () else token + 1
            np.testing.assert_array_equal(tokenizer.contexts.following[row] >= 0, allowed)


@pytest.mark.outside(
    "https://github.com/epfl-dlab/transformers-CFG/issues/15",
    "that only one of [aa, aa], [aaa, a] and [a, aaa] counts as what spells aaaa",
    "other cuts than the tokenizer's have the probability zero, and the distribution after them is zeros",
)
def test_what_is_not_canonical_is_impossible():
    tokens = TokenizedProcess(processes.coin(0.5), train_symbol_bpe([[0] * 9] * 9, 2, 4))
    assert tokens.tokenizer.pieces == ((0,), (1,), (0, 0), (0, 0, 0, 0))
    assert library_cuts(tokens.tokenizer, [[0, 0, 0, 0]]) == [[3]]
    probs = tokens.next_token_probs([[2, 2, 1], [0, 1, 2]])
    assert not probs[0, 2:].any()
    assert probs[1, 3].any()
    np.testing.assert_array_equal(tokens.log_likelihood([[2, 2]]), -np.inf)
    np.testing.assert_array_equal(tokens.window_losses([[2, 2]])[0, 1], np.inf)


@pytest.mark.outside(
    "https://github.com/ggml-org/llama.cpp/issues/4778",
    "a prompt that ends with ':' to go on with '//', which training text has as one token with it",
    "the tokens of such a prompt leave '//' no probability; the sum over all cuts that go on has it",
)
def test_a_prompt_that_ends_within_a_token_hides_what_comes():
    colon, slash, other = range(3)
    hmm = HMM(  # after a colon two slashes come nine times of ten
        start=[0, 1.0, 0, 0],
        transition=[[0.5, 0.5, 0, 0], [0.1, 0, 0.9, 0], [0, 0, 0, 1], [1, 0, 0, 0]],
        emission=np.eye(3)[[other, colon, slash, slash]],
    )
    tokens = TokenizedProcess(hmm, longest([(colon,), (slash,), (other,), (colon, slash, slash)]))
    np.testing.assert_allclose(tokens.next_token_probs([[colon]])[0], [[0.1, 0, 0, 0.9], [0, 0, 1, 0]], atol=1e-12)
    np.testing.assert_allclose(hmm.next_token_probs([[colon]])[0, 1], [0, 0.9, 0.1], atol=1e-12)
    going_on = [[token] for token, piece in enumerate(tokens.tokenizer.pieces) if piece[:2] == (colon, slash)]
    np.testing.assert_allclose(np.exp(tokens.log_likelihood(going_on)).sum(), 0.9)


@pytest.mark.outside(
    "https://github.com/google/sentencepiece/issues/747",
    "one cut of 'test.........', where '........' '.' and '.' '........' have the same score",
    "of equal scores the longer last piece wins, by exact sums: the automaton has the cut of the library",
)
@pytest.mark.outside(
    "https://github.com/huggingface/tokenizers/issues/1213",
    "to know at which end of 'nooooo' the single letter is",
    "at the first, as the library has it; the score of a run is exact, so that its place is the same in any text",
)
def test_a_run_of_one_symbol_is_cut_alike_wherever_it_stands():
    tokenizer = unigram([(0,), (1,), (0, 0)], [-1.1, -2.3, -1.3])
    following = tokenizer.contexts.following
    for symbols in itertools.product(range(2), repeat=9):
        context = 0
        for token in library_cuts(tokenizer, [list(symbols)])[0]:
            context = following[context, token]
        assert context >= 0
    assert library_cuts(tokenizer, [[1, 0, 0, 0, 0, 0]]) == [[1, 0, 2, 2]]


@pytest.mark.outside(
    "https://github.com/github/rust-gems/pull/9",
    "to know, of a text that grows, which tokens stay: abab is [ab, ab], and ababc may be cut elsewhere",
    "contexts say which tokens may follow, and rows are drawn only as far as no symbol to come changes them",
)
def test_merges_that_make_the_same_token_are_those_of_the_library():
    pieces = ["a", "b", "c", "ab", "ba", "bc", "abc", "babc", "ababc"]
    merges = ["a b", "b a", "b c", "ab c", "a bc", "ba bc", "b abc", "ab abc", "a babc"]
    numbers = [[pieces.index(part) for part in merge.split()] for merge in merges]
    tokenizer = SymbolTokenizer("BPE", [["abc".index(letter) for letter in piece] for piece in pieces], numbers)
    for symbols in itertools.product(range(3), repeat=7):
        context = 0
        for token in library_cuts(tokenizer, [list(symbols)])[0]:
            context = tokenizer.contexts.following[context, token]
        assert context >= 0
    tokens = TokenizedProcess(processes.random(3, 3, seed=1), tokenizer)
    assert np.isfinite(tokens.log_likelihood(tokens.sample(500, 20))).all()


@pytest.mark.outside(
    "https://github.com/karpathy/minbpe/pull/111",
    "the merges of aaabdaaabac with three tokens more: aa, aaa, aaab, where the text had ab for aaa",
    "the library merges ab, which is as frequent as aaa, and cuts the text into the same aaab, d, aaab, a, c",
)
def test_the_example_of_byte_pair_encoding_is_cut_as_anywhere():
    symbols = ["abcd".index(letter) for letter in "aaabdaaabac"]
    tokenizer = train_symbol_bpe([symbols], 4, 7)
    assert tokenizer.pieces[4:] == ((0, 0), (0, 1), (0, 0, 0, 1))
    assert library_cuts(tokenizer, [symbols]) == [[6, 3, 6, 0, 2]]


@pytest.mark.outside(
    "https://github.com/huggingface/tokenizers/issues/1313",
    "512 tokens of DNA, which has no white space, were not trained in ten hours",
    "the library's time grows with the square of a sequence, so that long ones are trained on in parts",
)
def test_long_sequences_are_trained_on_in_parts_and_cut_whole(monkeypatch):
    symbols = processes.random(5, 4, seed=2).sample(1, 1000)
    monkeypatch.setattr(module_of_tokenizers, "_LONGEST", 100)
    tokenizer = train_symbol_bpe(symbols, 4, 40)
    assert tokenizer.pieces == train_symbol_bpe(symbols.reshape(10, 100), 4, 40).pieces
    (cut,) = library_cuts(tokenizer, symbols.tolist())
    assert [symbol for token in cut for symbol in tokenizer.pieces[token]] == symbols[0].tolist()
    assert cut != [token for part in library_cuts(tokenizer, symbols.reshape(10, 100).tolist()) for token in part]


@pytest.mark.outside(
    "https://github.com/ggml-org/llama.cpp/issues/7111",
    "to compare models of different vocabularies, by a loss per byte instead of per token",
    "the best predictors of all tokenizers have the same loss per symbol, and very different ones per token",
)
def test_the_best_predictor_has_the_same_loss_per_symbol_with_every_tokenizer():
    source = processes.random(4, 2, alpha=0.5, seed=3)
    symbols = source.sample(20, 4000, 5)
    per_token, per_symbol = [], []
    for kind in ("BPE", "WordPiece", "unigram"):
        tokens = tokens_of(kind, source)
        cuts = [
            cut[:-20] for cut in library_cuts(tokens.tokenizer, symbols.tolist())
        ]  # a text that ends is cut otherwise
        nats = -sum(float(tokens.log_likelihood([cut])[0]) for cut in cuts)
        per_token.append(nats / sum(map(len, cuts)))
        per_symbol.append(nats / sum(int(tokens.tokenizer.sizes[cut].sum()) for cut in cuts))
    alone = -float(source.log_likelihood(symbols).sum()) / symbols.size
    np.testing.assert_allclose(per_symbol, alone, rtol=2e-3)
    assert max(per_token) > 1.2 * min(per_token)


@pytest.mark.parametrize("kind", ["BPE", "WordPiece", "Unigram"])
def test_texts_are_cut_as_by_the_library(kind):
    tokenizer, generator = tokens_of(kind, SOURCES["mess3"]).tokenizer, np.random.default_rng(4)
    rows = [generator.choice(3, size, p=[0.6, 0.3, 0.1]).tolist() for size in (0, 1, 2, 3, 8, 500, 3000)]
    rows += [list(symbols) for symbols in itertools.product(range(3), repeat=6)]
    assert tokenizer.cut(rows) == library_cuts(tokenizer, rows)
    assert tokenizer.cut(np.array(rows[-2:], np.uint8)) == library_cuts(tokenizer, rows[-2:])


def test_symbols_that_are_no_tokens_are_refused():
    tokenizer = longest([(0,), (2,), (2, 1)])
    assert tokenizer.cut([[2, 0, 0]]) == [[1, 0, 0]]
    for wrong in (1, 3, -1):
        with pytest.raises(InputError, match=f"the symbols have {wrong}; expected those that are tokens"):
            tokenizer.cut([[0, wrong]])


def test_a_folder_keeps_the_process(tmp_path):
    for kind in ("BPE", "WordPiece", "Unigram"):
        tokens = tokens_of(kind, SOURCES["mess3"])
        tokens.save_pretrained(tmp_path / kind)
        again = load_source(tmp_path / kind)
        assert again.fingerprint() == tokens.fingerprint()
        np.testing.assert_array_equal(again.sample(3, 9), tokens.sample(3, 9))
    assert load_source("tokenized(mess3(), 8)").num_symbols == 8


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TokenizedProcess(processes.coin(0.5), longest([(0,), (0, 1)])), r"has no piece \(1,\)"),
        (lambda: TokenizedProcess(processes.coin(0.5), longest([(0,), (1,), (2,)])), r"has the piece \(2,\)"),
        (lambda: TokenizedProcess(load_source("random_chains(3, alpha=1)"), longest([(0,)])), "expected an HMM"),
        (lambda: tokenized(processes.mess3(), 2), "vocab_size is 2"),
        (lambda: tokenized(processes.coin(1.0), 200), "yield only"),
        (lambda: SymbolTokenizer.of(Tokenizer(models.BPE(dropout=0.1))), "BPE with dropout"),
        (lambda: SymbolTokenizer.of(Tokenizer(models.WordLevel({"a": 0}, "a"))), "is WordLevel"),
        (lambda: TokenizedProcess(processes.coin(0.5), {"kind": "words", "pieces": [[0]]}), "kind is 'words'"),
        (
            lambda: TokenizedProcess(processes.coin(0.5), {"kind": "Unigram", "pieces": [[0], [1]], "rules": [0.0]}),
            "scores",
        ),
        (
            lambda: TokenizedProcess(processes.coin(0.5), {"kind": "BPE", "pieces": [[0], [1]], "rules": [[0, 7]]}),
            "merges",
        ),
    ],
)
def test_what_cannot_be_cut_is_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_a_tokenizer_that_does_more_is_refused():
    tokenizer = Tokenizer(models.BPE({text([0]): 0, text([1]): 1}, []))
    assert SymbolTokenizer.of(tokenizer).pieces == ((0,), (1,))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(InputError, match="BPE with pre_tokenizer; expected a model of BPE, Unigram, WordPiece and"):
        SymbolTokenizer.of(tokenizer)


def test_cuts_that_symbols_far_ahead_decide_are_refused(monkeypatch):
    monkeypatch.setattr(module, "_MOST_STEPS", 300)
    # An endless run of one symbol, of which the end decides where it is cut.
    run = TokenizedProcess(processes.coin(1.0), unigram([(0,), (1,), (0, 0)], [-2.0, -2.0, -3.0]))
    with pytest.raises(InputError, match="depend on more than 300 symbols to come"):
        run.next_token_probs([[2]])
