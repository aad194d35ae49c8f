import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hmm_datasets.shuffle import epoch_order
from hmm_datasets.text.stream import write_tokens


@pytest.mark.parametrize("size", [*range(1, 70), 255, 256, 257, 1023, 1025, 100_003])
def test_the_order_is_a_permutation(size):
    assert np.array_equal(np.sort(epoch_order(np.arange(size), size, seed=size)), np.arange(size))


def test_the_order_of_a_great_many_windows_takes_no_memory():
    size = 2**62
    indices = np.array([0, 1, 12345, size // 2, size - 1])
    permuted = epoch_order(indices, size, seed=0)
    assert len(set(permuted.tolist())) == 5
    assert ((permuted >= 0) & (permuted < size)).all()


BILLION = """
import json, sys
import numpy as np
from pathlib import Path
from hmm_datasets.text.stream import TokenStream
from hmm_datasets.data.windows import TokenWindows

def resident():
    # Without the pages of files, which the kernel takes back as it likes.
    lines = dict(line.split(":") for line in open("/proc/self/status"))
    return int(lines["RssAnon"].split()[0]) << 10

windows = TokenWindows(TokenStream(sys.argv[1], verify=False), 2, seed=1, epochs=2)
assert len(windows) == 2 * 10**9
indices = np.random.default_rng(0).integers(0, len(windows), (2000, 512))
permuted = windows.window_indices(indices[0])
windows.__getitems__(indices[0][:64])
before = resident()
seen = [windows.window_indices(batch).max() for batch in indices]
rows = windows.__getitems__(indices[1][:64])
print(json.dumps([resident() - before, int(max(seen)), len(rows)]))
"""


@pytest.mark.thorough
def test_a_billion_windows_shuffle_in_no_memory(tmp_path, child_environment):
    folder = tmp_path / "a"
    write_tokens([[1]], folder, vocab_size=9, eos_id=0, tokenizer_hash="", corpus="test")
    # A stream of a billion windows whose files are holes.
    tokens = 2 * 10**9
    index = json.loads((folder / "index.json").read_text())
    index["num_tokens"] = index["shards"][0]["num_tokens"] = tokens
    del index["digest"]  # of the index as it was
    (folder / "index.json").write_text(json.dumps(index))
    os.truncate(folder / "00000.ds", 2 * tokens)
    (folder / "00000.ds.index").write_bytes(tokens.to_bytes(8, "little"))
    done = subprocess.run(
        [sys.executable, "-c", BILLION, folder], env=child_environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    growth, furthest, rows = json.loads(done.stdout)
    assert growth < 1 << 20, "a table would take 8 GB"
    assert furthest > 0.999 * 10**9
    assert rows == 64


def test_places_do_not_depend_on_what_is_asked_together():
    whole = epoch_order(np.arange(1000), 1000, seed=8, epoch=2)
    assert [int(epoch_order(np.array([index]), 1000, seed=8, epoch=2)[0]) for index in range(1000)] == whole.tolist()


def order_in_plain_integers(index: int, size: int, seed: int, epoch: int) -> int:
    """The definition of `epoch_order` once more, in Python's integers."""
    half = next(bits for bits in range(1, 64) if 4**bits >= size)
    key = hashlib.blake2b(f"{seed}:{epoch}".encode(), digest_size=64, person=b"epoch_order").digest()
    while True:
        left, right = divmod(index, 2**half)
        for start in range(0, 64, 8):
            mixed = (right + int.from_bytes(key[start : start + 8], "little")) % 2**64
            mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 % 2**64
            mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB % 2**64
            left, right = right, left ^ (mixed ^ mixed >> 31) % 2**half
        index = left * 2**half + right
        if index < size:
            return index


@settings(deadline=None)
@given(size=st.integers(1, 2**62), seed=st.integers(), epoch=st.integers(0, 9), data=st.data())
def test_the_order_is_its_definition_in_plain_integers(size, seed, epoch, data):
    index = data.draw(st.integers(0, size - 1))
    found = epoch_order(np.array([index]), size, seed, epoch)
    assert found.tolist() == [order_in_plain_integers(index, size, seed, epoch)]


def test_the_order_is_fixed_for_good():
    assert epoch_order(np.arange(10), 10, seed=0).tolist() == [6, 7, 3, 4, 0, 1, 2, 5, 9, 8]
    assert epoch_order(np.arange(3), 10**12, seed=7, epoch=3).tolist() == [807085154577, 928644106393, 776034476402]


def test_another_process_has_the_same_order():
    program = (
        "import numpy as np; from hmm_datasets.shuffle import epoch_order; "
        "print(epoch_order(np.arange(1000), 1000, seed=2**70, epoch=5).tolist())"
    )
    settings = {"env": {"PYTHONHASHSEED": "123", "PYTHONPATH": ":".join(sys.path)}, "text": True, "check": True}
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, **settings)
    assert json.loads(result.stdout) == epoch_order(np.arange(1000), 1000, seed=2**70, epoch=5).tolist()


def test_every_order_of_four_windows_is_about_as_likely():
    seeds = 4800
    found = Counter(tuple(epoch_order(np.arange(4), 4, seed=seed).tolist()) for seed in range(seeds))
    assert set(found) <= set(permutations(range(4)))
    chi_squared = sum((found[order] - seeds / 24) ** 2 / (seeds / 24) for order in permutations(range(4)))
    assert chi_squared < 60  # 23 degrees of freedom: above 60 once in 30,000


def test_each_place_is_about_as_likely_and_neighbours_part():
    seeds, size = 2000, 50
    orders = np.stack([epoch_order(np.arange(size), size, seed=1, epoch=epoch) for epoch in range(seeds)])
    for column in (0, 1, 25, 49):
        counts = np.bincount(orders[:, column], minlength=size)
        assert ((counts - seeds / size) ** 2 / (seeds / size)).sum() < 110  # 49 degrees of freedom: once in a million
    followed = (np.diff(orders, axis=1) == 1).mean()
    assert abs(followed - 1 / size) < 0.002
