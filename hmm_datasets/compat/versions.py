"""Installed versions of the libraries whose minor releases change what this package relies on.

The bounds in the package's metadata admit what was tested. pip does not keep to them when another package is installed
later, so a process that meets a version outside them warns of it once, and the programs that it starts do not. The
modules that import such a library at their top ask for it, so that `import hmm_datasets` and `--help` stay quick.
"""

import importlib.metadata
import os
import warnings
from collections.abc import Sequence

LIBRARIES = ("transformers", "trl", "datasets", "huggingface_hub", "accelerate", "deepspeed")
"""The libraries whose next minor release is admitted only after it was tested."""

WARNED = "HMM_DATASETS_WARNED_OF_VERSIONS"
"""Environment variable with the versions of which an earlier process of this command has warned."""


def untried_versions(requirements: Sequence[str] | None = None) -> list[str]:
    """Installed libraries whose version is outside the bounds of this package, as `"trl 2.0 (tried: <1.17,>=1.16)"`.

    Args:
        requirements (sequence of `str`, *optional*): requirements as in package metadata; those of the installed
            package if left out, and none if it is not installed.
    """
    from packaging.requirements import Requirement

    untried = []
    if requirements is None:
        try:
            requirements = importlib.metadata.requires("hmm-datasets") or ()
        except importlib.metadata.PackageNotFoundError:
            requirements = ()
    for requirement in map(Requirement, requirements):
        name = requirement.name.replace("-", "_")
        if name not in LIBRARIES:
            continue
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        text = f"{name} {version} (tried: {requirement.specifier})"
        if not requirement.specifier.contains(version, prereleases=True) and text not in untried:
            untried.append(text)
    return untried


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
