import torch

from hmm_datasets.operations.preflight.device import Product, measure_product


def test_products_of_one_device_are_exact_and_the_same_every_time():
    threads = torch.get_num_threads()
    one, other = measure_product(0.1), measure_product(0.0)
    assert one.digest == other.digest
    assert one.repeats > other.repeats == 2
    assert one.check.ok
    assert torch.get_num_threads() == threads


def test_a_device_that_contradicts_itself_or_is_not_exact_fails_alone():
    check = Product("H200", "a", "TF32 off", repeats=900, differing=2, exact=True).check
    assert not check.ok
    assert check.detail.startswith("2 of 900 products differ from the first on this H200; take it out of use")
    check = Product("H200", "a", "TF32 off", repeats=900, differing=0, exact=False).check
    assert not check.ok
    assert check.detail.startswith("a product of integers is wrong on this H200")
