"""What each task of an evaluation measures of a model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from transformers import AutoModelForCausalLM, PreTrainedModel

from ..training.pretrained import load_pretrained
from .beliefs import probe_beliefs, row_of
from .chat.measures import measure_chat
from .completions import complete
from .context import EvaluationContext
from .core.measure import score_core
from .learning_phases import evaluation_of, learning_phases
from .optimum import measure_optimum
from .run_checkpoints import checkpoints_of, progress_of, revisions_of
from .settings import QUICK_WINDOWS
from .targets import Documents
from .task import Result
from .text import measure_text


def run_optimum(context: EvaluationContext, accelerator: Accelerator) -> Result:
    settings = context.settings
    return _measure_optimum(context, context.model, settings.num_sequences, accelerator, metrics=settings.metrics)


def _measure_optimum(
    context: EvaluationContext,
    model: PreTrainedModel,
    num_sequences: int,
    accelerator: Accelerator,
    metrics: Sequence[str] = (),
) -> Result:
    rows, settings = context.rows(num_sequences), context.settings
    sizes = {"batch_size": settings.batch_size, "order": settings.order}
    return measure_optimum(model, context.source, rows, accelerator, **sizes, metrics=metrics)


def run_beliefs(context: EvaluationContext, accelerator: Accelerator) -> Result:
    rows = context.rows(context.settings.num_sequences)
    return probe_beliefs(context.model, context.source, rows, accelerator, **context.sizes)


def run_training(context: EvaluationContext, accelerator: Accelerator) -> Result:
    settings = context.settings
    if settings.revisions:
        origin, models = "revisions", revisions_of(settings.model, settings.revisions)
    elif settings.checkpoints:
        origin, models = "checkpoints", list(map(str, checkpoints_of(Path(settings.model))))
    else:
        return {"from": "history"} | learning_phases(context.history())
    rows = [_checkpoint(context, model, accelerator) for model in models]
    return {"from": origin} | learning_phases(rows) if accelerator.is_main_process else {}


def _checkpoint(context: EvaluationContext, name: str, accelerator: Accelerator) -> dict[str, Any]:
    settings, progress = context.settings, progress_of(name)
    model = load_pretrained(AutoModelForCausalLM, name).to(accelerator.device).eval()
    measured = _measure_optimum(context, model, settings.checkpoint_sequences, accelerator)
    row = evaluation_of(measured) if measured else {}
    if "beliefs" in context.tasks:
        rows = context.rows(settings.checkpoint_sequences)
        row |= row_of(probe_beliefs(model, context.source, rows, accelerator, **context.sizes, controls=False))
    return progress | row


def run_text(context: EvaluationContext, accelerator: Accelerator) -> Result:
    held_out, most = context.held_out, QUICK_WINDOWS if context.settings.quick else None
    sha256 = held_out.sha256 if isinstance(held_out, Documents) else held_out.index.sha256
    measured = measure_text(
        context.model, context.tokenizer, context.windows, accelerator, max_windows=most, **context.sizes
    )
    return measured and measured | {"sha256": sha256}


def run_core(context: EvaluationContext, accelerator: Accelerator) -> Result:
    settings = context.settings
    return score_core(
        context.model,
        context.tokenizer,
        settings.core_data,
        accelerator,
        batch_size=settings.batch_size,
        tasks=settings.core_tasks or None,
        max_per_task=settings.core_max_per_task,
    )


def run_chat(context: EvaluationContext, accelerator: Accelerator) -> Result:
    return measure_chat(
        context.model,
        context.tokenizer,
        context.conversations,
        accelerator,
        max_new_tokens=context.settings.chat_max_new_tokens,
        **context.sizes,
    )


def run_completions(context: EvaluationContext, accelerator: Accelerator) -> Result:
    if not accelerator.is_main_process:
        return {}
    settings = context.settings
    return complete(context.model, context.tokenizer, seed=settings.seed, samples=0 if settings.quick else 2)
