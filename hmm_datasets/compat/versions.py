"""Installed versions of the libraries whose minor releases change what this package relies on.

The bounds in the package's metadata leave the next major release out. What a newer minor release has changed nobody
knows before it was tried, and pip does not keep to the bounds when another package is installed later. So a process
that meets a version that was not tried warns of it once, and the programs that it starts do not. The modules that
import such a library at their top ask for it, so that `import hmm_datasets` and `--help` stay quick.
"""

import contextlib
import importlib.metadata
import os
import warnings
from collections.abc import Sequence

from packaging.requirements import Requirement
from packaging.version import Version

LIBRARIES = {
    **{"transformers": "5.24", "trl": "1.16", "datasets": "5.2"},
    **{"huggingface_hub": "2.4", "accelerate": "1.15", "deepspeed": "0.19"},
}
"""The newest minor release of each library with which `make test-newest` has passed."""

WARNED = "HMM_DATASETS_WARNED_OF_VERSIONS"
"""Environment variable with the versions of which an earlier process of this command has warned."""


def untried_versions(requirements: Sequence[str] | None = None) -> list[str]:
    """Installed libraries of which another version was tried, as `"trl 1.17.0 (tried: <2,>=1.8, up to 1.16)"`.

    Args:
        requirements (sequence of `str`, *optional*): requirements as in package metadata; those of the installed
            package if left out, and none if it is not installed.
    """
    untried: dict[str, None] = {}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        requirements = importlib.metadata.requires("hmm-datasets") if requirements is None else requirements
    for requirement in map(Requirement, requirements or ()):
        name = requirement.name.replace("-", "_")
        with contextlib.suppress(importlib.metadata.PackageNotFoundError, KeyError):
            newest, version = LIBRARIES[name], Version(importlib.metadata.version(name))
            is_admitted = requirement.specifier.contains(version, prereleases=True)
            if not is_admitted or version.release[:2] > Version(newest).release:
                untried[f"{name} {version} (tried: {requirement.specifier}, up to {newest})"] = None
    return list(untried)


def warn_of_untried_versions() -> None:
    """Warn once per command, on rank 0, of libraries whose installed version was not tried with this package."""
    if WARNED in os.environ or os.environ.get("RANK", "0") != "0":
        return
    untried = untried_versions()
    if untried:
        os.environ[WARNED] = ", ".join(untried)
        warnings.warn(
            f"{', '.join(untried)}: this version was not tried with hmm-datasets and may give wrong results without "
            "an error; install one that was, or run `make test-newest` in a clone to try it",
            UserWarning,
            stacklevel=2,
        )
