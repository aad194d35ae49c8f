"""What training by a recipe will consume, computed from its command line: tokens, memory, disk, time and cost.

Training data that do not exist yet are planned too: their vocabulary is assumed, their rows are full. So are those for
a model of which there is only a configuration file, and hence no tokenizer.
"""

import datetime
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PretrainedConfig

from ..errors import InputError
from ..files import read_yaml
from ..hub.download import ModelName
from ..runtime.command_line import parse_settings
from ..training.model_configs import ModelSettings, limit_length, new_model
from ..training.optimizers import check_sharding
from ..training.plan.accelerators import USABLE
from ..training.plan.checkpoint_disk import checkpoint_bytes, most_checkpoints
from ..training.plan.memory import STRATEGIES, memory_per_rank, peak_activations
from ..training.plan.plan import Plan
from ..training.plan.rate import Rate
from ..training.post_training.conversations import conversation_data, preference_data
from ..training.post_training.lora import with_adapter
from ..training.post_training.tokenized import limit_rows
from ..training.precision import launched_in, type_of_weights
from ..training.pretrained import load_pretrained
from ..training.settings import DPOSettings, PretrainSettings, SFTSettings
from ..training.sources import ConversationSettings, DataSettings, MixtureSettings, TrainingData
from .launching import recipe_settings


class AssumedData(TrainingData):
    """Rows of the length that the settings choose, without the HMM or the token streams that they name.

    Args:
        settings ([`~hmm_datasets.training.sources.DataSettings`] or others): the settings of the data.
        vocab_size (`int`): `V`, number of tokens of the tokenizer or symbols of the HMM.
        length (`int`): tokens or symbols per row.
    """

    rows_per_epoch = None

    def __init__(self, settings: DataSettings | MixtureSettings | ConversationSettings, vocab_size: int, length: int):
        self.identity = {}
        symbols = getattr(settings, "hmm", None) is not None
        self.vocab_size = vocab_size + symbols  # a beginning token stands before the symbols of an HMM
        self.row_length = length + symbols
        self.packed = bool(getattr(settings, "packed", False) or getattr(settings, "packed_streams", ()))

    def rows(self, num_rows):
        raise InputError("the rows of assumed data cannot be read; they are for plans alone")

    @property
    def tokens_per_row(self):
        return float(self.row_length)


def plan_recipe(
    name: str,
    arguments: Sequence[str] = (),
    *,
    num_processes: int | None = None,
    launch_config: str | os.PathLike | None = None,
    assumed_vocab_size: int | None = None,
) -> dict[str, Any]:
    """Plan the run that a command line describes.

    Conversations and preferences are tokenized for it, since their lengths are not known otherwise.

    Args:
        name (`str`): `pretrain`, `midtrain`, `sft` or `dpo`.
        arguments (sequence of `str`): what would follow it on the command line.
        num_processes (`int`, *optional*): number of ranks; by default that of `launch_config`, or one.
        launch_config (path, *optional*): a file of `accelerate_configs/`, read for its processes and precision.
        assumed_vocab_size (`int`, *optional*): for pretraining and midtraining, plan without opening the HMM or the
            token streams, for a vocabulary of this size; the model to midtrain may then be the name of a preset.

    Returns:
        `dict`: the plan's own fields; `micro_batch_size`, `world_size`, `gradient_accumulation_steps`;
        `possible_ranks`, which divide every batch; `checkpoints`, the most at once, and the bytes of each; `memory`, a
        mapping from ways of sharding to bytes per rank; `device`, the name and the usable bytes of the assumed one;
        `time`, if a rate is assumed; and `assumed_vocab_size`, None if the data were read.

    Raises:
        `InputError`: settings that the recipe would refuse too.
    """
    launch = {} if launch_config is None else read_yaml(Path(launch_config))
    world_size = int(launch.get("num_processes", 1)) if num_processes is None else num_processes
    with launched_in(_precision(launch)):
        *chosen, settings = parse_settings(*recipe_settings(name), arguments=arguments)
    is_deepspeed = launch.get("distributed_type") == "DEEPSPEED"
    check_sharding(settings.optimizer, settings.max_grad_norm, is_deepspeed)
    data, config = _data_and_config(chosen, settings, assumed_vocab_size)
    with torch.device("meta"):
        model = new_model(config)
        if not isinstance(settings, PretrainSettings):
            model = with_adapter(model, settings)
    plan = settings.plan(data, model, world_size)
    trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    micro = settings.per_device_train_batch_size
    dtype = type_of_weights(settings, config.dtype, is_adapter=getattr(settings, "use_peft", False))
    of_weights = {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(dtype, "fp32")
    precision = of_weights if settings.mixed_precision == "no" else settings.mixed_precision
    sizes = {
        "parameters": plan.parameters["total"],
        "trained": trained,
        "weight_bytes": min(4, dtype.itemsize),
        # Muon keeps one moment for the weights of matrices.
        "moments": 2 - (plan.parameters["body"] / plan.parameters["total"] if settings.optimizer == "muon" else 0),
    }
    result = plan.to_dict() | {
        "micro_batch_size": micro,
        "world_size": world_size,
        "gradient_accumulation_steps": plan.schedule.global_batch_size // (micro * world_size),
        "precision": precision,
        "optimizer": {"muon": "Muon"}.get(settings.optimizer, "AdamW"),
        "memory": _memory(settings, config, plan, world_size, precision, sizes),
        "trained_parameters": trained,
        "possible_ranks": plan.schedule.possible_ranks(micro),
        "checkpoints": {
            "most": most_checkpoints(settings, plan.steps),
            "bytes": checkpoint_bytes(**sizes, with_optimizer=not settings.save_only_model),
        },
        "epochs": None if plan.data.rows_per_epoch is None else plan.rows / plan.data.rows_per_epoch,
        "assumed_vocab_size": assumed_vocab_size or (data.vocab_size if isinstance(data, AssumedData) else None),
    }
    rate = settings.rate
    if rate is None:
        return result
    if rate.device is not None:
        result["device"] = {"name": rate.device.name, "usable": round(USABLE * rate.device.memory)}
    return result | {"time": _time(plan, rate, world_size, settings.price_per_hour)}


def _precision(launch: Mapping[str, Any]) -> str:
    """The precision of a launch configuration; without a GPU here, those of one for GPUs have bfloat16."""
    is_for_other_gpus = bool(launch) and not launch.get("use_cpu", False) and not torch.accelerator.is_available()
    return str(launch.get("mixed_precision", "bf16" if is_for_other_gpus else "no"))


def _data_and_config(
    chosen: Sequence[Any], settings: Any, assumed_vocab_size: int | None
) -> tuple[TrainingData, PretrainedConfig]:
    """The data and the configuration of the model of a recipe."""
    if isinstance(settings, PretrainSettings):
        if assumed_vocab_size is not None:
            data = AssumedData(chosen[0], assumed_vocab_size, chosen[0].length)
            return data, (chosen[1] if len(chosen) == 2 else ModelSettings(chosen[0].model)).config(data)
        data = chosen[0].load()
        return data, chosen[1].config(data) if len(chosen) == 2 else load_pretrained(AutoConfig, chosen[0].model)
    if assumed_vocab_size is not None:
        raise InputError(
            f"assumed_vocab_size is {assumed_vocab_size}, but the lengths of conversations and preferences are "
            "not known without their tokenizer; leave it out"
        )
    config, model_name = load_pretrained(AutoConfig, chosen[0].model), ModelName.parse(chosen[0].model)
    if isinstance(settings, SFTSettings) and model_name.gguf_file is None and Path(model_name.place).is_file():
        length = limit_length(config, settings.max_length)  # of a configuration alone, without a tokenizer
        if length is None:
            raise InputError("max_length is not set, and the model has no maximum; set it")
        data = AssumedData(chosen[0], config.get_text_config().vocab_size, length)
    else:
        limit_rows(settings, config)
        data = (conversation_data if isinstance(settings, SFTSettings) else preference_data)(chosen[0], settings)
    text = config.get_text_config()
    text.vocab_size = max(text.vocab_size, data.vocab_size)  # the chat template may add tokens
    return data, config


def _memory(
    settings: PretrainSettings | SFTSettings | DPOSettings,
    config: PretrainedConfig,
    plan: Plan,
    world_size: int,
    precision: str,
    sizes: dict[str, Any],
) -> dict[str, dict[str, int]]:
    """Bytes per rank for every way of sharding, of one process for it alone."""
    micro, text, low_precision = settings.per_device_train_batch_size, config.get_text_config(), precision != "fp32"
    is_pretraining = isinstance(settings, PretrainSettings)
    reduces_each = (settings.accelerator_config.gradient_accumulation_kwargs or {}).get("sync_each_batch", False)

    def memory_of(strategy: str) -> dict[str, int]:
        activations = peak_activations(
            config,
            micro_batch_size=micro,
            length=plan.data.row_length,
            low_precision=low_precision,
            low_weights=strategy != "ddp" or sizes["weight_bytes"] < 4,
            checkpointing=settings.activation_checkpointing,
            chunked_loss=not is_pretraining or settings.chunks(text.vocab_size),  # TRL's trainers always have chunks
            on_gpu=low_precision and is_pretraining,
        )
        return memory_per_rank(
            strategy,
            **sizes,
            world_size=world_size,
            activations=activations,
            largest_layer=plan.parameters["body"] // text.num_hidden_layers,
            low_precision=low_precision,
            reduces_once=plan.schedule.global_batch_size > micro * world_size and not reduces_each,
        )

    return {strategy: memory_of(strategy) for strategy in (STRATEGIES if world_size > 1 else STRATEGIES[:1])}


def _time(plan: Plan, rate: Rate, world_size: int, price: float | None) -> dict[str, Any]:
    """When the run ends if it starts now, and what it costs."""
    tokens_per_second = rate.tokens_per_second(plan.flops_per_token, world_size)
    seconds = plan.tokens / tokens_per_second
    time = {
        "rate": rate.source,
        "tokens_per_second": tokens_per_second,
        "seconds": seconds,
        "device_hours": seconds * world_size / 3600,
        "ends": (datetime.datetime.now() + datetime.timedelta(seconds=seconds)).isoformat(timespec="minutes"),
    }
    return time if price is None else time | {"cost": time["device_hours"] * price}
