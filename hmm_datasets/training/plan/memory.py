"""Memory per rank of a planned run, for every way of sharding.

In bytes per parameter, for AdamW (two moments in float32) and `W` ranks. The table follows Rajbhandari
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
gathered when they are needed, which is counted with activations: under FSDP2 two layers at a time, under ZeRO 3 up to
the billion that DeepSpeed keeps by default (`stage3_max_live_parameters`). Under FSDP2 accelerate reduces gradients
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

Two ranks of a run on a CPU allocate this within a tenth, under FSDP2 and ZeRO 3 within a fifth
(`tests/recipes/test_planned_memory.py`). Not counted are memory lost to fragmentation in the allocator, CUDA's context
(about half a GiB) and communication buffers.
"""

import contextlib
import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ...compat.checkpointing import enable_checkpointing
from ...compat.torch import fake_tensors, tracked_memory
from ...compat.transformers_models import attention_of, set_config_attention
from ..model_configs import default_dtype, is_recurrent, new_model, set_attention

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_MAX_TRACKED_SCAN = 32  # tokens per row up to which the memory of a recurrent model is tracked

STRATEGIES = ("ddp", "fsdp2", "zero1", "zero2", "zero3")

REDUCE_BUCKET = 50_000_000
"""Numbers in a bucket of gradients under ZeRO 1 and 2: `reduce_bucket_size` of `ds_configs/`."""

_MAX_LIVE = 1_000_000_000  # weights that ZeRO 3 keeps gathered, DeepSpeed's default of `stage3_max_live_parameters`


_results: dict[tuple, Any] = {}


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
) -> dict[str, int]:
    """Bytes per rank under a way of sharding, from the table in this module's docstring.

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

    Returns:
        `dict`: `weights`, `gradients` and `optimizer`, kept from step to step, or from the first micro-batch of a step
        to the last; `activations`, with the layers that are gathered; `total`.

    ```python
    >>> memory_per_rank("zero3", parameters=1000, world_size=4, activations=0, low_precision=True)
    {'weights': 500, 'gradients': 500, 'optimizer': 3000, 'activations': 2000, 'total': 6000}

    ```
    """
    n, m = parameters, parameters if trained is None else trained
    shard, trained_shard = -(-n // world_size), -(-m // world_size)
    low, of_trained, has_several = 2 if low_precision else 4, weight_bytes if m == n else 4, world_size > 1
    bucket = low * REDUCE_BUCKET
    parts = {
        "ddp": (weight_bytes * n, (1 + has_several) * of_trained * m, of_trained * moments * m, activations),
        "fsdp2": (
            4 * shard,
            4 * trained_shard + low * m * (reduces_once and has_several),
            4 * moments * trained_shard,
            activations + 2 * low * largest_layer,
        ),
        "zero1": (low * n, low * m + bucket, 4 * (1 + moments) * trained_shard, activations),
        "zero2": (low * n, low * trained_shard + 2 * bucket, 4 * (1 + moments) * trained_shard, activations),
        "zero3": (
            low * shard,
            low * trained_shard,
            4 * (1 + moments) * trained_shard,
            activations + low * min(n, _MAX_LIVE),
        ),
    }
    names = ("weights", "gradients", "optimizer", "activations")
    sizes = dict(zip(names, map(round, parts[strategy]), strict=True))
    return sizes | {"total": sum(sizes.values())}


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
            enable_checkpointing(model)
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
