"""A library whose version was not tried is named, once per command."""

import os
import subprocess
import sys
from importlib import metadata

import pytest

from hmm_datasets.compat.versions import LIBRARIES, WARNED, untried_versions, warn_of_untried_versions


@pytest.mark.parametrize(("minor", "is_tried"), [("7", True), ("0rc1", True), (None, False), ("older", False)])
def test_a_minor_release_that_was_not_tried_is_named_with_those_that_were(monkeypatch, minor, is_tried):
    major, newest = map(int, LIBRARIES["trl"][-1].split("."))
    version = {None: f"{major}.{newest + 1}.0", "older": f"{major}.1.0"}.get(minor, f"{major}.{newest}.{minor}")
    installed = {name: f"{tried[-1]}.0" for name, tried in LIBRARIES.items()} | {"trl": version}
    monkeypatch.setattr(metadata, "version", installed.get)
    named = f"trl {version} (tried: {', '.join(LIBRARIES['trl'])})"
    assert untried_versions() == ([] if is_tried else [named])


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/allenai/reward-bench/issues/225",
    "a newer transformers beside a package that admits only those it was tried with",
    "pip leaves the next major release out; a process that meets one that was not tried warns once, by name",
)
def test_a_process_warns_once_and_its_children_do_not(tmp_path):
    """Metadata of another version of TRL stand before those of the installed one on the path."""
    folder = tmp_path / "trl-1.99.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.4\nName: trl\nVersion: 1.99.0\n")
    child = "import subprocess, sys, hmm_datasets.compat.datasets, hmm_datasets.compat.transformers_caches"
    child += "; subprocess.run([sys.executable, '-c', 'import hmm_datasets.compat.datasets'])"
    paths = os.pathsep.join([str(tmp_path), os.getcwd()])
    environment = {**os.environ, "PYTHONPATH": paths}
    environment.pop(WARNED, None)
    command = [sys.executable, "-c", child]
    result = subprocess.run(command, env={**environment, "RANK": "0"}, capture_output=True, text=True, check=True)
    assert result.stderr.count("trl 1.99.0 (tried: ") == 1


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
