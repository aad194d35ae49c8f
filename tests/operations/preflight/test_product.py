import torch

from hmm_datasets.operations.preflight import device
from hmm_datasets.operations.preflight.device import check_product


def test_products_of_one_device_are_exact_and_the_same_every_time():
    threads = torch.get_num_threads()
    (check, product), (_, again) = check_product(None, 0.1), check_product(None, 0.0)
    assert check.ok
    assert product == again
    assert torch.get_num_threads() == threads


def test_a_device_that_contradicts_itself_or_is_not_exact_fails_alone(monkeypatch):
    monkeypatch.setattr(torch, "equal", lambda left, right: False)
    monkeypatch.setattr(device, "_is_exact", lambda *_: True)
    assert check_product(None, 0.0)[0].detail.startswith("2 of 2 products differ from the first; take it out of use")
    monkeypatch.setattr(device, "_is_exact", lambda *_: False)
    check, _ = check_product(None, 0.0)
    assert not check.ok
    assert check.detail.startswith("a product of integers is wrong; take it out of use")
