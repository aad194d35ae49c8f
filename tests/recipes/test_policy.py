"""The distance of a policy from the optimum, for policies of which it is known."""

import pytest
import torch
from experiments import load

from hmm_datasets.hmm import processes
from hmm_datasets.hmm.causal_lm import HMMForCausalLM
from hmm_datasets.hmm.tilted import TiltedHMM
from hmm_datasets.hmm.tilted_causal_lm import TiltedHMMForCausalLM

measure_policy = load("known_optimum", "policy").measure_policy
OPTIMUM = TiltedHMM(processes.mess3(0.05, 0.85), [0.0, 0.3, -0.3], 1.0, 16)


@pytest.mark.thorough
def test_the_optimum_has_no_divergence_and_its_own_reward():
    model = TiltedHMMForCausalLM.from_tilted(OPTIMUM, bos_token_id=3)
    found = measure_policy(model, OPTIMUM, 4000, seed=1)
    assert found.divergence == pytest.approx(0, abs=1e-6)
    assert found.reward == pytest.approx(OPTIMUM.expected_reward, abs=0.12)
    assert found.kl_to_reference == pytest.approx(OPTIMUM.kl_to_reference, abs=0.1)


@pytest.mark.thorough
def test_the_hmm_itself_has_the_regret_of_doing_nothing():
    model = HMMForCausalLM.from_hmm(OPTIMUM.hmm, bos_token_id=3)
    state = torch.random.get_rng_state()
    found = measure_policy(model, OPTIMUM, 4000, seed=1)
    assert torch.equal(torch.random.get_rng_state(), state)
    # KL(p || q) = log Z - E_p[r] / beta; the mean reward under the stationary HMM is 0.
    expected = OPTIMUM.log_partition / OPTIMUM.length
    assert found.divergence == pytest.approx(expected, abs=4.5 * found.standard_error)
    assert found.standard_error < 0.01 * expected + 0.002
    assert found.kl_to_reference == pytest.approx(0, abs=1e-5)
    assert found == measure_policy(model, OPTIMUM, 4000, seed=1)


def test_an_hmm_with_impossible_symbols_is_measured_as_its_own_policy():
    optimum = TiltedHMM(processes.golden_mean(), [0.0, 0.1], 1.0, 4)
    found = measure_policy(HMMForCausalLM.from_hmm(optimum.hmm, bos_token_id=2), optimum, 200)
    assert 0 < found.divergence < 0.1
    assert found.kl_to_reference == pytest.approx(0, abs=1e-5)
