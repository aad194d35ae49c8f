"""How long an evaluation will take, at the speed of a short trial."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel

from ..compat.transformers_caches import generate
from ..display import format_duration
from .completions import FACTS
from .context import EvaluationContext
from .label_scores import score_labels
from .model_limits import context_limit
from .tasks import TASKS


def expected_time(context: EvaluationContext, num_processes: int = 1) -> str:
    """How long the tasks will take, at the speed of a short trial; empty if the cost of none is known.

    The trial reads some rows, and generates a few tokens if a task has answers. Answers may end early, so the time
    of tasks that have them is the most that they take.
    """
    workloads = {name: TASKS[name].cost(context) for name in context.tasks if TASKS[name].cost is not None}
    if not workloads:
        return ""
    model, batch_size, per_pass = context.model, context.settings.batch_size, 0.0
    length = min(128, context_limit(model) or 128)
    prompts = torch.zeros(batch_size, length, dtype=torch.long, device=model.device)
    per_token = _seconds_per_token(model, prompts)
    if any(workload.passes for workload in workloads.values()):
        prompts = prompts[: len(FACTS), : max(1, min(8, length - 4))]
        mask, limits = torch.ones_like(prompts), {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
        per_pass = _timed(lambda: generate(model, input_ids=prompts, attention_mask=mask, **limits)) / 4
    seconds = {
        name: per_token * workload.tokens / num_processes + per_pass * workload.passes
        for name, workload in workloads.items()
    }
    parts = ", ".join(
        f"{name} {'at most ' if workloads[name].passes else ''}{format_duration(length)}"
        for name, length in seconds.items()
    )
    others = [name for name in context.tasks if name not in workloads]
    besides = f", and that of {', '.join(others)}" if others else ""
    return f"about {format_duration(sum(seconds.values()))}{besides}: {parts}"


def _seconds_per_token(model: PreTrainedModel, rows: torch.Tensor) -> float:
    """Of a batch of some of the rows: of all of them where less would leave a fast device idle."""
    count = min(4, len(rows))
    while True:
        read = partial(score_labels, model, rows[:count], input_ids=rows[:count], use_cache=False)
        seconds = _timed(read)
        if seconds > 0.2 or count == len(rows):
            return seconds / (count * rows.shape[1])
        count = min(4 * count, len(rows))


def _timed(work: Callable[[], Any]) -> float:
    """Seconds that the second run of some work takes."""
    with torch.inference_mode():
        for _ in range(2):
            began = time.monotonic()
            work()
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
    return time.monotonic() - began
