"""The precision of a run: bfloat16, float16 or float32, said once, whatever shards the model.

There is one way to say it, `--bf16 true`, `--fp16 true` or `--bf16 false`. Without it the launcher's word counts
(`mixed_precision: bf16` in its configuration, or `--mixed_precision bf16`), then that of the DeepSpeed JSON (`bf16`
or `fp16` with `enabled` true or false). If nobody has said anything, a GPU with bfloat16 trains in it, and everything
else in float32. A launcher gives its processes "no" also when nobody has asked it for anything, so its "no" counts as
nothing said. What is found is then written into the settings, so records, cards and checkpoints name what was used.

In every precision the loss is computed and reported in float32.

Weights, and with them the moments of the optimizer, are float32 in every precision, also of a model that was published
in bfloat16: there a step of relative size below 2^-9 leaves a weight as it is (Zamirai et al., "Revisiting BFloat16
training", 2020), so most weights would never change at the learning rates of fine-tuning. `--dtype bfloat16` asks for
it nevertheless, and halves the memory. The frozen base of an adapter stays as its file has it.
"""

import os
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import is_peft_model, patch_environment
from transformers.utils import is_torch_bf16_gpu_available

from ..display import describe_weights
from ..errors import InputError
from ..files import read_json
from ..runtime import environment

LAUNCHER_VARIABLE = "ACCELERATE_MIXED_PRECISION"
"""Environment variable by which the launcher gives its processes a precision."""
_LONG_NAMES = {"bf16": "bfloat16", "fp16": "float16", "no": "float32"}
WEIGHT_TYPES = ("float32", "bfloat16")
"""Types of weights and moments that can be asked for."""


def find_precision(settings: Any) -> tuple[str, str]:
    """The precision that a run with these settings trains in, and which setting chose it.

    Args:
        settings (`TrainingArguments`): its `bf16` and `fp16` are None where nothing was said; `use_cpu` is read too.

    Returns:
        `tuple`: `"bf16"`, `"fp16"` or `"no"`; and a phrase such as `"the default on a CPU"`.

    Raises:
        `InputError`: two precisions are asked for, or one that the device or this package does not have.
    """
    on_cpu = settings.use_cpu or not torch.accelerator.is_available()
    if settings.bf16 and settings.fp16:
        raise InputError("bf16 and fp16 are both true; set one of them")
    json, enabled = _deepspeed_json()
    asked = _launched()
    if settings.bf16 or settings.fp16:
        precision = "bf16" if settings.bf16 else "fp16"
        origin = f"set by {precision}"
    elif settings.bf16 is not None:
        precision, origin = "no", "set by bf16"
    elif asked is not None:
        precision, origin = asked, "set by mixed_precision of the launcher"
    elif enabled:
        precision = next((name for name, is_on in enabled.items() if is_on), "no")
        origin = f"set by {json}"
    else:
        precision = "bf16" if not on_cpu and has_bfloat16() else "no"
        origin = f"the default on {'a CPU' if on_cpu else _accelerator()}"
    for name, is_on in enabled.items():
        if is_on != (precision == name):
            raise InputError(
                f"{json}: {name} is {str(is_on).lower()}, but {_LONG_NAMES[precision]} is {origin}; write "
                f'"enabled": "auto" for {name} in it'
            )
    if precision == "bf16" and not on_cpu and not has_bfloat16():
        raise InputError(
            f"bf16 is {origin}, but {_accelerator()} has no bfloat16; set fp16 true, or bf16 false for float32"
        )
    return precision, origin


def describe_precision(precision: str, origin: str, weights: dict[str, str] | None = None) -> str:
    """The precision in a sentence without its subject; `weights` are those of [`types_of_weights`].

    ```python
    >>> describe_precision("no", "the default on a CPU", {"weights": "float32"})
    'trains in float32, the default on a CPU; weights and moments in float32'

    ```
    """
    sentence = f"trains in {_LONG_NAMES[precision]}, {origin}"
    return sentence if weights is None else f"{sentence}; {describe_weights(weights)}"


def check_dtype(settings: Any) -> None:
    """Raise [`InputError`] for a type of weights that does not exist, or that the way of sharding does not keep."""
    if settings.dtype is not None and settings.dtype not in WEIGHT_TYPES:
        raise InputError(f"dtype is {settings.dtype!r}; expected {' or '.join(WEIGHT_TYPES)}, or leave it out")
    is_sharded = environment.uses_deepspeed() or os.environ.get("ACCELERATE_USE_FSDP") == "true"
    if settings.dtype == "bfloat16" and is_sharded and not getattr(settings, "use_peft", False):
        raise InputError(
            "dtype is bfloat16, but DeepSpeed and FSDP2 keep a float32 copy of the weights; leave it out, or launch "
            "with ddp"
        )


def type_of_weights(settings: Any, saved: torch.dtype | None, *, is_adapter: bool) -> torch.dtype:
    """The type of a model's weights in training.

    Args:
        settings (`TrainingArguments`): its `dtype` is None where nothing was said.
        saved (`torch.dtype`, *optional*): type of the weights in the model's files.
        is_adapter (`bool`): whether an adapter is trained beside them.
    """
    if settings.dtype is not None:
        return getattr(torch, settings.dtype)
    saved = saved or torch.float32
    return saved if is_adapter else torch.promote_types(saved, torch.float32)


def set_type_of_weights(model: torch.nn.Module, settings: Any, *, is_base: bool = False) -> None:
    """Give the weights of a model the type that they are trained in, see [`type_of_weights`].

    Weights that DeepSpeed has divided already are left alone, since it keeps a float32 copy of its own, and so are
    quantized ones.

    Args:
        model (`nn.Module`): the model, with an adapter or without.
        settings (`TrainingArguments`): see [`type_of_weights`].
        is_base (`bool`, *optional*): whether an adapter is yet to be put beside it.
    """
    if getattr(model, "is_quantized", False) or any(hasattr(other, "ds_id") for other in model.parameters()):
        return
    has_adapter = is_peft_model(model)
    for weight in chain(model.parameters(), model.buffers()):
        if not weight.is_floating_point():
            continue
        if has_adapter and weight.requires_grad:
            wanted = torch.promote_types(weight.dtype, torch.float32)
        else:
            wanted = type_of_weights(settings, weight.dtype, is_adapter=is_base or has_adapter)
        if (
            isinstance(weight, torch.nn.Parameter) or wanted.itemsize > weight.dtype.itemsize
        ):  # buffers are only raised
            weight.data = weight.data.to(wanted)


def types_of_weights(model: torch.nn.Module) -> dict[str, str]:
    """The type of the weights that are trained, as `weights`, and of others, as `frozen`, if it is another.

    DeepSpeed trains a float32 copy of weights that it has divided.
    """

    def name(is_trained: bool) -> str:
        weights = [
            weight
            for weight in model.parameters()
            if weight.is_floating_point() and weight.requires_grad == is_trained
        ]
        types = {
            "float32" if hasattr(weight, "ds_id") and is_trained else str(weight.dtype).removeprefix("torch.")
            for weight in weights
        }
        return " and ".join(sorted(types))

    trained, frozen = name(True), name(False)
    return {"weights": trained} | ({"frozen": frozen} if frozen and frozen != trained else {})


def has_bfloat16() -> bool:
    """Whether the accelerator of this process has units for bfloat16; emulating it would be slower than float32."""
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.accelerator.is_available() and is_torch_bf16_gpu_available()


def _accelerator() -> str:
    """The accelerator of this process, by its name if it has one."""
    accelerator = torch.accelerator.current_accelerator()
    return torch.cuda.get_device_name() if torch.cuda.is_available() else str(accelerator)


def _launched() -> str | None:
    """The precision that the launcher was asked for, if any."""
    asked = os.environ.get(LAUNCHER_VARIABLE, "no").lower()
    if asked not in _LONG_NAMES:
        raise InputError(f"mixed_precision of the launcher is {asked!r}; expected no, fp16 or bf16")
    return None if asked == "no" else asked


def _deepspeed_json() -> tuple[str, dict[str, bool]]:
    """The launcher's DeepSpeed JSON, and what it switches on or off of bf16 and fp16; "auto" is neither."""
    path = os.environ.get("ACCELERATE_DEEPSPEED_CONFIG_FILE", "none")
    if not environment.uses_deepspeed() or not Path(path).is_file():
        return path, {}
    config = read_json(Path(path))
    switches = {name: config.get(name, {}).get("enabled") for name in ("bf16", "fp16")}
    return path, {name: value for name, value in switches.items() if isinstance(value, bool)}


def launched_in(precision: str) -> AbstractContextManager[None]:
    """A context in which the launcher's precision is this one."""
    return patch_environment(**{LAUNCHER_VARIABLE: precision})


def keep_loss_in_float32(accelerator: Any) -> None:
    """Make FSDP2 return what the model returns; call it before the model is wrapped.

    accelerate asks FSDP2 to cast the outputs of every layer and of the model to the low precision, which rounds the
    loss to 8 bits. Layers compute in the low precision anyway, and the loss in float32.

    Args:
        accelerator ([`~accelerate.Accelerator`]): the accelerator of the run.
    """
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    policy = getattr(plugin, "mixed_precision_policy", None)
    if getattr(policy, "output_dtype", None) is not None:
        plugin.mixed_precision_policy = replace(policy, output_dtype=None)
