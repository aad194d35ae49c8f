"""A library whose version was not tried is named, once per command."""

import os
import subprocess
import sys
from importlib import metadata

import pytest

from hmm_datasets.compat.versions import LIBRARIES, WARNED, untried_versions, warn_of_untried_versions


def test_a_version_outside_the_bounds_is_named_with_them():
    installed = metadata.version("trl")
    newest = LIBRARIES["trl"]
    assert untried_versions([f"trl=={installed}", "numpy<1"]) == []
    assert untried_versions(["trl>=0.1,<0.2"]) == [f"trl {installed} (tried: <0.2,>=0.1, up to {newest})"]
    assert untried_versions(["trl<0.2", 'trl<0.2; extra == "x"']) == [f"trl {installed} (tried: <0.2, up to {newest})"]
    assert untried_versions(['deepspeed<0.1; extra == "deepspeed"', "accelerate<1.0rc0"])


def test_a_newer_minor_release_than_was_tried_is_named_although_the_bounds_admit_it(monkeypatch):
    major, minor = map(int, LIBRARIES["trl"].split("."))
    for version, is_tried in ((f"{major}.{minor}.7", True), (f"{major}.{minor + 1}.0", False)):
        monkeypatch.setattr(metadata, "version", lambda name, version=version: version)
        assert (untried_versions(["trl>=1,<9"]) == []) == is_tried


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/allenai/reward-bench/issues/225",
    "a newer transformers beside a package that admits only those it was tried with",
    "pip leaves the next major release out; a process that meets one that was not tried warns once, by name",
)
def test_a_process_warns_once_and_its_children_do_not(tmp_path):
    """An installed package with other bounds stands before this one on the path."""
    folder = tmp_path / "hmm_datasets-0.2.0.dist-info"
    folder.mkdir()
    bounds = "Metadata-Version: 2.4\nName: hmm-datasets\nVersion: 0.2.0\nRequires-Dist: datasets<0.1\n"
    (folder / "METADATA").write_text(bounds)
    child = "import subprocess, sys, hmm_datasets.compat.datasets, hmm_datasets.compat.transformers_caches"
    child += "; subprocess.run([sys.executable, '-c', 'import hmm_datasets.compat.datasets'])"
    paths = os.pathsep.join([str(tmp_path), os.getcwd()])
    environment = {**os.environ, "PYTHONPATH": paths}
    environment.pop(WARNED, None)
    command = [sys.executable, "-c", child]
    result = subprocess.run(command, env={**environment, "RANK": "0"}, capture_output=True, text=True, check=True)
    assert result.stderr.count(f"datasets {metadata.version('datasets')} (tried: <0.1, up to ") == 1


def test_other_ranks_do_not_warn(monkeypatch, recwarn):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.delenv(WARNED, raising=False)
    monkeypatch.setattr("hmm_datasets.compat.versions.untried_versions", lambda: ["trl 99"])
    warn_of_untried_versions()
    assert not recwarn.list
    monkeypatch.setenv("RANK", "0")
    with pytest.warns(UserWarning, match="trl 99"):
        warn_of_untried_versions()
    monkeypatch.delenv(WARNED)


def test_versions_that_were_tried_are_not_mentioned(recwarn):
    warn_of_untried_versions()
    assert [str(warning.message) for warning in recwarn] == []
