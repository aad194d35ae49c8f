"""The precision of a run: bfloat16, float16 or float32, said once, whatever shards the model.

There is one way to say it, `--bf16 true`, `--fp16 true` or `--bf16 false`. Without it the launcher's word counts
(`mixed_precision: bf16` in its configuration, or `--mixed_precision bf16`), then that of the DeepSpeed JSON (`bf16`
or `fp16` with `enabled` true or false). If nobody has said anything, a GPU with bfloat16 trains in it, and everything
else in float32. A launcher tells its processes "no" also when nobody has asked it for anything, so its "no" counts as
nothing said. What is found is then written into the settings, so records, cards and checkpoints name what was used.

In every precision the loss is computed and reported in float32.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers.utils import is_torch_bf16_gpu_available

from ..errors import InputError
from ..files import read_json
from ..runtime import environment

LAUNCHER_VARIABLE = "ACCELERATE_MIXED_PRECISION"
"""Environment variable by which the launcher tells its processes a precision."""
_LONG_NAMES = {"bf16": "bfloat16", "fp16": "float16", "no": "float32"}


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


def describe_precision(precision: str, origin: str) -> str:
    """The precision in a sentence without its subject.

    ```python
    >>> describe_precision("no", "the default on a CPU")
    'trains in float32, the default on a CPU'

    ```
    """
    return f"trains in {_LONG_NAMES[precision]}, {origin}"


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
    given = {name: config.get(name, {}).get("enabled") for name in ("bf16", "fp16")}
    return path, {name: value for name, value in given.items() if isinstance(value, bool)}


@contextlib.contextmanager
def launched_in(precision: str) -> Iterator[None]:
    """Within this context the launcher's precision is this one."""
    before = os.environ.get(LAUNCHER_VARIABLE)
    os.environ[LAUNCHER_VARIABLE] = precision
    try:
        yield
    finally:
        if before is None:
            del os.environ[LAUNCHER_VARIABLE]
        else:
            os.environ[LAUNCHER_VARIABLE] = before


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
