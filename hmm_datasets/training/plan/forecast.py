"""What a planned run needs of a machine: memory per rank for every way of sharding, and time and money at a rate.

Memory per rank in bytes per parameter, for AdamW (two moments in float32) and `W` ranks. The table follows Rajbhandari
et al., "ZeRO: memory optimizations toward training trillion parameter models", 2020, section 3, adjusted to what
accelerate, DeepSpeed and torch actually keep:

| | weights | gradients | optimizer |
|---|---|---|---|
| ddp | s | s, and s in buckets for `W > 1` | 2 s |
| fsdp2 | 4/W | 4/W, and c with several micro-batches per step | 8/W |
| zero1 | c | c, and a bucket | 12/W |
| zero2 | c | c/W, and two buckets | 12/W |
| zero3 | c/W | c/W | 12/W |

`s` is the size of the weights as they are trained: 4 in float32, also of a model that was published in bfloat16, or 2
with `dtype` bfloat16, moments included. The base of an adapter is as its file has it, and the adapter in float32
beside it (`s` is 4 for gradients and optimizer).
`c` is 2 in bfloat16 or float16, else 4; DeepSpeed's optimizer keeps a float32 copy of the weights. Sharded weights are
gathered one layer at a time; the gathered layer is counted with activations. Under FSDP2 accelerate reduces gradients
once per step, and until then every rank keeps those of the whole model; with `sync_each_batch` (in
`accelerator_config`, under `gradient_accumulation_kwargs`) they are reduced after every micro-batch. A bucket of
DeepSpeed has `reduce_bucket_size` numbers of `c` bytes, whatever the size of the model; with `overlap_comm` there are
two.

Activations are the peak over the forward and backward pass of one micro-batch, including the loss: with all of its
logits, or with those of a chunk where the loss is computed in chunks. torch's memory tracker runs the model's own code
on fake tensors with one and with two layers, and the difference is added for each further layer. Where autocast
computes in bfloat16, its copies of the matrices count as activations; under ZeRO and FSDP2 the weights are in bfloat16
themselves. Attention is assumed to be fused (memory linear in the length) unless it is `eager`. For a recurrent model,
such as Mamba, the tracker runs the reference code in Python; the kernels of its packages keep less.

Not counted are memory lost to fragmentation in the allocator, CUDA's context (about half a GiB) and communication
buffers.
"""

import contextlib
import copy
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ...compat.torch import fake_tensors, tracked_memory
from ...compat.transformers_models import attention_of, set_config_attention
from ...errors import InputError
from ...runtime.run_records import read_history
from ..model_configs import default_dtype, is_recurrent, new_model, set_attention
from .accelerators import find_device

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_MFU = 0.4  # share of the peak of a device, if none is given
_MAX_TRACKED_SCAN = 32  # tokens per row up to which the memory of a recurrent model is tracked

STRATEGIES = ("ddp", "fsdp2", "zero1", "zero2", "zero3")

REDUCE_BUCKET = 50_000_000
"""Numbers in a bucket of gradients under ZeRO 1 and 2: `reduce_bucket_size` of `ds_configs/`."""


_results: dict[tuple, Any] = {}


@dataclass(frozen=True)
class Rate:
    """The assumed speed of a run.

    Args:
        total (`float`, *optional*): tokens per second over all devices.
        flops_per_device (`float`, *optional*): FLOPs of the model per second and device.
        source (`str`): where the number comes from, in words.
    """

    total: float | None = None
    flops_per_device: float | None = None
    source: str = ""

    def tokens_per_second(self, flops_per_token: int, world_size: int) -> float:
        """Tokens per second over all devices."""
        return self.total if self.total is not None else self.flops_per_device * world_size / flops_per_token


def device_of(rate: float | str | None) -> tuple[str | None, float]:
    """The name of the device in an assumed rate, and the share of its peak; None if it names no known device.

    Raises:
        `InputError`: the share is not one.

    ```python
    >>> device_of("H200:0.5"), device_of("A100"), device_of("outputs/run")
    (('H200', 0.5), ('A100', 0.4), (None, 0.4))

    ```
    """
    name, _, share = (rate if isinstance(rate, str) else "").partition(":")
    if find_device(name) is None:
        return None, _MFU
    try:
        mfu = float(share or _MFU)
    except ValueError:
        mfu = math.nan
    if not 0 < mfu <= 1:
        raise InputError(f"device {rate}: expected a share of its peak above 0 and up to 1, as in {name}:0.5")
    return name, mfu


def read_rate(rate: float | str | None, precision: str = "bf16") -> Rate | None:
    """The rate that `assumed_rate` gives: a number, the rate of an earlier run, or that of a device; None without it.

    Args:
        rate (`float` or `str`, *optional*): tokens per second over all devices; the folder of a run, whose history
            gives the model FLOPs per second and device; or a name that
            [`~hmm_datasets.training.plan.accelerators.find_device`] knows, and a share of its peak, as in `H200:0.5`.
        precision (`str`, *optional*, defaults to `"bf16"`): precision of the peak, see
            [`~hmm_datasets.training.plan.accelerators.Device.peak`].

    Raises:
        `InputError`: none of these, a number that is not above 0, or a run without a history.
    """
    if rate is None:
        return None
    if not isinstance(rate, str):
        if not (rate > 0 and math.isfinite(rate)):
            raise InputError(f"assumed_rate is {rate} tokens per second; expected a number above 0")
        return Rate(total=rate, source="as given")
    device, mfu = device_of(rate)
    if device is None:
        if Path(rate).is_dir():
            return _rate_of_run(Path(rate))
        raise InputError(
            f"assumed_rate is {rate!r}; expected a device such as H200, H100 SXM, A100 or RTX 4090, the folder of a "
            "run, or tokens per second"
        )
    assumed = find_device(device)
    return Rate(flops_per_device=mfu * assumed.peak(precision), source=f"{assumed.name} at {mfu:.0%} MFU")


def _rate_of_run(run: Path) -> Rate:
    path = run / "history.jsonl"
    if not path.exists():
        raise InputError(f"assumed_rate {run}: it has no history.jsonl; give the folder of a run of these recipes")
    rows = [row for row in read_history(path) if "tokens_per_second_per_device" in row and row.get("tokens")]
    if not rows:
        raise InputError(f"{path}: no row has tokens_per_second_per_device; give a run that logged its rate")
    # The first row includes one-off work, such as compiling and filling caches.
    rows = rows[1:] or rows
    rates = [row["tokens_per_second_per_device"] * row["flops"] / row["tokens"] for row in rows]
    return Rate(flops_per_device=statistics.median(rates), source=f"measured in {run}")


@dataclass(frozen=True)
class Memory:
    """Bytes on a rank.

    Attributes:
        weights (`int`), gradients (`int`), optimizer (`int`): kept from step to step, or from the first micro-batch of
            a step to the last.
        activations (`int`): peak, including the layer that is gathered.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        """Sum of the four parts."""
        return self.weights + self.gradients + self.optimizer + self.activations


def memory_per_rank(
    strategy: str,
    *,
    parameters: int,
    world_size: int,
    activations: int,
    largest_layer: int = 0,
    low_precision: bool = False,
    moments: float = 2,
    trained: int | None = None,
    reduces_once: bool = False,
    weight_bytes: int = 4,
) -> Memory:
    """Memory per rank under a way of sharding, from the table in this module's docstring.

    Args:
        strategy (`str`): one of `ddp`, `fsdp2`, `zero1`, `zero2`, `zero3`.
        parameters (`int`): number of parameters of the whole model.
        world_size (`int`): `W`.
        activations (`int`): bytes, from [`peak_activations`].
        largest_layer (`int`, *optional*): number of parameters that are gathered at once.
        low_precision (`bool`, *optional*): whether it computes in bfloat16 or float16.
        moments (`float`, *optional*, defaults to 2): floats per parameter that the optimizer keeps.
        trained (`int`, *optional*): number of parameters that are trained, as with LoRA; by default all.
        reduces_once (`bool`, *optional*): whether a step has several micro-batches, and gradients are reduced after
            the last, unless the strategy does it after each.
        weight_bytes (`int`, *optional*, defaults to 4): bytes of a weight while the model is trained: `s`.

    ```python
    >>> memory_per_rank("zero3", parameters=1000, world_size=4, activations=0, low_precision=True)
    Memory(weights=500, gradients=500, optimizer=3000, activations=0)

    ```
    """
    n, m = parameters, parameters if trained is None else trained
    shard, trained_shard = -(-n // world_size), -(-m // world_size)
    low = 2 if low_precision else 4
    if strategy == "ddp":
        bytes_each = weight_bytes if m == n else 4
        return Memory(
            weight_bytes * n,
            (2 if world_size > 1 else 1) * bytes_each * m,
            round(bytes_each * moments * m),
            activations,
        )
    if strategy == "fsdp2":
        gradients = 4 * trained_shard + (low * m if reduces_once and world_size > 1 else 0)
        optimizer = round(4 * moments * trained_shard)
        return Memory(4 * shard, gradients, optimizer, activations + 2 * low * largest_layer)
    master = round(4 * (1 + moments) * trained_shard)
    bucket = low * REDUCE_BUCKET
    if strategy == "zero1":
        return Memory(low * n, low * m + bucket, master, activations)
    if strategy == "zero2":
        return Memory(low * n, low * trained_shard + 2 * bucket, master, activations)
    if strategy == "zero3":
        return Memory(low * shard, low * trained_shard, master, activations + 2 * low * largest_layer)
    raise InputError(f"strategy {strategy!r}; expected one of {', '.join(STRATEGIES)}")


def peak_activations(
    config: "PretrainedConfig",
    *,
    micro_batch_size: int,
    length: int,
    low_precision: bool = False,
    low_weights: bool = False,
    checkpointing: bool = False,
    chunked_loss: bool = False,
    on_gpu: bool = False,
) -> int:
    """Peak bytes of activations for a micro-batch, from running the model's own code on fake tensors.

    Args:
        config ([`~transformers.PretrainedConfig`]): configuration of a decoder whose `num_hidden_layers` layers are
            alike.
        micro_batch_size (`int`): rows.
        length (`int`): tokens per row.
        low_precision (`bool`, *optional*): whether to compute in bfloat16, by autocast as accelerate does.
        low_weights (`bool`, *optional*): whether the weights are in bfloat16 then, as under ZeRO and FSDP2. Autocast
            otherwise keeps a copy of all matrices until the backward pass, which counts as activations.
        checkpointing (`bool`, *optional*): whether layers are recomputed in the backward pass.
        chunked_loss (`bool`, *optional*): whether the loss is computed in chunks, if the model allows it.
        on_gpu (`bool`, *optional*): whether it is for a GPU, whose chunks of the loss are larger.
    """
    chunked_loss = chunked_loss and _remembered(_allows_chunks, config)
    layers = config.get_text_config().num_hidden_layers
    how = (low_precision, low_precision and low_weights, checkpointing, chunked_loss, chunked_loss and on_gpu)

    def peak(length: int) -> int:
        peaks = [
            _remembered(_tracked_peak, config, count, micro_batch_size, length, *how) for count in (1, min(layers, 2))
        ]
        return peaks[0] + (peaks[1] - peaks[0]) * (layers - 1)

    if length <= _MAX_TRACKED_SCAN or not is_recurrent(config):
        return peak(length)
    # On a CPU its code loops over positions, which takes minutes to track; memory grows linearly with the length.
    half, whole = peak(_MAX_TRACKED_SCAN // 2), peak(_MAX_TRACKED_SCAN)
    return whole + (whole - half) * (length - _MAX_TRACKED_SCAN) // (_MAX_TRACKED_SCAN - _MAX_TRACKED_SCAN // 2)


def _remembered(function: Callable[..., Any], config: "PretrainedConfig", *how: Any) -> Any:
    """`function(config, *how)`, which takes seconds; a plan and the cells of a sweep mostly ask for the same."""
    # The configuration's text leaves out its attention.
    key = (function, type(config), config.to_json_string(), attention_of(config), *how)
    if key not in _results:
        _results[key] = function(config, *how)
    return _results[key]


def _allows_chunks(config: "PretrainedConfig") -> bool:
    from ..fused_loss import unsupported_reason

    with torch.device("meta"):
        model = new_model(config)
    return unsupported_reason(model) is None


def _tracked_peak(
    config, layers, micro_batch_size, length, low_precision, low_weights, checkpointing, chunked_loss, on_gpu
) -> int:
    config = copy.deepcopy(config)
    config.get_text_config().num_hidden_layers = layers
    config.use_cache = False
    if attention_of(config) != "eager":
        # Fused like flash and flex attention, whose kernels cannot run on fake tensors. Not every model has it.
        set_config_attention(config, "eager")
        set_attention(config, "sdpa")
    with fake_tensors():
        with default_dtype(torch.bfloat16 if low_weights else torch.float32):
            model = new_model(config)
        model.train()
        if checkpointing:
            model.activation_checkpointing_enable()
        rows = torch.zeros(micro_batch_size, length, dtype=torch.int64)
        for weight in model.parameters():
            weight.grad = torch.zeros_like(weight)  # so that the peak is that of activations
        casts = torch.autocast("cpu", torch.bfloat16, enabled=low_precision and not low_weights)
        asked = _asked(model, rows, chunked_loss, on_gpu)
        with tracked_memory(model) as peak:
            with asked, casts:
                loss = model(input_ids=rows, labels=rows).loss
            loss.backward()
        return peak()


def _asked(model, rows, chunked_loss: bool, on_gpu: bool):
    """A context in which the output layer gives losses, if it is to compute them in chunks."""
    from ..fused_loss import LabelScores, set_loss_output

    if not chunked_loss:
        return contextlib.nullcontext()
    return set_loss_output(model).computing_losses_of(LabelScores(rows, all_count=True, as_on_gpu=on_gpu))
