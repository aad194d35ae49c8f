"""Where an evaluation comes from: the model, settings, versions and commit, and hashes of what it was measured on."""

import platform
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..hub.weights_digest import weights_sha256
from ..runtime.credentials import masked
from ..training.record import command_line, git_commit, package_versions
from .settings import EvaluationSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def provenance(settings: EvaluationSettings, model: "PreTrainedModel") -> dict[str, Any]:
    """The model, and what it was measured with."""
    return {
        "model": {
            "name": masked(settings.model),
            "type": model.config.model_type,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "sha256": weights_sha256(model),
        },
        "settings": masked(asdict(settings)),
        "seeds": {"stream": settings.data_seed, "evaluation": settings.seed},
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
