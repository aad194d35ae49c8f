"""The stages of a model's training, each with its data and tokens.

Every run records its own stage and those before it, as `lineage` in its `run.json`. Together with the tokens in
`summary.json`, or in a checkpoint's state, this gives everything that a model was trained on. A model that another
program trained has no such record, and its tokens are not known.
"""

from pathlib import Path

from ..errors import InputError
from ..files import DIGESTS_NAME, file_digest
from ..hub.cards import CARD_NAME
from ..hub.download import ModelName, commit_of, model_file
from ..hub.gguf import GGUFHeader, gguf_path, read_header
from ..hub.licences import stated_licence
from ..records import Record, read_record
from ..runtime.run_records import BaseModel, CheckpointState, Lineage, RunRecord, RunSummary, Stage
from .record import RECORD_NAME


def base_model(model: str) -> BaseModel:
    """What a run records of the model that it starts from, looked up once.

    Args:
        model (`str`): its folder, its GGUF file or its name on the Hub.
    """
    header = _gguf_header(model)
    quantization = None if header is None else header.quantization
    return BaseModel(model, commit_of(model), weights_of(model), quantization, _licence(model, header))


def lineage(base: BaseModel | None, *, stage: str, data: str | None) -> Lineage:
    """The stages of a model, of which this is the last.

    Args:
        base ([`~hmm_datasets.runtime.run_records.BaseModel`], *optional*): the model that this stage starts from; None
            for a new one.
        stage (`str`): name of this stage.
        data (`str`, *optional*): what it trains on, in words.
    """
    return Lineage(stage, data, [] if base is None else stages_of(base.model), base)


def weights_of(model: str) -> dict[str, str]:
    """The SHA-256 of the files of a model's weights by name: of those that its folder records, or of its GGUF file."""
    model_name = ModelName.parse(model)
    if model_name.gguf_file is not None:
        path = gguf_path(model_name)
        return {path.name: file_digest(path)}
    digests = _read(model, DIGESTS_NAME, dict[str, dict[str, str]]) or {}
    return {name: digest for name, digest in digests.get("sha256", {}).items() if name.endswith(".safetensors")}


def licence_of(model: str) -> dict[str, str]:
    """What a model states of its licence, in its GGUF file or else in its card; see [`BaseModel`]."""
    return _licence(model, _gguf_header(model))


def _gguf_header(model: str) -> GGUFHeader | None:
    name = ModelName.parse(model)
    return None if name.gguf_file is None else read_header(gguf_path(name))


def _licence(model: str, header: GGUFHeader | None) -> dict[str, str]:
    if header is not None and header.licence:
        return header.licence
    card = model_file(model, CARD_NAME)
    return {} if card is None else stated_licence(card)


def stages_of(model: str) -> list[Stage]:
    """The stages of a model's training, in order.

    Args:
        model (`str`): folder of a run or of a checkpoint, or a name on the Hub.
    """
    record, summary = _read(model, RECORD_NAME, RunRecord), _read(model, "summary.json", RunSummary)
    tokens = None if summary is None else summary.tokens
    state = _read(model, "trainer_state.json", CheckpointState)
    if record is None and state is not None:  # a checkpoint, in the folder of its run
        record = _read(str(Path(model).parent), RECORD_NAME, RunRecord)
        tokens = state.num_input_tokens_seen
    if record is None or record.lineage is None or tokens is None:
        name = model if ModelName.parse(model).on_hub else Path(model).name
        return [Stage(f"training of {name}")]
    return [*record.lineage.before, Stage(record.lineage.stage, record.lineage.data, tokens)]


def _read(model: str, name: str, kind: type[Record]) -> Record | None:
    """A record of a model; None if it has none, or one of another program."""
    path = model_file(model, name)
    if path is None:
        return None
    try:
        return read_record(path, kind)
    except InputError:
        return None
