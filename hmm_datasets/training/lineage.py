"""Where a model comes from: the stages of its training, each with its data and tokens.

Every run writes down its own stage and those before it, as `lineage` in its `run.json`; together with the tokens in
`summary.json`, or in a checkpoint's state, that says what a model was trained on in all. A model that other programs
trained says nothing, and then its tokens are not known.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files import read_json


def lineage(base: str | None, *, stage: str, data: str | None) -> dict[str, Any]:
    """What `run.json` says of where the model comes from.

    Args:
        base (`str`, *optional*): folder or Hub name of the model that this stage starts from; None for a new one.
        stage (`str`): what this stage is called.
        data (`str`, *optional*): what it trains on, in words.

    Returns:
        `dict`: `stage`, `data`, and `before`, the earlier stages: each with its `stage`, `data` and `tokens`, None
        where they are not known.
    """
    return {"stage": stage, "data": data, "before": [] if base is None else stages_of(base)}


def stages_of(model: str) -> list[dict[str, Any]]:
    """The stages of a model's training, the first one first.

    Args:
        model (`str`): folder of a run or of a checkpoint, or a name on the Hub.
    """
    record = _read(model, "run.json")
    tokens = (_read(model, "summary.json") or {}).get("tokens")
    state = _read(model, "trainer_state.json")
    if record is None and state is not None:  # a checkpoint, in the folder of its run
        record = _read(str(Path(model).parent), "run.json")
        tokens = state.get("num_input_tokens_seen")
    if record is None or "lineage" not in record or tokens is None:
        name = Path(model).name if Path(model).is_dir() else model
        return [{"stage": f"training of {name}", "data": None, "tokens": None}]
    own = record["lineage"]
    return [*own["before"], {"stage": own["stage"], "data": own["data"], "tokens": tokens}]


def _read(model: str, name: str) -> Mapping[str, Any] | None:
    path = Path(model, name) if Path(model).is_dir() else _downloaded(model, name)
    if path is None or not path.is_file():
        return None
    try:
        found = read_json(path)
    except InputError:
        return None
    return found if isinstance(found, dict) else None


def _downloaded(model: str, name: str) -> Path | None:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        return Path(hf_hub_download(model, name))
    except (HfHubHTTPError, HFValidationError, OSError):  # no such file, no access, or no connection
        return None
