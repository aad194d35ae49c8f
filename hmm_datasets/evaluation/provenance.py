"""Where an evaluation comes from: the model, settings, versions and commit, and hashes of what it was measured on."""

import platform
import shlex
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..credentials import masked_arguments
from ..digests import weights_sha256
from ..training.record import git_commit, versions

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from .evaluation import EvaluationSettings


def provenance(settings: "EvaluationSettings", model: "PreTrainedModel") -> dict[str, Any]:
    """The model, and what it was measured with."""
    return {
        "model": {
            "name": settings.model,
            "type": model.config.model_type,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "sha256": weights_sha256(model),
        },
        "settings": asdict(settings),
        "seeds": {"stream": settings.stream_seed, "evaluation": settings.seed},
        "versions": versions(),
        "python": platform.python_version(),
        "commit": git_commit(),
        "command": shlex.join([Path(sys.argv[0]).name, *masked_arguments(sys.argv[1:])]),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def data_hashes(found: dict[str, Any]) -> dict[str, Any]:
    """Hashes of the data measured on: the distribution, the held-out text, the questions of each task."""
    hashes = {}
    if "optimum" in found:
        hashes["optimum"] = found["optimum"]["fingerprint"]
    if "text" in found:
        hashes["text"] = found["text"]["sha256"]
    for name in ("core", "chat_core"):
        if name in found:
            hashes[name] = {label: task["sha256"] for label, task in found[name]["tasks"].items()}
    return hashes
