"""The data of a run of pretraining or midtraining, by the settings in its record."""

import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ..errors import InputError
from ..hmm.names import process_of_run
from ..training.sources import DataSettings, MixtureSettings


def recorded_data(run: str | os.PathLike, settings: Mapping[str, Any]) -> DataSettings | MixtureSettings:
    """The settings of the data that a run trained on.

    Args:
        run (path): folder of the run, which may have a copy of its process.
        settings (mapping): the settings in its `run.json`.

    Raises:
        `InputError`: they name neither a process nor token streams.
    """
    if all(settings.get(name) is None for name in ("streams", "hmm", "tokens")):
        raise InputError(
            f"{run}: run.json names neither an HMM nor token streams; only runs of pretrain and midtrain have them"
        )
    kind = DataSettings if settings.get("streams") is None else MixtureSettings
    chosen = {field.name: settings[field.name] for field in fields(kind) if field.name in settings}
    if chosen.get("hmm") is not None:
        chosen["hmm"] = process_of_run(run, chosen["hmm"])
    return kind(**chosen)
