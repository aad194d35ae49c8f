"""The detector of spikes: against its definition, on curves without spikes, and over a pause."""

import json
import math

import numpy as np
import pytest

from hmm_datasets.training.step.spike_detector import SpikeDetector


def by_definition(values, deviations=8.0, window=50):
    """The steps that are spikes, computed anew for each step from all values before it."""
    spikes, rises = [], []
    for step, value in enumerate(values):
        before = values[max(0, step - 9) : step]
        if len(before) < 5:
            continue
        usual, rise = rises[-window:], value - np.median(before)
        rises.append(rise)
        if len(usual) >= 5:
            center = np.median(usual)
            spread = max(1.4826 * np.median(np.abs(np.array(usual) - center)), 0.005 * abs(np.median(before)))
            spikes += [step] if rise - max(center, 0) > deviations * spread else []
    return spikes


def found(values, **settings):
    detector = SpikeDetector(**settings)
    return [step for step, value in enumerate(values) if detector.add(float(value)) is not None]


def falling(seed, steps=2000, noise=0.05):
    """A loss that falls from 11 to 2 nats, as that of a language model does."""
    step = np.arange(steps)
    random = np.random.default_rng(seed)
    return 2 + 8 * np.exp(-step / 60) + 1.5 / (1 + step / 300) + random.normal(0, noise, steps)


@pytest.mark.parametrize("window", [5, 50])
def test_it_finds_what_the_definition_says(window):
    values = falling(0, 400) + (np.random.default_rng(1).random(400) < 0.03) * 2.0
    expected = by_definition(list(values), window=window)
    assert expected
    assert found(values, window=window) == expected


@pytest.mark.thorough
def test_no_step_of_an_ordinary_curve_or_of_noise_is_a_spike():
    """40,000 steps each; with heavy tails (Student's t with 3 degrees of freedom) about one in a thousand is."""
    assert not [found(falling(seed)) for seed in range(20) if found(falling(seed))]
    normal = 3 + np.random.default_rng(0).normal(0, 0.1, 40_000)
    assert not found(normal)
    heavy = 3 + 0.1 * np.random.default_rng(0).standard_t(3, 40_000)
    assert 0 < len(found(heavy)) < 80


def test_the_end_of_a_steep_fall_is_no_spike():
    """The losses of a run of 20 steps, which fall by the same amount in each of the first ones."""
    losses = [
        4.2,
        4.2,
        3.8,
        3.23,
        2.77,
        2.42,
        2.05,
        1.73,
        1.54,
        1.28,
        1.15,
        1.03,
        1.0,
        0.9,
        0.81,
        0.86,
        0.87,
        0.91,
        0.84,
        0.78,
    ]
    assert not found(losses)


def test_a_spike_is_found_while_the_loss_falls_and_right_after_another_one():
    values = falling(3)
    for step in (40, 700, 702):
        values[step] += 1.0
    assert found(values) == [40, 700, 702]


def test_a_level_that_lasts_is_no_spike_after_a_few_steps():
    values = falling(4)
    values[1000:] += 2.0
    assert found(values) == [1000, 1001, 1002, 1003, 1004]


def test_its_deviations_are_those_of_a_normal_distribution():
    """Values that alternate by 1 around 0 have a median absolute deviation of 1, so 1.4826 robust deviations."""
    detector = SpikeDetector()
    for step in range(60):
        detector.add((-1.0, 0.0, 1.0)[step % 3])
    spike = detector.add(30.0)
    assert spike is not None
    assert spike.level == 0.0
    assert spike.deviations == pytest.approx(30 / 1.4826)


def test_values_that_are_not_finite_are_ignored():
    values = list(falling(5, 300))
    with_nan = [*values[:100], math.nan, math.inf, *values[100:]]
    assert found(with_nan) == found(values) == []
    values[200] += 3
    assert found(values) == [200]


@pytest.mark.parametrize("pause", [3, 12, 200])
def test_restored_from_a_checkpoint_it_decides_as_if_undisturbed(pause):
    values = falling(6, 400) + (np.random.default_rng(7).random(400) < 0.05) * 2.0
    first, second = SpikeDetector(), SpikeDetector()
    before = [first.add(value) for value in values[:pause]]
    second.restore(json.loads(json.dumps(first.state())))
    undisturbed = SpikeDetector()
    assert before + [second.add(value) for value in values[pause:]] == [undisturbed.add(value) for value in values]
