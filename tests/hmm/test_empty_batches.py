"""No sequences, and sequences of no tokens, in every method of every kind of process."""

import contextlib

import numpy as np
import pytest
import torch
from composed_examples import EXAMPLES

from hmm_datasets import (
    PCFG,
    FactoredProcess,
    GeneralizedHMM,
    PermutedEmissions,
    PermutedSymbols,
    RandomChains,
    TiltedHMM,
    processes,
)
from hmm_datasets.errors import InputError
from hmm_datasets.hmm.families import ContextTrees, HigherOrderChains, RandomAutomata
from hmm_datasets.hmm.families.episodic_tasks import AssociativeRecall, Bijection, Copying
from hmm_datasets.hmm.families.mixture import ProcessMixture
from hmm_datasets.hmm.structured.delimited import DelimitedProcess
from hmm_datasets.hmm.structured.ended import EndedProcess

KINDS = EXAMPLES | {
    "state-emitting": processes.dishonest_casino(),
    "edge-emitting": processes.golden_mean(),
    "one state, one symbol": processes.coin(1.0),
    "generalized": processes.moon(),
    "non-negative generalized": GeneralizedHMM.from_hmm(processes.even()),
    "noisy generalized": FactoredProcess([processes.moon(), processes.even()], noise=0.1),
    "mixture of a generalized HMM": ProcessMixture([processes.mess3(0.15, 0.6), processes.moon()]),
    "permuted symbols": PermutedSymbols(processes.mess3(0.15, 0.6)),
    "permuted emissions": PermutedEmissions(processes.dishonest_casino(), group=2),
    "random chains": RandomChains((2, 3), alpha=1.0, alphabet=4),
    "hidden chains": RandomChains(3, alpha=1.0, emission_alpha=1.0, start="stationary"),
    "with an end": EndedProcess(processes.mess3(0.15, 0.6), 2),
    "pieces": DelimitedProcess(processes.mess3(0.15, 0.6), 2),
    "chains of order 2": HigherOrderChains(2, 3),
    "trees of contexts": ContextTrees(2, 3),
    "mixed alphabets": ProcessMixture([processes.even(), processes.mess3(0.15, 0.6)]),
    "automata": RandomAutomata((4, 6), 5, alphabet=(4, 5), stop=0.1),
    "grammar": PCFG.from_rules("S -> S S [0.3] | x [0.7]"),
    "bijection": Bijection(3),
    "copying": Copying(3, 2),
    "recall": AssociativeRecall(4, 3, 2),
    "rewarded symbols": TiltedHMM(processes.mess3(0.15, 0.6), [0, 0.3, -0.3], 1.0, 5),
    "rewarded pairs": TiltedHMM(processes.golden_mean(), [[0, 1], [1, 0]], 1.0, 5),
}

WIDTHS = {"next_token_probs": "num_symbols", "oracle_next_token_probs": "num_symbols", "beliefs": "belief_width"}
OTHERS = ("posteriors", "viterbi", "expected_counts", "component_posteriors", "joint_beliefs",
          "factor_tokens", "reward")  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("rows", [0, 2])
@pytest.mark.parametrize("length", [0, 1])
def test_every_method_takes_no_sequences_and_no_tokens(name, rows, length):
    process = KINDS[name]
    shape = (rows,) if isinstance(process, TiltedHMM) else (rows, length)
    tokens = process.sample(*shape).astype(np.int64)[:, :length]
    if getattr(process, "has_states", False):
        assert process.sample_with_states(rows, length)[1].shape == (rows, length)

    def check(method, found) -> None:
        assert not any(np.isnan(np.asarray(part)).any() for part in _parts(found))
        if method in WIDTHS:
            assert found.shape == (rows, length + 1, getattr(process, WIDTHS[method]))
        if method == "log_likelihood":
            assert found.shape == (rows,)
            assert length > 0 or (np.abs(np.asarray(found)) < 1e-12).all()

    for given in (tokens, torch.from_numpy(np.ascontiguousarray(tokens))):
        for method in (*WIDTHS, "log_likelihood", *OTHERS):
            if not hasattr(process, method):
                continue
            with contextlib.suppress(InputError):  # of those that this kind does not have
                check(method, getattr(process, method)(given))
    if not isinstance(process, TiltedHMM):
        with contextlib.suppress(InputError):
            assert process.optimal_loss(length, num_sequences=2).nats.shape == (length,)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["state-emitting", "edge-emitting"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_of_length_zero_beside_padding(name, dtype):
    hmm, ends = KINDS[name], np.zeros(2, int)
    tokens = np.zeros((2, 3), int)
    for method in (*WIDTHS, "log_likelihood", "posteriors", "viterbi", "expected_counts"):
        if method != "oracle_next_token_probs":
            found = _parts(getattr(hmm, method)(tokens, lengths=ends, dtype=dtype))
            assert not any(np.isnan(np.asarray(part)).any() for part in found)
    assert not hmm.log_likelihood(tokens, lengths=ends, dtype=dtype).any()
    paths, scores = hmm.viterbi(tokens, lengths=ends, dtype=dtype)
    assert not paths.any()
    assert scores.tolist() == [0, 0]


def _parts(found) -> list:
    return [part for part in (found if isinstance(found, tuple | list) else (found,)) if part is not None]


@pytest.mark.thorough
@pytest.mark.parametrize("name", KINDS)
def test_every_method_heeds_masks_and_refuses_what_is_no_symbol(name):
    process = KINDS[name]
    length = 4 if not isinstance(process, TiltedHMM) else process.length
    tokens = process.sample(*((2,) if isinstance(process, TiltedHMM) else (2, length))).astype(np.int64)
    masked = np.ma.masked_array(tokens, tokens < -1)
    plain, masked[1, 1] = masked.copy(), np.ma.masked
    for method in (*WIDTHS, "log_likelihood", *OTHERS):
        if not hasattr(process, method):
            continue
        try:
            expected = getattr(process, method)(tokens)
        except InputError:  # this kind does not have it
            continue
        for part, other in zip(_parts(getattr(process, method)(plain)), _parts(expected), strict=True):
            np.testing.assert_array_equal(np.asarray(part), np.asarray(other))
        for wrong, message in ((tokens > 0, "bool"), (tokens * 1.0, "float64")):
            with pytest.raises(InputError, match=message):
                getattr(process, method)(wrong)
        lost = np.where(np.ma.getmaskarray(masked), -1, tokens)
        results, named = [], []
        for given, message in ((lost, "[1, 1] is -1"), (masked, "[1, 1] is missing")):
            try:
                results.append(_parts(getattr(process, method)(given)))
            except InputError as error:
                named.append(message in str(error))
        assert named in ([], [True, True])
        for part, other in zip(*results, strict=True):
            np.testing.assert_array_equal(np.asarray(part), np.asarray(other))
