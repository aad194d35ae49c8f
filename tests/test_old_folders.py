"""Folders that an older version wrote load afterwards: processes, streams, fits, runs and the files around them.

`tests/old_folders/write.py` wrote the archives with the package of the commits that they are named after, and says how
another is added.
"""

import json
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).with_name("old_folders")))
import write

from hmm_datasets import load_source
from hmm_datasets.hmm.tilted import TiltedHMM

ARCHIVES = sorted(Path(write.__file__).parent.glob("*.tar.xz"))


@pytest.fixture(scope="module", params=ARCHIVES, ids=lambda path: path.name.split(".")[0])
def old(request, tmp_path_factory) -> Path:
    """The folders of an archive."""
    folder = tmp_path_factory.mktemp("old")
    with tarfile.open(request.param) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def expected(old) -> dict:
    """What the folders hold, as the version that wrote them computed it."""
    return json.loads((old / "expected.json").read_text())


def assert_same(found, expected, where=""):
    """Integers, strings and names are equal, floats to a rounding error."""
    if isinstance(expected, dict):
        assert found.keys() >= expected.keys(), where
        for name, value in expected.items():
            assert_same(found[name], value, f"{where} {name}")
    elif isinstance(expected, list) and np.asarray(expected).dtype.kind == "f":
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14, err_msg=where)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-12), where
    else:
        assert found == expected, where


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_processes_of_every_kind_load_and_are_saved_again_as_they_were(old, expected, tmp_path):
    assert {path.name for path in (old / "processes").iterdir()} == expected["processes"].keys()
    for name, then in expected["processes"].items():
        process = load_source(old / "processes" / name)
        found = write.described(process)
        if "entropy_rate" in then:
            found["entropy_rate"] = float(process.entropy_rate().value)
        if "vocabulary" in then:
            found["vocabulary"] = list(process.vocabulary)
        assert_same(found, then, name)
        process.save_pretrained(tmp_path / name)
        assert files_of(tmp_path / name) == files_of(old / "processes" / name), name


def test_every_kind_of_process_is_among_the_old_folders(old):
    from hmm_datasets.hmm.families.storage import _KINDS
    from hmm_datasets.hmm.process_storage import KINDS

    files = [*(old / "processes").rglob("process.json"), *(old / "processes").rglob("family.json")]
    kept = [json.loads(path.read_text()) for path in files]
    assert {one.get("process", one.get("family")) for one in kept} >= KINDS.keys() | _KINDS.keys()


def test_tilted_hmms_load_and_are_saved_again_as_they_were(old, expected, tmp_path):
    for name, then in expected["tilted"].items():
        tilted = TiltedHMM.from_pretrained(old / "tilted" / name)
        assert_same(write.described_tilted(tilted), then, name)
        tilted.save_pretrained(tmp_path / name)
        assert files_of(tmp_path / name) == files_of(old / "tilted" / name), name


def test_transformers_loads_models_that_are_hmms(old, expected):
    for name, then in expected["models"].items():
        assert_same(write.described_model(old / "models" / name), then, name)
