"""What the compiled loops alone promise: the same bits for a row in any company, and the paths of the recursion."""

import numpy as np
import pytest
import torch
from brute_force import LEFT_TO_RIGHT, random_edges

from hmm_datasets.hmm import inference, processes
from hmm_datasets.hmm.kernels import filter as filter_kernels

HMMS = {
    "states": processes.random(5, 4, alpha=0.5, seed=1),
    "left to right": LEFT_TO_RIGHT,
    "even": processes.even(0.3),
    "edges": random_edges(4, 3, seed=2),
}
hmms = pytest.mark.parametrize("hmm", HMMS.values(), ids=HMMS)


@pytest.fixture(scope="module", autouse=True)
def way():
    """Instead of that of the other modules, which runs every test in torch too."""


@hmms
def test_a_row_is_the_same_to_the_last_bit_alone_among_others_and_in_any_thread(hmm):
    tokens = torch.from_numpy(hmm.sample(700, 50, seed=1).astype(int))  # enough for two threads
    lengths = torch.arange(700) % 51
    names = ("log_likelihood", "beliefs", "posteriors")
    threads, found = torch.get_num_threads(), {}
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            found[number] = {name: getattr(hmm, name)(tokens, lengths=lengths) for name in names}
    finally:
        torch.set_num_threads(threads)
    for name, whole in found[1].items():
        assert torch.equal(whole, found[2][name]), name
        for row in (0, 1, 50, 699):
            alone = getattr(hmm, name)(tokens[row : row + 1], lengths=lengths[row : row + 1])
            assert torch.equal(alone[0], whole[row]), (name, row)


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("states", [1, 2, 3, 4, 5, 8, 9, 16, 17, 21, 37])
def test_every_remainder_of_blocks_and_panels_gives_what_torch_gives(states, dtype, monkeypatch):
    tolerance = {"rtol": 1e-4, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 1e-10, "atol": 1e-13}
    lengths = 5 * torch.arange(19) % 24
    for hmm in (processes.random(states, 7, alpha=0.5, seed=1), random_edges(states, 3, seed=2)):
        tokens = torch.from_numpy(hmm.sample(19, 23, seed=3).astype(int))
        for name in ("log_likelihood", "beliefs", "posteriors", "next_token_probs"):
            compiled = getattr(hmm, name)(tokens, lengths=lengths, dtype=dtype)
            with monkeypatch.context() as patch:
                patch.setattr(inference, "serves", lambda *tables: False)
                called = getattr(hmm, name)(tokens, lengths=lengths, dtype=dtype)
            torch.testing.assert_close(compiled, called, **tolerance)


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@hmms
def test_the_paths_are_those_of_the_recursion_to_the_last_bit(hmm, dtype):
    tokens = hmm.sample(40, 30, seed=4)
    lengths = np.arange(40) % 31
    path = hmm.viterbi(tokens, lengths=lengths, dtype=dtype)
    for row, length in enumerate(lengths.tolist()):
        states, score = best_path(hmm.parameters(dtype), tokens[row, :length])
        assert path.log_probability[row] == (np.float32(score) if dtype == torch.float32 else score)
        assert path.states[row].tolist() == [*states, *[0] * (30 - length)]


def best_path(hmm: inference.Parameters, word) -> tuple[list[int], float]:
    """Viterbi's recursion for one row; of ways that tie that from the lowest state."""
    with np.errstate(divide="ignore"):
        arrival, emission, transition = (np.log(t.numpy()) for t in (hmm.start, hmm.emission.T, hmm.transition))
        edges = None if hmm.edges is None else np.log(hmm.edges.numpy())
    total, came = 0.0, []
    for t, symbol in enumerate(word):
        total, ready = total + float(arrival.max()), arrival - arrival.max()
        if edges is None or t + 1 == len(word):
            ready = ready + emission[symbol]
        if t + 1 < len(word):
            sums = ready[:, None] + (transition if edges is None else edges[symbol])
            came.append(sums.argmax(0))
            arrival = sums.max(0)
    if len(word) == 0:
        return [], 0.0
    states = [int(ready.argmax())]
    for origins in reversed(came):
        states.insert(0, int(origins[states[0]]))
    return states, float(ready.max()) + total


def test_the_paths_of_few_rows_are_those_of_many():
    hmm = processes.random(7, 5, alpha=0.5, seed=2)
    tokens = hmm.sample(37, 40, seed=3)
    whole = hmm.viterbi(tokens)
    for count in (1, 2, 9, 17):
        few = hmm.viterbi(tokens[:count])
        assert (few.states == whole.states[:count]).all()
        assert (few.log_probability == whole.log_probability[:count]).all()


def test_rows_beside_an_impossible_one_keep_their_results():
    hmm = HMMS["left to right"]
    tokens = hmm.sample(40, 12, seed=5).astype(int)
    tokens[0] = tokens[1, ::-1]
    assert hmm.log_likelihood(tokens)[0] == -torch.inf
    for name in ("log_likelihood", "beliefs", "posteriors", "viterbi"):
        found, alone = getattr(hmm, name)(tokens), getattr(hmm, name)(tokens[1:])
        for with_it, without in zip(*((x if name == "viterbi" else (x,)) for x in (found, alone)), strict=True):
            assert (with_it[1:] == without).all(), name


def test_a_gradient_is_computed_by_torch():
    parameters = HMMS["states"].parameters()
    parameters.transition.requires_grad_()
    assert not inference.serves(parameters)
    with torch.no_grad():
        assert inference.serves(parameters)


@pytest.mark.outside(
    "https://github.com/numba/numba/pull/9566",
    "less time until a compiled function has run once, of functions that call one another",
    "loops have no entry that nothing calls, and the filter is compiled once for beliefs, predictions and likelihoods",
)
def test_the_filter_is_compiled_once_for_all_that_it_gives():
    hmm = processes.random(3, 4, seed=1)
    tokens = hmm.sample(3, 5)
    hmm.beliefs(tokens), hmm.next_token_probs(tokens), hmm.log_likelihood(tokens), hmm.posteriors(tokens)
    forward = filter_kernels._forward
    readouts = {str(signature[5]) for signature in forward.signatures}
    assert "none" not in readouts
    assert len(readouts) == len({str(signature[2]) for signature in forward.signatures}), "one for each type of tables"
    assert forward.targetoptions["no_cfunc_wrapper"]
