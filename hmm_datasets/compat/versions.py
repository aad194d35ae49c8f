"""Installed versions of the libraries whose minor releases change what this package relies on.

The bounds in the package's metadata are wide, so that it installs beside other packages. All its tests have passed
with few minor releases, and what the others have changed nobody knows. So a process that meets another one warns of
it once, and the programs that it starts do not. The modules that import such a library at their top ask for it, so
that `import hmm_datasets` and `--help` stay quick.
"""

import contextlib
import importlib.metadata
import os
import warnings

LIBRARIES = {
    **{"transformers": ("5.23", "5.24"), "trl": ("1.16",), "datasets": ("5.2",)},
    **{"huggingface_hub": ("2.4",), "accelerate": ("1.15",), "deepspeed": ("0.19",)},
}
"""The minor releases of each library with which all tests have passed, the newest last."""

WARNED = "HMM_DATASETS_WARNED_OF_VERSIONS"
"""Environment variable with the versions of which an earlier process of this command has warned."""


def untried_versions() -> list[str]:
    """Installed libraries with another minor release than were tried, as `"trl 1.17.0 (tried: 1.16)"`."""
    untried = []
    for name, tried in LIBRARIES.items():
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            version = importlib.metadata.version(name)
            if ".".join(version.split(".")[:2]) not in tried:
                untried.append(f"{name} {version} (tried: {', '.join(tried)})")
    return untried


def warn_of_untried_versions() -> None:
    """Warn once per command, on rank 0, of libraries whose installed version was not tried with this package."""
    if WARNED in os.environ or os.environ.get("RANK", "0") != "0":
        return
    untried = untried_versions()
    if untried:
        os.environ[WARNED] = ", ".join(untried)
        warnings.warn(
            f"{', '.join(untried)}: not all tests have run with this version, which may give wrong results without an "
            "error; install one that was tried",
            UserWarning,
            stacklevel=2,
        )
