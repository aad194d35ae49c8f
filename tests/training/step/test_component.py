"""Components stand in an order in which each finds what it needs."""

import random

import pytest
from tiny_runs import trainer

from hmm_datasets.training.step.component import in_order


def test_components_stand_before_those_that_they_need_whatever_their_order(tmp_path):
    components = trainer(tmp_path).components
    assert len(components) == 11
    assert in_order(components) == components
    names = {type(one).__name__ for one in components}
    for seed in range(20):
        found = in_order(random.Random(seed).sample(components, len(components)))
        place = {type(one).__name__: index for index, one in enumerate(found)}
        for one in found:
            assert {*one.needs} <= names
            assert all(place[name] > place[type(one).__name__] for name in one.needs)


def test_components_that_need_each_other_are_no_list(tmp_path):
    loss, *_ = (one for one in trainer(tmp_path).components if type(one).__name__ == "ZLoss")
    loss.needs = ("StepLoss",)
    with pytest.raises(StopIteration):
        in_order([loss, *(one for one in trainer(tmp_path).components if type(one).__name__ == "StepLoss")])
