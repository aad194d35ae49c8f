"""What measuring a model needs, before it is downloaded: memory, FLOPs, and time on some devices.

The model is made from its configuration on the device `meta`, so a name or a configuration file is enough. Its weights
are in the precision in which it is loaded, and every rank has all of them. Memory is their size and the peak of a
forward pass, see [`~hmm_datasets.training.plan.forecast`]. FLOPs are those of a forward pass, a third of those of
training. What is read:

- `evaluate`: text in windows, of which `stride` tokens are scored, a million of them in all. Where conversations are
  answered, memory is also that of a batch of windows with their keys and values; the time of answering is left out.
- `benchmark`: the sequences of its processes, one token for each symbol.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from ..errors import InputError
from ..evaluation.benchmark import SCORED, BenchmarkSettings
from ..evaluation.benchmark.held_out import LENGTH
from ..evaluation.benchmark.processes import chosen_processes
from ..evaluation.benchmark.symbols import rows_per_pass
from ..evaluation.context import window_and_stride
from ..evaluation.evaluation import EvaluationSettings
from ..runtime.command_line import parse_settings
from ..runtime.settings import SettingsParser, settings_from
from ..training.model_configs import new_model
from ..training.parameters import count_parameters
from ..training.plan.accelerators import USABLE, Device, peak_flops
from ..training.plan.flops import unit_flops
from ..training.plan.forecast import peak_activations, read_rate
from ..training.pretrained import load_pretrained
from .planning import Planned, known_devices, weight_bytes

SCORED_TOKENS = 1_000_000
"""Tokens of text that are scored."""


@dataclass(frozen=True)
class Reading:
    """What a measurement reads.

    Attributes:
        rows (`int`): rows of a forward pass.
        length (`int`): tokens that the model reads of a row.
        count (`int`): rows in all.
        chunked (`bool`): whether labels are scored without the logits of a batch.
        generates (`bool`): whether the model answers too, with its keys and values.
    """

    rows: int
    length: int
    count: int
    chunked: bool
    generates: bool = False


def plan_measurement(
    command: Planned, *, models: Sequence[str] = (), devices: Sequence[str] = (), ranks: Sequence[int] = (1,)
) -> list[dict[str, Any]]:
    """Plan an evaluation or the benchmark, for some models and devices.

    Args:
        command ([`~hmm_datasets.operations.planning.Planned`]): `evaluate` or `benchmark`, and its flags.
        models (sequence of `str`, *optional*): names of models or configuration files; by default those of the flags.
        devices (sequence of `str`, *optional*): names for
            [`~hmm_datasets.training.plan.accelerators.find_device`].
        ranks (sequence of `int`, *optional*): numbers of devices.

    Returns:
        list of `dict`: for each model `model`, `parameters`, `precision`, in bytes `weights`, `activations` and
        `memory`, `rows` and `length` of a forward pass, `tokens` (all that it reads) and `flops`; and `devices`, for
        each the `device`, its `usable` bytes, and `seconds` by the number of ranks, None where no peak is known.

    Raises:
        `InputError`: no model or no configuration of one, an unknown device, or settings that the command would
            refuse.
    """
    known = known_devices(devices)
    return [_planned(config, name, read, known, ranks) for name, config, read in _readings(command, models)]


def _readings(command: Planned, models: Sequence[str]) -> Iterator[tuple[str, PreTrainedConfig, Any]]:
    """Every model with its configuration, and a function from the model to what is read."""
    if command.name == "evaluate":
        for name in models or (None,):
            flags = command.arguments if name is None else [*command.arguments, "--model", name]
            (settings,) = parse_settings(EvaluationSettings, arguments=flags)
            yield settings.model, load_pretrained(AutoConfig, settings.model), _of_evaluation(settings)
        return
    settings = _benchmark_settings([*command.arguments, *models])
    if not settings.models:
        raise InputError("plan benchmark: give a MODEL, or several with --models")
    for name in settings.models:
        yield name, load_pretrained(AutoConfig, name), _of_benchmark(settings)


def _benchmark_settings(arguments: Sequence[str]) -> BenchmarkSettings:
    parser = SettingsParser(prog="hmm-datasets plan benchmark")
    parser.add_settings(BenchmarkSettings)
    values, unknown = parser.parse(arguments)
    parser.check_flags(unknown)
    return settings_from(BenchmarkSettings, vars(values))


def _of_evaluation(settings: EvaluationSettings):
    def read(model: PreTrainedModel) -> Reading:
        window, stride = window_and_stride(settings, model)
        generates = settings.chat_data is not None
        return Reading(settings.batch_size, window - 1, math.ceil(SCORED_TOKENS / stride), True, generates)

    return read


def _of_benchmark(settings: BenchmarkSettings):
    def read(model: PreTrainedModel) -> Reading:
        sequences = settings.num_sequences or SCORED[settings.track or "text"]
        vocab_size = model.config.get_text_config().vocab_size
        rows = rows_per_pass(LENGTH + 1, vocab_size, min(settings.batch_size, sequences))
        return Reading(rows, LENGTH, sequences * len(chosen_processes(settings.process or None)), False)

    return read


def _planned(
    config: PreTrainedConfig, name: str, read: Any, devices: Sequence[Device], ranks: Sequence[int]
) -> dict[str, Any]:
    with torch.device("meta"):
        model = new_model(config)
    reading, size, total = read(model), weight_bytes(config), count_parameters(model)["total"]
    peak = {
        use: peak_activations(
            config,
            micro_batch_size=reading.rows,
            length=reading.length,
            low_precision=size < 4,
            low_weights=True,
            chunked_loss=reading.chunked,
            use=use,
        )
        for use in (("score", "generate") if reading.generates else ("score",))
    }
    per_token, per_pair = unit_flops(model)
    tokens = reading.count * reading.length
    flops = tokens * (per_token + per_pair * reading.length) // 3
    return {
        "model": name,
        "parameters": total,
        "precision": "float32" if config.dtype is None else str(config.dtype).removeprefix("torch."),
        "weights": size * total,
        "activations": max(peak.values()),
        "memory": size * total + max(peak.values()),
        "rows": reading.rows,
        "length": reading.length,
        "tokens": tokens,
        "flops": flops,
        "devices": [
            {
                "device": device.name,
                "usable": round(USABLE * device.memory),
                "seconds": {number: _seconds(device, flops, number, config.dtype) for number in ranks},
            }
            for device in devices
        ],
    }


def _seconds(device: Device, flops: int, ranks: int, dtype: torch.dtype | None) -> float | None:
    """Seconds at the share of the peak that plans assume; None if the device has no known peak in this precision."""
    precision = {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(dtype, "fp32")
    if peak_flops(device.name, precision) is None:
        return None
    rate = read_rate(device.name, precision)
    return flops / rate.tokens_per_second(1, ranks)
