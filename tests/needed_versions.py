"""Tests of what the oldest versions that are admitted cannot do, and which is refused there."""

from importlib import metadata

import pytest
from packaging.requirements import Requirement


def needs(requirement: str) -> pytest.MarkDecorator:
    """A mark that skips a test with the installed version of a library, for example before `"transformers>=5.15"`."""
    needed = Requirement(requirement)
    try:
        is_met = needed.specifier.contains(metadata.version(needed.name), prereleases=True)
    except metadata.PackageNotFoundError:
        is_met = False
    return pytest.mark.skipif(not is_met, reason=f"needs {requirement}")
