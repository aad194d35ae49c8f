"""`hmm-datasets plan`: what a recipe or a fit will consume, computed from its settings file and flags, or from flags.

Training data that do not exist yet are planned too: their vocabulary is assumed, their rows are full. So are those for
a model of which there is only a configuration file, and hence no tokenizer.
"""

import datetime
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoConfig, PretrainedConfig

from ..errors import InputError
from ..files import read_yaml
from ..hmm.fitting.settings import FitSettings
from ..hmm.structured.blocked import BlockedHMM
from ..hmm.token_files import read_token_rows
from ..hub.download import ModelName
from ..runtime.command_line import parse_settings
from ..training.model_configs import ModelSettings, limit_length, new_model
from ..training.optimizers import check_sharding
from ..training.plan.accelerators import USABLE, find_device
from ..training.plan.budget import accumulation_steps
from ..training.plan.checkpoint_disk import checkpoint_bytes, most_checkpoints
from ..training.plan.finish import finish, read_rank_stages
from ..training.plan.fit_plan import BlockSizes, plan_fit
from ..training.plan.forecast import STRATEGIES, Memory, Rate, device_of, memory_per_rank, peak_activations
from ..training.plan.plan import Plan
from ..training.post_training.conversations import conversation_data, preference_data
from ..training.post_training.lora import with_adapter
from ..training.post_training.tokenized import limit_rows
from ..training.precision import launched_in, type_of_weights
from ..training.pretrained import load_pretrained
from ..training.settings import DPOSettings, PretrainSettings, SFTSettings
from ..training.sources import ConversationSettings, DataSettings, MixtureSettings, TrainingData
from .launching import recipe_settings

_NO_SIZE = "an evaluation has no plan; `accelerate estimate-memory MODEL` prints the size of a model"
_UNPLANNED = {
    "grpo": "the lengths of what a model will answer are not known, so there is no plan for grpo",
    "evaluate": _NO_SIZE,
    "benchmark": _NO_SIZE,
}
PLANNED = ("fit", "pretrain", "midtrain", "sft", "dpo")
"""The commands that have a plan."""


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


class Planned(NamedTuple):
    """A command to plan.

    Attributes:
        name (`str`): one of [`PLANNED`].
        arguments (`list` of `str`): what would follow it on the command line.
    """

    name: str
    arguments: list[str]


def planned(settings: str | os.PathLike, flags: Sequence[str] = ()) -> Planned:
    """The command that a settings file is for, or that is named instead of one.

    Args:
        settings (path or `str`): a settings file, or one of [`PLANNED`].
        flags (sequence of `str`): flags of the command that override the file.

    Raises:
        `InputError`: there is no such file, or it is for GRPO or an evaluation, which have no plan.
    """
    if settings in _UNPLANNED:
        raise InputError(_UNPLANNED[str(settings)])
    if settings in PLANNED:
        return Planned(str(settings), list(flags))
    return Planned(_command_of(read_yaml(Path(settings))), ["--config", str(settings), *flags])


def _command_of(content: Mapping[str, Any]) -> str:
    """The command that a settings file is for."""
    if "prompts" in content:
        raise InputError(_UNPLANNED["grpo"])
    if "targets" in content:
        raise InputError(_UNPLANNED["evaluate"])
    kinds = {"conversations": "sft", "preferences": "dpo", "streams": "midtrain"}
    if not {"hmm", "tokens"} & content.keys():
        kinds["num_states"] = "fit"
    return next((kind for name, kind in kinds.items() if name in content), "pretrain")


def plan_fit_recipe(
    path: str | os.PathLike, flags: Sequence[str] = (), *, required: bool = False
) -> dict[str, Any] | None:
    """Plan the fit that a settings file of `recipes/fit_hmm.py` describes.

    A corpus is not read for it: its tokens are those of `assumed_tokens`. Those of a file of symbols are counted. A
    first guess is read, which has the number of states or of blocks.

    Args:
        path (path): the YAML file, or `fit`.
        flags (sequence of `str`): flags of the recipe that override the file.
        required (`bool`): whether it is an error if the tokens are not known, instead of no plan.

    Returns:
        `dict`: see [`~hmm_datasets.training.plan.fit_plan.plan_fit`]; `None` if the tokens are not known.

    Raises:
        `InputError`: settings that the recipe would refuse too, or no plan although it is `required`.
    """
    arguments = ["--output_dir", "fit", *planned(path, flags).arguments]  # nothing is written there
    corpus, fit = parse_settings(*recipe_settings("fit"), arguments=arguments)
    num_tokens, length, num_symbols = corpus.assumed_tokens, corpus.length, corpus.vocabulary_size
    if corpus.is_array and os.path.exists(corpus.corpus):
        rows = read_token_rows(corpus.corpus, corpus.lengths)
        num_tokens, length = rows.num_tokens, rows.shape[1]
        num_symbols = corpus.num_symbols or int(rows.tokens[rows.observed].max()) + 1
    if num_tokens is None:
        if required:
            raise InputError(
                f"{path}: the tokens of {corpus.corpus} are not known before it is read; set assumed_tokens"
            )
        return None
    initial = None if fit.num_states else fit.read_initial()
    sizes: list[tuple[FitSettings, BlockSizes | None]] = []
    if fit.block_size or isinstance(initial, BlockedHMM):
        BlockedHMM.check_device(corpus.device)
        for block_size in fit.block_size or [initial.block_size]:
            size, initial = fit.of_blocks(block_size, initial)
            sizes.append((size, BlockSizes(initial.num_blocks, block_size, initial.rank)))
    else:
        sizes += [(size, None) for size in fit.sizes(initial)]
    num_symbols = num_symbols if initial is None else initial.num_symbols
    given = num_tokens, length, num_symbols
    plans = [plan_fit(size, *given, blocks=blocks, flops_per_second=corpus.assumed_flops) for size, blocks in sizes]
    if len(plans) == 1:
        return plans[0]
    # One after the other: the largest needs the memory, and operations and time add up.
    result = max(plans, key=lambda plan: plan["memory"])
    result |= {name: sum(plan[name] for plan in plans) for name in ("flops_per_epoch", "tokens", "flops")}
    if "time" in result:
        result["time"] = {name: sum(plan["time"][name] for plan in plans) for name in result["time"]}
    return result


@dataclass(frozen=True)
class Recipe:
    """A recipe as its settings file and flags describe it.

    Attributes:
        plan ([`~hmm_datasets.training.plan.plan.Plan`]): what it consumes.
        settings (`RunSettings`): settings of its trainer.
        config ([`~transformers.PretrainedConfig`]): configuration of its model.
        trained (`int`): number of parameters that are trained.
    """

    plan: Plan
    settings: PretrainSettings | SFTSettings | DPOSettings
    config: PretrainedConfig
    trained: int

    @property
    def moments(self) -> float:
        """Floats per parameter that the optimizer keeps; Muon keeps one for the weights of matrices."""
        sizes = self.plan.parameters
        return 2 - (sizes["body"] / sizes["total"] if self.settings.optimizer == "muon" else 0)

    @property
    def largest_layer(self) -> int:
        """Number of parameters of a layer."""
        return self.plan.parameters["body"] // self.config.get_text_config().num_hidden_layers

    @property
    def low_precision(self) -> bool:
        """Whether it computes in bfloat16 or float16."""
        return self.precision != "fp32"

    @property
    def precision(self) -> str:
        """`"bf16"`, `"fp16"` or `"fp32"`: that of autocast, without it that of the weights."""
        of_weights = {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(self.dtype, "fp32")
        return of_weights if self.settings.mixed_precision == "no" else self.settings.mixed_precision

    @property
    def dtype(self) -> torch.dtype:
        """Type of the model's weights while it is trained."""
        is_adapter = getattr(self.settings, "use_peft", False)
        return type_of_weights(self.settings, self.config.dtype, is_adapter=is_adapter)

    @property
    def weight_bytes(self) -> int:
        """Bytes of a weight while the model is trained."""
        return min(4, self.dtype.itemsize)

    def activations(self, micro_batch_size: int, recomputes: bool, sharded: bool) -> int:
        """Peak bytes of activations under ZeRO and FSDP2 (`sharded`) or DDP, see [`peak_activations`]."""
        return peak_activations(
            self.config,
            micro_batch_size=micro_batch_size,
            length=self.plan.data.row_length,
            low_precision=self.low_precision,
            low_weights=sharded or self.weight_bytes < 4,
            checkpointing=recomputes,
            chunked_loss=self.chunked_loss,
            on_gpu=self.low_precision and isinstance(self.settings, PretrainSettings),  # TRL has chunks of its own
        )

    @property
    def reduces_once(self) -> bool:
        """Whether gradients are reduced after the last micro-batch of a step, where the strategy leaves the choice."""
        chosen = self.settings.accelerator_config.gradient_accumulation_kwargs or {}
        return not chosen.get("sync_each_batch", False)

    @property
    def chunked_loss(self) -> bool:
        """Whether the loss is computed without the logits of all tokens; TRL's trainers always do."""
        vocab_size = self.config.get_text_config().vocab_size
        return not isinstance(self.settings, PretrainSettings) or self.settings.chunks(vocab_size)


def plan_recipe(
    path: str | os.PathLike,
    flags: Sequence[str] = (),
    *,
    assumed_vocab_size: int | None = None,
    rank_stages: Sequence[str] = (),
    share_of_day: float = 1.0,
    **launch: Any,
) -> dict[str, Any]:
    """Plan the run that a settings file of `recipes/pretrain.py`, `midtrain.py`, `sft.py` or `dpo.py` describes.

    Args:
        path, flags, assumed_vocab_size: see [`read_recipe`].
        rank_stages, share_of_day: see [`forecast`].
        launch: `num_processes` and `launch_config`; see [`read_recipe`].

    Returns:
        `dict`: see [`forecast`]; and `assumed_vocab_size`, None if the data were read.
    """
    recipe, world_size = read_recipe(path, flags, assumed_vocab_size=assumed_vocab_size, **launch)
    plan = forecast(
        recipe, world_size=world_size, now=datetime.datetime.now(), rank_stages=rank_stages, share_of_day=share_of_day
    )
    if assumed_vocab_size is None and isinstance(recipe.plan.data, AssumedData):
        assumed_vocab_size = recipe.plan.data.vocab_size
    return plan | {"assumed_vocab_size": assumed_vocab_size}


def read_recipe(
    path: str | os.PathLike,
    flags: Sequence[str] = (),
    *,
    num_processes: int | None = None,
    launch_config: str | os.PathLike | None = None,
    assumed_vocab_size: int | None = None,
) -> tuple[Recipe, int]:
    """Read the settings of a recipe, its data and the configuration of its model.

    Conversations and preferences are tokenized for it, since their lengths are not known otherwise.

    Args:
        path (path): the YAML file, or the name of the recipe.
        flags (sequence of `str`): flags of the recipe that override the file.
        num_processes (`int`, *optional*): number of ranks; by default that of `launch_config`, or one.
        launch_config (path, *optional*): a file of `accelerate_configs/`, read for its processes and precision.
        assumed_vocab_size (`int`, *optional*): for pretraining and midtraining, plan without opening the HMM or the
            token streams, for a vocabulary of this size; the model to midtrain may then be the name of a preset.

    Returns:
        `tuple`: the recipe, and the number of ranks.

    Raises:
        `InputError`: settings that the recipe would refuse too.
    """
    launch = {} if launch_config is None else read_yaml(Path(launch_config))
    world_size = int(launch.get("num_processes", 1)) if num_processes is None else num_processes
    name, arguments = planned(path, flags)
    with launched_in(_precision(launch)):
        *chosen, settings = parse_settings(*recipe_settings(name), arguments=arguments)
    is_deepspeed = launch.get("distributed_type") == "DEEPSPEED"
    check_sharding(settings.optimizer, settings.max_grad_norm, is_deepspeed)
    if assumed_vocab_size is not None:
        if not isinstance(settings, PretrainSettings):
            raise InputError(
                f"assumed_vocab_size is {assumed_vocab_size}, but the lengths of conversations and preferences are "
                "not known without their tokenizer; leave it out"
            )
        data = AssumedData(chosen[0], assumed_vocab_size, chosen[0].length)
        config = (chosen[1] if len(chosen) == 2 else ModelSettings(chosen[0].model)).config(data)
    elif isinstance(settings, PretrainSettings):
        data = chosen[0].load()
        config = chosen[1].config(data) if len(chosen) == 2 else load_pretrained(AutoConfig, chosen[0].model)
    else:
        config = load_pretrained(AutoConfig, chosen[0].model)
        if isinstance(settings, SFTSettings) and is_configuration(chosen[0].model):
            length = limit_length(config, settings.max_length)
            if length is None:
                raise InputError("max_length is not set, and the model has no maximum; set it")
            data = AssumedData(chosen[0], config.get_text_config().vocab_size, length)
        elif isinstance(settings, SFTSettings):
            limit_rows(settings, config)
            data = conversation_data(chosen[0], settings)
        else:
            limit_rows(settings, config)
            data = preference_data(chosen[0], settings)
        text = config.get_text_config()
        text.vocab_size = max(text.vocab_size, data.vocab_size)  # the chat template may add tokens
    with torch.device("meta"):
        model = new_model(config)
        if not isinstance(settings, PretrainSettings):
            model = with_adapter(model, settings)
    plan = settings.plan(data, model, world_size)
    trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    return Recipe(plan, settings, config, trained), world_size


def is_configuration(model: str) -> bool:
    """Whether a model is named by a file that has only its configuration."""
    model_name = ModelName.parse(model)
    return model_name.gguf_file is None and Path(model_name.place).is_file()


def _precision(launch: Mapping[str, Any]) -> str:
    """The precision of a launch configuration; without a GPU here, those of one for GPUs have bfloat16."""
    is_for_other_gpus = bool(launch) and not launch.get("use_cpu", False) and not torch.accelerator.is_available()
    return str(launch.get("mixed_precision", "bf16" if is_for_other_gpus else "no"))


def forecast(
    recipe: Recipe,
    *,
    world_size: int,
    now: datetime.datetime,
    rank_stages: Sequence[str] = (),
    share_of_day: float = 1.0,
) -> dict[str, Any]:
    """The plan of a run together with its memory, time and cost.

    Args:
        recipe ([`Recipe`]): the run.
        world_size (`int`): number of processes.
        now (`datetime.datetime`): when it would start.
        rank_stages (sequence of `str`, *optional*): numbers of ranks for the time, see
            [`~hmm_datasets.training.plan.finish.read_rank_stages`]; by default `world_size`.
        share_of_day (`float`, *optional*, defaults to 1.0): share of each day in which it has the machines.

    Returns:
        `dict`: the plan's own fields; `micro_batch_size`, `world_size`, `gradient_accumulation_steps`;
        `possible_ranks`, which divide every batch; `checkpoints`, the most at once, and the bytes of each; `memory`, a
        mapping from ways of sharding to bytes per rank; `device`, the name and the usable bytes of the assumed one;
        `time`, if a rate is assumed.
    """
    plan, settings = recipe.plan, recipe.settings
    micro = settings.per_device_train_batch_size
    accumulation = plan.schedule.global_batch_size // (micro * world_size)

    def memory_of(strategy: str) -> Memory:
        return memory_per_rank(
            strategy,
            parameters=plan.parameters["total"],
            world_size=world_size,
            activations=recipe.activations(micro, settings.activation_checkpointing, strategy != "ddp"),
            largest_layer=recipe.largest_layer,
            low_precision=recipe.low_precision,
            moments=recipe.moments,
            trained=recipe.trained,
            reduces_once=accumulation > 1 and recipe.reduces_once,
            weight_bytes=recipe.weight_bytes,
        )

    memory = {strategy: memory_of(strategy) for strategy in (STRATEGIES if world_size > 1 else STRATEGIES[:1])}
    result = plan.to_dict() | {
        "micro_batch_size": micro,
        "world_size": world_size,
        "gradient_accumulation_steps": accumulation,
        "precision": recipe.precision,
        "optimizer": {"muon": "Muon"}.get(settings.optimizer, "AdamW"),
        "memory": {name: {**asdict(sizes), "total": sizes.total} for name, sizes in memory.items()},
        "trained_parameters": recipe.trained,
        "possible_ranks": plan.schedule.possible_ranks(micro),
        "checkpoints": {
            "most": most_checkpoints(settings, plan.steps),
            "bytes": checkpoint_bytes(
                *(plan.parameters["total"], recipe.trained, recipe.moments, recipe.weight_bytes),
                with_optimizer=not settings.save_only_model,
            ),
        },
        "epochs": None if plan.data.rows_per_epoch is None else plan.rows / plan.data.rows_per_epoch,
    }
    name, _ = device_of(settings.assumed_rate)
    device = None if name is None else find_device(name)
    if device is not None:
        result["device"] = {"name": device.name, "usable": round(USABLE * device.memory)}
    if settings.rate is not None:
        stages = read_rank_stages(rank_stages) if rank_stages else [(world_size, math.inf)]
        for ranks, _ in stages:
            accumulation_steps(plan.schedule.global_batch_size, ranks, micro)
        result["time"] = _time(plan, settings.rate, world_size, settings.price_per_hour, now, stages, share_of_day)
    elif rank_stages or share_of_day != 1:
        raise InputError("rank_stages and share_of_day need a rate to compute when the run ends; set assumed_rate")
    return result


def _time(
    plan: Plan,
    rate: Rate,
    world_size: int,
    price: float | None,
    now: datetime.datetime,
    stages: Sequence[tuple[int, float]],
    share_of_day: float,
) -> dict[str, Any]:
    tokens_per_second = rate.tokens_per_second(plan.flops_per_token, world_size)
    seconds, device_seconds = finish(
        plan.tokens, stages, lambda ranks: tokens_per_second * ranks / world_size, share_of_day
    )
    estimate = {
        "rate": rate.source,
        "tokens_per_second": tokens_per_second,
        "seconds": seconds,
        "device_hours": device_seconds / 3600,
        "ends": (now + datetime.timedelta(seconds=seconds)).isoformat(timespec="minutes"),
    }
    return estimate if price is None else estimate | {"cost": estimate["device_hours"] * price}
