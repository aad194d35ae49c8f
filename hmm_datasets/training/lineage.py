"""The stages of a model's training, each with its data and tokens.

Every run records its own stage and those before it, as `lineage` in its `run.json`. Together with the tokens in
`summary.json`, or in a checkpoint's state, this gives everything that a model was trained on. A model that another
program trained has no such record, and its tokens are not known.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..digests import DIGESTS_NAME
from ..errors import InputError
from ..files import read_json
from ..hub_download import model_file


def lineage(base: str | None, *, stage: str, data: str | None, commit: str | None = None) -> dict[str, Any]:
    """The `lineage` entry of `run.json`.

    Args:
        base (`str`, *optional*): folder or Hub name of the model that this stage starts from; None for a new one.
        stage (`str`): name of this stage.
        data (`str`, *optional*): what it trains on, in words.
        commit (`str`, *optional*): commit of the base's repository, if it comes from the Hub.

    Returns:
        `dict`: `stage`, `data`, and `before`, the earlier stages. Each of those has `stage`, `data` and `tokens`, the
        latter two None if they are not known. `base` has the `model`, its `commit`, and the SHA-256 of its `weights`
        by file, as far as its folder records them; it is None for a new model.
    """
    if base is None:
        return {"stage": stage, "data": data, "base": None, "before": []}
    found = {"model": base, "commit": commit, "weights": weights_of(base)}
    return {"stage": stage, "data": data, "base": found, "before": stages_of(base)}


def weights_of(model: str) -> dict[str, str]:
    """The SHA-256 of the files of a model's weights by name, as far as its folder records them."""
    digests = (_read(model, DIGESTS_NAME) or {}).get("sha256", {})
    return {name: digest for name, digest in digests.items() if name.endswith(".safetensors")}


def stages_of(model: str) -> list[dict[str, Any]]:
    """The stages of a model's training, in order.

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
    path = model_file(model, name)
    if path is None:
        return None
    try:
        found = read_json(path)
    except InputError:
        return None
    return found if isinstance(found, dict) else None
