"""Write a job with which torchtitan 0.3 continues a run, for tensor, pipeline and context parallelism.

    python recipes/torchtitan/write_job.py --checkpoint outputs/run/checkpoint-5000 --destination outputs/job

torchtitan reads and writes the weights of a Llama as transformers does: its state dict adapter permutes queries and
keys, since it rotates neighbouring features where transformers rotates halves. So a job needs, beside a folder of
transformers, only what torchtitan does not read there: the shape, the rows, and the settings of the training. They are
in `job.json`, and `torchtitan_job.py` makes a configuration of them. The state of the optimizer stays behind.
"""

import shutil
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

from rows_of_job import JOB_NAME, recorded_data
from transformers import AutoConfig, PreTrainedConfig

from hmm_datasets.errors import InputError
from hmm_datasets.files import atomic_folder, scratch_folder, write_digests, write_json
from hmm_datasets.hmm.names import SAVED_NAME
from hmm_datasets.operations.checkpoints.convert import convert
from hmm_datasets.runtime.program import run
from hmm_datasets.runtime.run_identity import read_identity
from hmm_datasets.runtime.run_records import read_run_record
from hmm_datasets.runtime.settings import setting
from hmm_datasets.training.checkpoints.resuming import start_at
from hmm_datasets.training.checkpoints.skipped_rows import rollbacks_in, skipped_rows_of
from hmm_datasets.training.plan.batch_schedule import BatchSchedule
from hmm_datasets.training.record import RECORD_NAME

PROGRAMS = ("torchtitan_job.py", "rows_of_job.py")
"""Names of the files beside this one that are copied beside the job."""

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
            raise InputError(
                f"{name} is {value!r}; torchtitan's Llama has {expected!r} there; use checkpoint convert --to hf"
            )
    rope = dict(config.rope_parameters)
    kind, theta = rope.pop("rope_type", "default"), rope.pop("rope_theta")
    if rope.keys() != (_ROPE.keys() if kind == "llama3" else set()) or kind not in ("default", "llama3"):
        raise InputError(
            f"rope_parameters are of type {kind!r} with {', '.join(sorted(rope)) or 'no others'}; torchtitan's Llama "
            "has those of types 'default' and 'llama3', so use checkpoint convert --to hf"
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


@dataclass
class JobSettings:
    """The checkpoint, and where the job goes."""

    checkpoint: str = setting(MISSING, "`checkpoint-N` of a run of pretrain or midtrain.")
    destination: str = setting(MISSING, "New folder of the job.")


def write_job(checkpoint: Path, target: Path) -> None:
    """Write the folder of a job: the model and its tokenizer, `job.json`, and the programs that torchtitan imports.

    Args:
        checkpoint (`Path`): `checkpoint-N` of a run.
        target (`Path`): the folder, which must not exist.

    Raises:
        `InputError`: the folder exists, the checkpoint is damaged, or the model or the rows are of a type that the job
            cannot have.
    """
    if target.exists():
        raise InputError(f"{target}: exists; give another folder for the job")
    with scratch_folder(target) as scratch, atomic_folder(target, replace=False) as temporary:
        model = convert(checkpoint, scratch / "model", "hf")
        content = job_of(checkpoint, model)
        for path in model.iterdir():
            path.rename(temporary / path.name)
        process = checkpoint.resolve().parent / SAVED_NAME
        if process.is_dir():
            shutil.copytree(process, temporary / SAVED_NAME)
        write_json(temporary / JOB_NAME, content)
        for name in PROGRAMS:
            shutil.copyfile(Path(__file__).with_name(name), temporary / name)
        write_digests(temporary)


def job_of(checkpoint: Path, model: Path) -> dict[str, Any]:
    """The content of `job.json`.

    Args:
        checkpoint (`Path`): `checkpoint-N` of a run.
        model (`Path`): the model of the checkpoint, as a folder of transformers.

    Raises:
        `InputError`: the model or the rows are of a type that the job cannot have.
    """
    if (model / "adapter_config.json").is_file():
        raise InputError(f"{checkpoint}: is an adapter; merge it into its model, and convert that")
    run_folder = checkpoint.resolve().parent
    recorded = read_run_record(run_folder / RECORD_NAME).settings
    try:
        shape = torchtitan_shape(AutoConfig.from_pretrained(model, trust_remote_code=False))
        recorded_data(run_folder, recorded)
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
    training = {name: recorded[name] for name in _TRAINING} | {
        "global_batch_size": batch,
        "local_batch_size": recorded["per_device_train_batch_size"],
        "steps": max(1, start.max_steps - start.step),
    }
    rows = {"first": start.rows, "skipped": skipped_rows_of(rollbacks_in(checkpoint)).intervals}
    identity = read_identity(checkpoint).get("data", {})
    return {"model": shape, "data": data, "rows": rows, "training": training, "identity": identity}


def _absolute(paths: str | list[str]) -> str | list[str]:
    """Paths that a program finds from another folder."""
    return str(Path(paths).resolve()) if isinstance(paths, str) else [str(Path(path).resolve()) for path in paths]


def main(settings: JobSettings) -> None:
    """Write the job, and print the command that continues the run."""
    folder = Path(settings.destination)
    write_job(Path(settings.checkpoint), folder)
    print(
        f"{folder}: continue with PYTHONPATH={folder} torchrun --nproc_per_node N -m torchtitan.train --module "
        "torchtitan_job --config job; AdamW starts anew"
    )


if __name__ == "__main__":
    run(main)
