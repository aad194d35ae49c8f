"""Where an evaluation comes from: the model, versions and commit, and hashes of what it was measured on."""

import platform
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..hub.weights_digest import weights_sha256
from ..runtime.credentials import masked
from ..training.record import command_line, git_commit, package_versions

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def provenance(name: str, models: "Sequence[PreTrainedModel]") -> dict[str, Any]:
    """What was measured, one model or several under one name, and with what."""
    hashes = [weights_sha256(model) for model in models]
    return {
        "model": {
            "name": masked(name),
            "type": models[0].config.model_type,
            "parameters": sum(parameter.numel() for model in models for parameter in model.parameters()),
            "sha256": hashes[0] if len(hashes) == 1 else hashes,
        },
        "versions": package_versions(),
        "python": platform.python_version(),
        "commit": git_commit(),
        "command": command_line(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def data_hashes(results: dict[str, Any]) -> dict[str, Any]:
    """Hashes of the data measured on: the distribution, the held-out text, the questions of each task."""
    hashes = {}
    if "optimum" in results:
        hashes["optimum"] = results["optimum"]["fingerprint"]
    if "text" in results:
        hashes["text"] = results["text"]["sha256"]
    if "core" in results:
        hashes["core"] = {label: task["sha256"] for label, task in results["core"]["tasks"].items()}
    return hashes
