"""A run taken on by torchtitan, for tensor, pipeline and context parallelism: the shape of its model, and its rows.

torchtitan (0.3) reads and writes the weights of a Llama as transformers does: its state dict adapter permutes queries
and keys, since it rotates neighbouring features where transformers rotates halves. So a job needs, beside a folder of
transformers, only what torchtitan does not read there: the shape, the rows, and the settings of the training. They are
in `job.json`, and `torchtitan_job.py` makes a configuration of them. The state of the optimizer stays behind.
"""

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.nn.functional import pad
from torch.utils.data import DataLoader, Dataset
from transformers import AutoConfig, PreTrainedConfig

from ...data.skipped_rows import RemainingRows, SkippedRows
from ...data.windows import IGNORED
from ...errors import InputError
from ...files import read_json, write_json
from ...hmm.names import SAVED_NAME
from ...runtime.run_identity import check_identity, read_identity
from ...runtime.run_records import read_run_record
from ...runtime.shipped import shipped
from ...training.checkpoints.resuming import start_at
from ...training.checkpoints.skipped_rows import rollbacks_in, skipped_rows_of
from ...training.plan.batch_schedule import BatchSchedule
from ...training.record import RECORD_NAME
from ..recorded_data import recorded_data

JOB_NAME = "job.json"
PROGRAM_NAME = "torchtitan_job.py"
"""Name of the recipe that is copied beside the job."""

_REQUIRED = {
    "model_type": "llama",
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "attention_dropout": 0.0,
}
"""What torchtitan's Llama is, as transformers would state it."""

_ROPE = {
    "factor": "scaling_factor",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "original_max_position_embeddings": "original_max_position_embeddings",
}
"""Parameters of the scaled rotary embeddings of Llama 3 in transformers, and in torchtitan."""

_TRAINING = ("learning_rate", "adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay", "max_grad_norm")


def torchtitan_shape(config: PreTrainedConfig) -> dict[str, Any]:
    """The shape of a Llama by the names that torchtitan 0.3 uses.

    Args:
        config ([`~transformers.PreTrainedConfig`]): configuration of the model.

    Raises:
        `InputError`: torchtitan's Llama cannot be this model; the message names the field.

    ```python
    >>> from transformers import LlamaConfig
    >>> shape = torchtitan_shape(LlamaConfig(hidden_size=128, num_attention_heads=2))
    >>> shape["dim"], shape["head_dim"], shape["rope"]["theta"]
    (128, 64, 10000.0)

    ```
    """
    for name, expected in _REQUIRED.items():
        value = getattr(config, name, None)
        if value != expected:
            raise InputError(f"{name} is {value!r}; torchtitan's Llama has {expected!r} there, so use --to hf instead")
    rope = dict(config.rope_parameters)
    kind, theta = rope.pop("rope_type", "default"), rope.pop("rope_theta")
    if rope.keys() != (_ROPE.keys() if kind == "llama3" else set()) or kind not in ("default", "llama3"):
        raise InputError(
            f"rope_parameters are of type {kind!r} with {', '.join(sorted(rope)) or 'no others'}; torchtitan's Llama "
            "has those of types 'default' and 'llama3', so use --to hf instead"
        )
    scaling = {"scaling": "llama" if kind == "llama3" else "none"} | {_ROPE[name]: rope[name] for name in rope}
    return {
        "dim": config.hidden_size,
        "n_layers": config.num_hidden_layers,
        "n_heads": config.num_attention_heads,
        "n_kv_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "hidden_dim": config.intermediate_size,
        "vocab_size": config.vocab_size,
        "norm_eps": config.rms_norm_eps,
        "initializer_range": config.initializer_range,
        "enable_weight_tying": config.tie_word_embeddings,
        "rope": {"theta": theta, **scaling},
    }


def write_job(checkpoint: Path, target: Path) -> None:
    """Write what torchtitan needs beside the configuration and tokenizer of a checkpoint.

    Args:
        checkpoint (`Path`): `checkpoint-N` of a run.
        target (`Path`): folder that has the configuration already.

    Raises:
        `InputError`: the model or the rows are of a type that the job cannot have.
    """
    if (target / "adapter_config.json").is_file():
        raise InputError(f"{checkpoint}: is an adapter; merge it into its model, and convert that")
    run = checkpoint.resolve().parent
    recorded = read_run_record(run / RECORD_NAME).settings
    try:
        shape = torchtitan_shape(AutoConfig.from_pretrained(target, trust_remote_code=False))
        recorded_data(run, recorded)
    except InputError as error:
        raise InputError(f"{checkpoint}: {error}") from None
    if recorded.get("packed") or recorded.get("packed_streams"):
        raise InputError(f"{checkpoint}: its rows are packed, and the job has no mask that keeps documents apart")
    start = start_at(checkpoint)
    batch = recorded["global_batch_size"]
    if start is None or start.rows is None:
        raise InputError(f"{checkpoint}: its state does not count rows; continue the run for a step, and convert that")
    if BatchSchedule.parse(recorded.get("batch_ramp") or (), batch).size(start.step) != batch:
        raise InputError(f"{checkpoint}: its batch_ramp has not ended; convert a later checkpoint")
    names = ("hmm", "tokens", "streams", "weights", "weigh_by", "length", "data_seed")
    data = {name: recorded[name] for name in names if recorded.get(name) is not None}
    data |= {name: _absolute(data[name]) for name in ("tokens", "streams") if name in data}
    if (run / SAVED_NAME).is_dir():
        shutil.copytree(run / SAVED_NAME, target / SAVED_NAME)
    training = {name: recorded[name] for name in _TRAINING} | {
        "global_batch_size": batch,
        "local_batch_size": recorded["per_device_train_batch_size"],
        "steps": max(1, start.max_steps - start.step),
    }
    rows = {"first": start.rows, "skipped": skipped_rows_of(rollbacks_in(checkpoint)).intervals}
    content = {"model": shape, "data": data, "rows": rows, "training": training}
    write_json(target / JOB_NAME, content | {"identity": read_identity(checkpoint).get("data", {})})
    shutil.copyfile(shipped(f"recipes/torchtitan/{PROGRAM_NAME}"), target / PROGRAM_NAME)


def _absolute(paths: str | list[str]) -> str | list[str]:
    """Paths that a program finds from another folder."""
    return str(Path(paths).resolve()) if isinstance(paths, str) else [str(Path(path).resolve()) for path in paths]


def read_job(folder: Path) -> dict[str, Any]:
    """`job.json` of a folder, with its rows opened.

    Returns:
        `dict`: `model` and `training` as they are written, `rows`, a map-style data set that begins where the run had
        ended, and `row_length`, tokens per row.

    Raises:
        `InputError`: the data are not there, or are others.
    """
    job = read_json(folder / JOB_NAME)
    settings, place = dict(job["data"]), str(folder)
    settings |= {"model": place} if "streams" in settings else {}
    settings |= {"tokenizer": place} if "tokens" in settings else {}
    data = recorded_data(folder, settings).load()
    before, now = {"data": job["identity"]}, {"data": data.identity}
    check_identity(folder / JOB_NAME, before, now, None, remedy="restore the data")
    first, batch, steps = job["rows"]["first"], job["training"]["global_batch_size"], job["training"]["steps"]
    skipped = SkippedRows(job["rows"]["skipped"])
    all_rows = data.rows(first + skipped.count + batch * steps)
    return job | {"rows": RemainingRows(all_rows, skipped, first), "row_length": data.row_length}


def batches_of_rank(
    rows: Dataset, *, first: int, size: int, rank: int, ranks: int, length: int, num_workers: int = 0
) -> Iterator[tuple[Tensor, Tensor]]:
    """The micro-batches of a rank of data parallelism: together the ranks read all rows, in order.

    Micro-batch `k` has the rows from `first + (k ranks + rank) size` on. So a step of `G` rows reads rows `first` to
    `first + G - 1`, whatever the number of ranks and the size that multiply out to it.

    Args:
        rows (map-style data set): rows with `input_ids` and `labels`, as models of transformers take them.
        first (`int`): the row at which the ranks begin together.
        size (`int`): `B`, rows per micro-batch.
        rank (`int`), ranks (`int`): of data parallelism.
        length (`int`): `L`, tokens per row; shorter rows are padded at the end, where no loss is counted.
        num_workers (`int`, *optional*, defaults to 0): processes that read rows.

    Yields:
        `tuple`: tokens and, at each position, the token to predict there, or -100; int64, shape `(B, L)`.

    Raises:
        `InputError`: rows are longer than `length`.

    ```python
    >>> import torch
    >>> rows = [{"input_ids": torch.tensor([row, 7]), "labels": torch.tensor([-100, 7])} for row in range(8)]
    >>> tokens, labels = next(batches_of_rank(rows, first=2, size=2, rank=1, ranks=2, length=3))
    >>> tokens.tolist(), labels.tolist()
    ([[4, 7, 0], [5, 7, 0]], [[7, -100, -100], [7, -100, -100]])

    ```
    """
    starts = itertools.count(first + rank * size, ranks * size)
    starts = itertools.takewhile(lambda start: start + size <= len(rows), starts)
    batches = (range(start, start + size) for start in starts)
    for batch in DataLoader(rows, batch_sampler=batches, num_workers=num_workers):
        tokens, labels = batch["input_ids"], batch["labels"][:, 1:]
        missing = length - tokens.shape[1]
        if missing < 0:
            raise InputError(f"rows have {tokens.shape[1]} tokens, more than the length {length}; set as many or more")
        yield pad(tokens, (0, missing)), pad(labels, (0, missing + 1), value=IGNORED)
