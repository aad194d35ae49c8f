"""Numbers that are no integers within their bounds are refused by name, wherever sizes, seeds or counts are given."""

import numpy as np
import pytest
import torch
from experiments import load

from hmm_datasets import (
    HMM,
    FactoredProcess,
    FitSettings,
    HMMMixture,
    HMMSequences,
    InterleavedRows,
    MarkovChain,
    PermutedEmissions,
    PermutedSymbols,
    RandomChains,
    TiltedHMM,
    fit_hmm,
    processes,
)
from hmm_datasets.data.builders.hmm import HMMBuilderConfig
from hmm_datasets.data.epochs import ShuffledEpochs
from hmm_datasets.errors import InputError
from hmm_datasets.hmm.analysis.losses import mean_losses, window_losses
from hmm_datasets.hmm.analysis.mixed_states import mixed_states
from hmm_datasets.hmm.analysis.predictors import ngram, predictors_of, unigram
from hmm_datasets.hmm.families import RandomAutomata
from hmm_datasets.hmm.families.episodic_tasks import Bijection
from hmm_datasets.hmm.families.mixture import ProcessMixture, random_chain_mixture
from hmm_datasets.hmm.grammar import PCFG, random_hierarchy
from hmm_datasets.hmm.integers import integer, integer_range
from hmm_datasets.hmm.structured.markov import random_markov_chain

measure = load("nonergodic", "measure")

MESS3, CHAINS = processes.mess3(0.15, 0.6), random_chain_mixture(3, 2)
MIXED = ProcessMixture([MESS3, processes.random(2, 3)])
COINS = FactoredProcess([processes.coin(), processes.coin()])

REFUSED = {
    "group is 1.5": lambda: PermutedSymbols(MESS3, group=1.5),
    "group is 0": lambda: PermutedEmissions(processes.umbrella(), group=0),
    "group is 2.0": lambda: HMMMixture((MESS3,), (1.0,), group=2.0),
    "group is nan": lambda: RandomChains(3, alpha=1.0, group=float("nan")),
    "num_states is 2.5": lambda: RandomChains(2.5, alpha=1.0),
    "num_states[1] is 3.5": lambda: RandomChains((2, 3.5), alpha=1.0),
    "num_states is (3, 2)": lambda: RandomChains((3, 2), alpha=1.0),
    "num_states is (1, 2, 3)": lambda: RandomChains((1, 2, 3), alpha=1.0),
    "alphabet is 4.5": lambda: RandomChains(3, alpha=1.0, alphabet=4.5),
    "num_letters is 5.5": lambda: RandomAutomata(4, 5.5),
    "edges[0] is 0.5": lambda: RandomAutomata(4, 5, edges=(0.5, 2)),
    "length is 2.5": lambda: HMMSequences(MESS3, length=2.5),
    "seed is 1.5": lambda: HMMSequences(MESS3, 4, seed=1.5),
    "num_sequences is 8.0": lambda: HMMSequences(MESS3, 4, num_sequences=8.0),
    "first is 0.5": lambda: HMMSequences(MESS3, 4, first=0.5),
    "num_rows is 9.5": lambda: InterleavedRows([range(50)], [1], num_rows=9.5),
    "epochs is 1.5": lambda: ShuffledEpochs(range(5), 0, 1.5),
    "num_shards is 2.5": lambda: HMMBuilderConfig(num_shards=2.5),
    "num_threads is 1.5": lambda: MESS3.sample(4, 4, num_threads=1.5),
    f"length is {2**31};": lambda: random_markov_chain(1, 2).optimal_loss(2**31),
    f"num_values is {2**31}": lambda: Bijection(2**31),
    f"seed is {2**64}": lambda: MIXED.components_at(3, seed=2**64),
    f"first is {2**64}": lambda: MIXED.components_at(3, first=2**64),
    f"step is {2**64}": lambda: MIXED.components_at(3, step=2**64),
    "num_states is 1.5": lambda: processes.random(1.5, 2),
    "seed is 0.5": lambda: processes.random(2, 2, seed=0.5),
    "num_symbols is 2.5": lambda: processes.left_right(2, 2.5),
    "max_states is 2.5": lambda: mixed_states(MESS3, 2, max_states=2.5),
    "max_states is 9.5": lambda: COINS.joint_beliefs([[0]], max_states=9.5),
    "num_sequences is 2.5": lambda: MIXED.components_at(2.5),
    "num_sequences is 3.5": lambda: CHAINS.components_at(3.5),
    "component is 3": lambda: CHAINS.chain(3),
    "component is -1": lambda: CHAINS.chain(-1),
    "num_sequences is 4.5": lambda: MESS3.entropy_rate(num_sequences=4.5),
    "burn_in is 1.5": lambda: MESS3.entropy_rate(burn_in=1.5),
    "num_sequences is 5.5": lambda: MESS3.optimal_loss(30, num_sequences=5.5),
    "num_sequences is 6.5": lambda: COINS.entropy_rate(num_sequences=6.5),
    "num_sequences is 1": lambda: TiltedHMM(MESS3, [0, 1, 2], 1.0, 3).entropy(1),
    "num_sequences is 7.5": lambda: measure.excess_by_position(CHAINS, 7.5, 4),
    "num_states is 4.5": lambda: FitSettings(num_states=4.5),
    "max_epochs is 2.5": lambda: FitSettings(num_states=2, max_epochs=2.5),
    "num_symbols is 3.5": lambda: fit_hmm([[0, 1]], FitSettings(num_states=1), num_symbols=3.5),
    "num_symbols is 4.5": lambda: PCFG([], [], [[0, 0]], [1.0], num_symbols=4.5),
    "depth is 1.5": lambda: random_hierarchy(4, 2, depth=1.5),
    "alpha is 0": lambda: unigram(torch.tensor([[0, 1]]), 2, alpha=0),
    "strength is 0": lambda: ngram(torch.tensor([[0, 1]]), 2, 2, strength=0),
    "tokens have shape (2, 0)": lambda: window_losses(MESS3, np.zeros((2, 0), int)),
    "tokens hold no sequence": lambda: mean_losses(MESS3, np.zeros((0, 2), int)),
    "hmms[0] is a GeneralizedHMM": lambda: HMMMixture((processes.moon(),), (1.0,)),
    "hmm is a GeneralizedHMM": lambda: PermutedSymbols(processes.moon()),
    "hmm is a MarkovChain": lambda: PermutedEmissions(MarkovChain([0.5, 0.5])),
    "components[0] is a TiltedHMM": lambda: ProcessMixture([TiltedHMM(MESS3, [0, 1, 2], 1.0, 3)]),
    "factors[0] is a list": lambda: FactoredProcess([[0.5, 0.5]]),
    "dtype is torch.bfloat16": lambda: MESS3.log_likelihood([[0]], dtype=torch.bfloat16),
    "dtype is float32": lambda: MESS3.viterbi([[0]], dtype="float32"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("message", REFUSED)
def test_what_would_fail_or_be_wrong_later_is_refused_by_name(message):
    with pytest.raises(InputError) as caught:
        REFUSED[message]()
    assert str(caught.value).startswith(message)


def test_integers_of_any_type_are_taken_as_those_of_python():
    for value in (3, np.int8(3), np.uint64(3), torch.tensor(3), np.array(3)):
        found = integer("number", value, 0, 31)
        assert (found, type(found)) == (3, int)
    assert integer_range("range", [np.int64(2), 3], 1, 31) == (2, 3)
    family = RandomChains((np.int64(2), np.int64(3)), alpha=1.0, group=np.int64(2))
    assert family.fingerprint() == RandomChains((2, 3), alpha=1.0, group=2).fingerprint()
    assert "bayes" in predictors_of(PermutedSymbols(MESS3, group=np.uint8(2)))


def test_rows_whose_sum_overflows_are_rescaled():
    large = np.finfo(float).max
    hmm = HMM(transition=[[large, large], [large, 0]], emission=[[large, large / 3], [1, 3]], normalize=True)
    np.testing.assert_allclose(hmm.transition, [[0.5, 0.5], [1, 0]], rtol=1e-15)
    np.testing.assert_allclose(hmm.emission, [[0.75, 0.25], [0.25, 0.75]], rtol=1e-15)
    with pytest.raises(InputError, match=r"transition\[0\] sums to inf, not 1"):
        HMM(transition=[[large, large], [1, 0]], emission=np.eye(2))
    assert InterleavedRows([range(9), range(9)], [large, large]).counts == [1, 1]


def test_one_column_of_several_sequences_is_refused_with_a_way_out():
    column = MESS3.sample(1, 12).reshape(-1, 1).astype(int)
    with pytest.raises(InputError, match=r"tokens of shape \(N, 1\) are N sequences of one symbol here"):
        MESS3.log_likelihood(column, lengths=[5, 7])
    with pytest.raises(InputError, match=r"no transition can be fitted, since tokens of shape \(N, 1\)"):
        fit_hmm(column, FitSettings(num_states=2))
    assert MESS3.log_likelihood(column).shape == (12,)
