"""GINC: its tables are the published ones, and prompts are predicted as enumeration does."""

import itertools

import numpy as np
import pytest
from experiments import load

from hmm_datasets import HMM, HMMMixture, InputError, load_source, processes
from hmm_datasets.cli import main

CONCEPTS = load("ginc", "concepts")
ginc, ginc_prompts = CONCEPTS.ginc, CONCEPTS.ginc_prompts

MEMORY = [  # fixed_params.pkl: the symbol of each value (row) and property (column)
    [0, 38, 18, 13, 35, 25, 23, 21, 12, 15],
    [0, 39, 13, 47, 23, 9, 42, 43, 13, 31],
    [0, 13, 5, 14, 41, 10, 10, 24, 19, 1],
    [0, 9, 6, 22, 18, 46, 33, 46, 12, 32],
    [0, 22, 45, 46, 35, 25, 1, 24, 30, 48],
    [0, 1, 41, 12, 48, 34, 42, 3, 10, 40],
    [0, 12, 39, 8, 10, 14, 18, 15, 28, 23],
    [0, 36, 22, 43, 24, 38, 11, 42, 8, 36],
    [0, 6, 34, 33, 49, 31, 15, 44, 49, 21],
    [0, 44, 14, 11, 22, 7, 31, 30, 9, 4],
]
PROPERTIES = [  # id_params.pkl: the first row of the chain of properties of each concept
    [0.3864891, 0.3046475, 0.0, 0.0, 0.0002026, 0.0009405, 0.2983402, 0.0038648, 0.0055153, 0.0],
    [0.0613002, 0.0049452, 0.0019239, 0.2149233, 0.0075944, 0.0, 0.1337738, 0.0001569, 0.0, 0.5753823],
    [0.0, 0.1280284, 0.0012635, 0.1688621, 0.0035634, 0.0658675, 0.6023714, 0.0300437, 0.0, 0.0],
    [0.0004564, 0.0026217, 0.0, 0.0012086, 0.0, 0.0, 0.0, 0.5908312, 0.0004258, 0.4044564],
    [0.0, 0.0, 0.0008483, 0.0, 0.8601885, 0.0017905, 0.0, 0.1008179, 0.0353075, 0.0010474],
]
VALUES = [0.9, 0.0136819, 6.22e-05, 0.0, 0.0842179, 0.0, 0.000162, 0.001876, 0.0, 0.0]  # the same for all concepts
DOCUMENT = "ar am ak am v ar x ak ak ak ak am / k ak / ak h aq v am k ak h aq h aq / k v am aq v ak am aq ak am x ak"
"""The beginning of the first document of val.json, drawn from concept 2."""

GOLDEN_PROMPT = [13, 9, 31, 0, 13, 39, 31, 0, 45, 24, 0]
"""The first prompt of two examples of length 3 and a third one, of seed 0."""

TINY = ginc(2, 3, 4, 2, transition_temperature=0.5, value_identity=0.6, seed=3)


def every_word(symbols: int, length: int) -> np.ndarray:
    return np.array(list(itertools.product(range(symbols), repeat=length)))


def path_probability(hmm: HMM, start: np.ndarray, word: tuple[int, ...]) -> float:
    """The sum over all paths of hidden states, one by one."""
    total = 0.0
    for path in itertools.product(range(hmm.num_states), repeat=len(word)):
        probability = start[path[0]] if path else 1.0
        for now, then in itertools.pairwise(path):
            probability *= hmm.transition[now, then]
        for state, symbol in zip(path, word, strict=True):
            probability *= hmm.emission[state, symbol]
        total += probability
    return total


def prompt_probability(size: int, word: tuple[int, ...], components: list[tuple[HMM, int]]) -> float:
    """The mean over concepts and first properties of the product over examples."""
    total, pieces = 0.0, [word[begin : begin + size] for begin in range(0, len(word), size + 1)]
    if any(symbol != 0 for symbol in word[size :: size + 1]):
        return 0.0
    for hmm, first_property in components:
        start = np.array([0.5 * (state % 3 == first_property) for state in range(6)])
        total += np.prod([path_probability(hmm, start, piece) for piece in pieces])
    return total / len(components)


@pytest.mark.outside(
    "https://github.com/p-lambda/incontext-learning/tree/main/data/GINC_trans0.1_start10.0_nsymbols50_nvalues10_nslots10_vic0.9_nhmms10",
    "the tables and documents of the published data set",
    "ginc() has the tables of its pickles, and names the concept of its documents",
)
def test_the_default_is_the_published_data_set():
    family = ginc()
    assert (len(family.hmms), family.num_symbols, family.weights) == (5, 50, (0.2,) * 5)
    for hmm, first_row in zip(family.hmms, PROPERTIES, strict=True):
        np.testing.assert_array_equal(hmm.emission.argmax(1).reshape(10, 10), MEMORY)
        np.testing.assert_array_equal(hmm.emission.max(1), 1)
        moves = hmm.transition.reshape(10, 10, 10, 10)  # value, property, next value, next property
        np.testing.assert_allclose(moves[0, 0].sum(0), first_row, atol=6e-8)
        np.testing.assert_allclose(moves[0, 0].sum(1), VALUES, atol=6e-8)
        assert hmm.start.max() / hmm.start.min() < np.exp(0.1)  # numbers in [0, 1), divided by 10
    names = family.hmms[0].vocabulary
    assert (names[:3], names[26:28], names[-1]) == (("/", "a", "b"), ("z", "ab"), "ax")
    row = [[names.index(word) for word in DOCUMENT.split()]]
    np.testing.assert_allclose(family.component_posteriors(row)[0, -1], np.eye(5)[2], atol=1e-4)


@pytest.mark.outside(
    "https://github.com/p-lambda/incontext-learning/issues/5",
    "GINC with 10,000 concepts",
    "ginc(num_concepts=10_000); the first concepts are the same however many there are",
)
def test_more_concepts_begin_with_those_of_fewer():
    many, few = ginc(num_concepts=60), ginc()
    for first, second in zip(many.hmms, few.hmms, strict=False):
        np.testing.assert_array_equal(first.transition, second.transition)
        np.testing.assert_array_equal(first.start, second.start)
    assert len(many.hmms) == 60


def test_prompts_have_the_probabilities_of_enumerated_concepts_properties_and_paths():
    prompts = ginc_prompts(TINY, 2)
    components = [(hmm, first_property) for hmm in TINY.hmms for first_property in (1, 2)]
    words = every_word(4, 5)
    mask = words[:, 2] == 0
    likelihood = np.exp(prompts.log_likelihood(words))
    np.testing.assert_array_equal(likelihood[~mask], 0)
    expected = [prompt_probability(2, tuple(word), components) for word in words[mask].tolist()]
    np.testing.assert_allclose(likelihood[mask], expected, atol=1e-10)
    assert likelihood.sum() == pytest.approx(1)
    # The answer of the second example, given everything before.
    table = np.array(expected).reshape(4, 4, 4, 4)
    totals = table.sum(-1, keepdims=True)
    exact = np.divide(table, totals, out=np.zeros_like(table), where=totals > 0).reshape(-1, 4)
    given = words[mask][::4, :4]
    np.testing.assert_allclose(prompts.next_token_probs(given)[:, -1], exact, atol=1e-10)


@pytest.mark.parametrize("leak", [0.0, 0.1])
def test_documents_have_the_probabilities_of_enumerated_paths_and_leaks(leak):
    family = ginc(2, 3, 4, 2, transition_temperature=0.5, value_identity=0.6, seed=3, leak=leak)
    expected = []
    for word in every_word(4, 3).tolist():
        total = 0.0
        for hmm in TINY.hmms:
            for leaks in itertools.product((False, True), repeat=3):
                probability, piece = 1.0, []
                for symbol, leaked in zip([*word, None], [*leaks, True], strict=True):
                    if not leaked:
                        piece.append(symbol)
                        continue
                    probability *= path_probability(hmm, hmm.start, tuple(piece)) * (1 - leak) ** len(piece)
                    probability *= 1 if symbol is None else leak / 4
                    piece = []
                total += probability / 2
        expected.append(total)
    np.testing.assert_allclose(np.exp(family.log_likelihood(every_word(4, 3))), expected, atol=1e-10)


def test_a_leak_makes_every_prompt_possible():
    rows = ginc_prompts(ginc(), 3).sample(64, 8 * 4 + 2)
    assert (ginc().next_token_probs(rows)[:, -1].sum(-1) == 0).any()
    np.testing.assert_allclose(ginc(leak=0.01).next_token_probs(rows).sum(-1), 1)


def test_rows_depend_on_process_seed_and_index_alone_and_are_what_they_were(tmp_path):
    for name, process in {"documents": TINY, "prompts": ginc_prompts(TINY, 3)}.items():
        rows = process.sample(5, 30, seed=1, first=2**63 + 7, step=3)
        np.testing.assert_array_equal(rows[2], process.sample(1, 30, seed=1, first=2**63 + 13)[0])
        np.testing.assert_array_equal(rows[:, :9], process.sample(5, 9, seed=1, first=2**63 + 7, step=3))
        process.save_pretrained(tmp_path / name)
        assert load_source(tmp_path / name).fingerprint() == process.fingerprint()
    assert ginc_prompts(ginc(), 3).sample(1, 11)[0].tolist() == GOLDEN_PROMPT


def test_the_program_writes_folders_that_commands_read(program, succeeded, tmp_path, capsys):
    script = "recipes/experiments/ginc/concepts.py"
    succeeded(program.run(script, tmp_path / "documents"))
    succeeded(program.run(script, tmp_path / "prompts", 3))
    for name, process in {"documents": ginc(), "prompts": ginc_prompts(ginc(), 3)}.items():
        assert load_source(tmp_path / name).fingerprint() == process.fingerprint()
        assert main(["describe", str(tmp_path / name)]) == 0
        assert "50" in capsys.readouterr().out


def test_wrong_arguments_are_refused():
    for wrong, message in (
        ({"transition_temperature": 0}, "transition_temperature is 0"),
        ({"value_identity": 1.5}, "value_identity is 1.5"),
        ({"leak": -0.1}, "leak is -0.1"),
        ({"num_symbols": 1}, "num_symbols is 1"),
    ):
        with pytest.raises(InputError, match=message):
            ginc(**wrong)
    for other in (ginc(2, 3, 4, 2, leak=0.1), HMMMixture((processes.weather(),), (1.0,))):
        with pytest.raises(InputError, match="expected ginc"):
            ginc_prompts(other, 3)
    with pytest.raises(InputError, match="expected two or more"):
        ginc_prompts(ginc(2, 1, 4, 2), 3)
    with pytest.raises(InputError, match="example_length is 1"):
        ginc_prompts(TINY, 1)
