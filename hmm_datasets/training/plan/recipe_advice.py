"""`hmm-datasets plan --devices ...`: how to run a recipe, for several models, devices and numbers of ranks."""

import math
import os
from collections.abc import Sequence
from typing import Any

from ...errors import InputError
from .advice import NETWORK, Job, Option, linear_activations, options, reason
from .devices import find_device
from .recipe_plan import read_recipe


def advise(
    path: str | os.PathLike,
    flags: Sequence[str] = (),
    *,
    devices: Sequence[str],
    models: Sequence[str] = (),
    ranks: Sequence[int] = (1,),
    network: float = NETWORK,
    launch_config: str | os.PathLike | None = None,
    assumed_vocab_size: int | None = None,
) -> list[dict[str, Any]]:
    """The fastest way to run a recipe that fits, for every model, device and number of ranks.

    Args:
        path, flags, launch_config, assumed_vocab_size: see [`~hmm_datasets.training.plan.recipe_plan.read_recipe`].
        devices (sequence of `str`): names that [`~hmm_datasets.training.plan.devices.find_device`] knows.
        models (sequence of `str`, *optional*): values of `--model`; by default that of the file.
        ranks (sequence of `int`, *optional*): numbers of devices.
        network (`float`, *optional*): bytes per second and device between machines.

    Returns:
        list of `dict`: `model`, `parameters`, `device`, `ranks`, and either `reason`, why there is no way; or
        `strategy`, `micro_batch_size`, `recomputes`, `memory` and `host_memory` in bytes per rank, `fitting` (all
        strategies that fit, the fastest first), and where it is estimated `communication` (seconds per second of
        computing), `tokens_per_second`, `hours`, `device_hours` and, if `price_per_hour` is set, `cost`.

    Raises:
        `InputError`: an unknown device, or settings that the recipe would refuse.
    """
    unknown = [name for name in devices if find_device(name) is None]
    if unknown:
        raise InputError(f"device {unknown[0]!r} is unknown; expected a name such as H200, H100 SXM, A100 or RTX 4090")
    found = []
    for model in models or (None,):
        chosen = [] if model is None else ["--model", model]
        recipe, _ = read_recipe(
            path,
            [*flags, *chosen],
            num_processes=1,
            launch_config=launch_config,
            assumed_vocab_size=assumed_vocab_size,
        )
        plan, settings = recipe.plan, recipe.settings
        job = Job(
            parameters=plan.parameters["total"],
            largest_layer=recipe.largest_layer,
            flops_per_token=plan.flops_per_token,
            row_length=plan.data.row_length,
            global_batch_size=plan.schedule.global_batch_size,
            batch_divisor=math.gcd(plan.schedule.global_batch_size, *(rows for rows, _ in plan.schedule.stages)),
            low_precision=recipe.low_precision,
            moments=recipe.moments,
            reduces_once=recipe.reduces_once,
            activations=linear_activations(recipe.activations),
        )
        for name in devices:
            device = find_device(name)
            for world_size in ranks:
                row = {"model": model, "parameters": job.parameters, "device": device.name, "ranks": world_size}
                ways = options(job, device, world_size, mfu=settings.assumed_mfu, network=network)
                if not ways:
                    found.append(row | {"reason": reason(job, device, world_size)})
                    continue
                row |= _described(ways)
                if not math.isnan(ways[0].seconds):
                    row |= _timed(job, ways[0], world_size, plan.tokens, settings.price_per_hour)
                found.append(row)
    return found


def _described(ways: Sequence[Option]) -> dict[str, Any]:
    best = ways[0]
    return {
        "strategy": best.strategy,
        "micro_batch_size": best.micro_batch_size,
        "recomputes": best.recomputes,
        "memory": best.memory,
        "host_memory": best.host_memory,
        "fitting": list(dict.fromkeys(way.strategy for way in ways)),
    }


def _timed(job: Job, best: Option, world_size: int, tokens: int, price: float | None) -> dict[str, Any]:
    rate = job.row_length * job.global_batch_size / best.seconds
    hours = tokens / rate / 3600
    found = {
        "communication": best.communicating / best.computing,
        "tokens_per_second": rate,
        "hours": hours,
        "device_hours": hours * world_size,
    }
    return found if price is None else found | {"cost": hours * world_size * price}
