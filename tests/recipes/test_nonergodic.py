"""The excess along the context of mixtures of processes, and the recipe that fits its power law."""

import math

import numpy as np
import pytest
from experiments import imports_of, load

from hmm_datasets.errors import InputError
from hmm_datasets.files import read_json
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.families import RandomChains
from hmm_datasets.hmm.families.mixture import ChainMixture, random_chain_mixture
from hmm_datasets.runtime.command_line import parse_settings
from hmm_datasets.runtime.shipped import EXPERIMENTS, shipped

measure = load("nonergodic", "measure")

FOLDER = shipped(EXPERIMENTS) / "nonergodic"


RECIPE = load("nonergodic")


def test_the_excess_of_two_coins_is_the_information_that_a_throw_gives():
    # Chains without memory: coins of 1/4 and 3/4. The mean over both coins is fair, so the first throw says
    # ln 2 - h(1/4) nats about the coin, and this is the excess of a predictor that does not know it.
    coins = ChainMixture([[[0.75, 0.25]] * 2, [[0.25, 0.75]] * 2])
    excess = measure.excess_by_position(coins, 4096, 64, seed=3)
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert excess[:, 0] == pytest.approx(math.log(2) - entropy, abs=1e-12)
    assert excess.min() > -1e-12
    total = excess.sum(1)
    error = total.std() / math.sqrt(len(total))
    # After 64 throws the coin is known but for a probability below 0.001: all of ln 2 has been gained.
    assert total.mean() == pytest.approx(math.log(2), abs=4 * error + 0.005)


@pytest.mark.thorough
def test_all_chains_of_two_symbols_have_the_excess_that_theory_says():
    # Two parameters: d / 2t = 1 / t. Corrections are of the order of 1 / t**2.
    excess = measure.excess_by_position(RandomChains(num_states=2, alpha=1.0), 1024, 257, seed=1)
    times = np.arange(257) * excess
    found = times[:, 128:].mean(1)
    assert found.mean() == pytest.approx(1.0, abs=4 * found.std() / 32 + 0.05)


def test_other_predictors_have_a_greater_excess_on_the_same_sequences():
    mixture = random_chain_mixture(8, 2)
    half = lambda tokens: tokens.new_full((*tokens.shape, 2), 0.5).double()  # noqa: E731
    optimal, uniform = (measure.excess_by_position(mixture, 256, 32, seed=1, predictor=one) for one in (None, half))
    assert (uniform.mean(0) >= optimal.mean(0)).all()
    again = measure.excess_by_position(mixture, 16, 32, seed=1)
    assert np.allclose(again, optimal[:16], atol=1e-12)


def test_a_process_without_an_oracle_is_refused():
    with pytest.raises(InputError, match="expected a process with an oracle"):
        measure.excess_by_position(processes.mess3(0.15, 0.6), 2, 4)


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
def test_a_power_law_is_found_with_its_exponent_and_coefficient(exponent):
    noise = np.random.default_rng(0).gamma(2.0, 0.5, size=(400, 1))
    rows = noise * 3.0 * np.maximum(np.arange(300.0), 1) ** -exponent
    fit = measure.fit_power_law(rows, 16, 128)
    assert fit.exponent == pytest.approx(exponent, abs=0.01)
    assert fit.coefficient == pytest.approx(3.0 * noise.mean(), rel=0.03)
    assert fit.standard_error < 1e-9, "all sequences have the same exponent"


@pytest.mark.thorough
def test_the_interval_of_an_exponent_covers_it_about_as_often_as_it_says():
    generator = np.random.default_rng(1)
    covered = 0
    for _ in range(100):
        rows = generator.gamma(0.5, 2.0, size=(200, 130)) * np.maximum(np.arange(130.0), 1) ** -1.0
        low, high = measure.fit_power_law(rows, 8, 128, resamples=200).interval
        covered += low <= 1.0 <= high
    assert 85 <= covered <= 100  # 95 expected; the standard deviation is 2.2


def test_positions_out_of_range_are_refused():
    with pytest.raises(InputError, match="at most 9"):
        measure.fit_power_law(np.ones((2, 10)), 4, 10)
    with pytest.raises(InputError, match="not positive"):
        measure.fit_power_law(np.zeros((2, 10)), 2, 8)


@pytest.mark.thorough
@pytest.mark.parametrize(("count", "straight"), [(2, False), (64, True)])
def test_the_excess_of_few_chains_is_not_taken_for_a_power_law(count, straight):
    """Once the chain is known the excess falls exponentially, and a line through it has a slope of no meaning."""
    excess = measure.excess_by_position(random_chain_mixture(count, 2), 256, 257, seed=1)
    assert measure.fit_power_law(excess, 32, 256).is_straight == straight


def test_an_exponent_whose_interval_has_zero_is_no_power_law():
    """An excess that does not fall lies on a line as well as one that does."""
    rows = np.random.default_rng(0).gamma(0.5, 2.0, size=(200, 130))
    fit = measure.fit_power_law(rows, 8, 128)
    assert fit.interval[0] < 0 < fit.interval[1]
    assert not fit.is_straight


@pytest.mark.parametrize("config", ["small.yaml", "full.yaml"])
def test_the_settings_name_processes_with_exact_excess(config):
    flags = ["--config", str(FOLDER / config), "--counts", "3", "5"]
    chosen = parse_settings(RECIPE.NonergodicSettings, arguments=flags)[0]
    sources = RECIPE.processes_of(chosen)
    assert list(sources) == ["3 chains", "5 chains", "all chains", "64 Mess3"]
    assert all(source.has_exact_distribution and source.has_oracle for source in sources.values())


def test_wrong_settings_are_refused():
    with pytest.raises(InputError, match="counts is"):
        RECIPE.NonergodicSettings("x", counts=[])
    with pytest.raises(InputError, match="2 or more, so that one is unknown"):
        RECIPE.NonergodicSettings("x", counts=[1, 8])
    with pytest.raises(InputError, match="length is 64; expected 128 or more"):
        RECIPE.NonergodicSettings("x", length=64)
    with imports_of("nonergodic"), pytest.raises(InputError, match="pretrain: --length is decided by the experiment"):
        RECIPE.main(RECIPE.NonergodicSettings("x", pretrain="--model 1m --length 128"))


@pytest.mark.slow
@pytest.mark.thorough
def test_the_experiment_ends_in_its_result(program, succeeded, tmp_path):
    small = ("--counts", 4, 16, "--length", 128, "--num_sequences", 64)
    small += ("--train_tokens", 8_000, "--output_dir", tmp_path)
    succeeded(
        program.run(
            "recipes/experiments/nonergodic/run.py", "--config", "recipes/experiments/nonergodic/small.yaml", *small
        )
    )
    content = read_json(tmp_path / "result.json")
    assert set(content["excess"]) == {"4 chains", "16 chains", "all chains", "64 Mess3", "model"}
    gained = next(one for one in content["findings"] if "at most 2.773" in one["quantity"])
    assert 0 < gained["measured"] < math.log(16)
    assert content["findings"][-1]["measured"] > 0, "the model is above the optimum"
    assert (tmp_path / "excess.png").stat().st_size > 5_000
