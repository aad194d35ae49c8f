"""What each task of an evaluation measures of a model, and how much the model reads for it."""

from pathlib import Path
from typing import Any

from accelerate import Accelerator
from transformers import AutoModelForCausalLM, PreTrainedModel

from ..text.tokenizers.encoding import encode_texts
from ..training.pretrained import load_pretrained
from .beliefs import probe_beliefs, row_of
from .chat.measures import measure_chat
from .completions import COMPLETION_TOKENS, FACTS, OPEN_PROMPTS, complete
from .context import EvaluationContext
from .core.measure import score_core, tokens_to_read
from .learning_phases import evaluation_of, learning_phases
from .optimum import measure_optimum
from .run_checkpoints import checkpoints_of, progress_of, revisions_of
from .targets import Documents
from .task import Result, Workload
from .text import measure_text


def run_optimum(context: EvaluationContext, accelerator: Accelerator) -> Result:
    return _measure_optimum(context, context.model, context.settings.num_sequences, accelerator)


def _measure_optimum(
    context: EvaluationContext, model: PreTrainedModel, num_sequences: int, accelerator: Accelerator
) -> Result:
    rows, settings = context.rows(num_sequences), context.settings
    return measure_optimum(
        model, context.source, rows, accelerator, batch_size=settings.batch_size, order=settings.order
    )


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
    held_out, most = context.held_out, context.settings.max_windows
    sha256 = held_out.sha256 if isinstance(held_out, Documents) else held_out.index.sha256
    measured = measure_text(
        context.model, context.tokenizer, context.windows, accelerator, max_windows=most, **context.sizes
    )
    return measured and measured | {"sha256": sha256}


def text_cost(context: EvaluationContext) -> Workload:
    windows, most = context.windows, context.settings.max_windows
    return Workload((windows.length - 1) * (len(windows) if most is None else min(most, len(windows))))


def run_core(context: EvaluationContext, accelerator: Accelerator) -> Result:
    settings = context.settings
    return score_core(
        context.model,
        context.tokenizer,
        settings.core_data,
        accelerator,
        batch_size=settings.batch_size,
        baselines=settings.core_baselines,
        **context.core,
    )


def core_cost(context: EvaluationContext) -> Workload:
    return Workload(tokens_to_read(context.tokenizer, context.settings.core_data, **context.core))


def run_chat(context: EvaluationContext, accelerator: Accelerator) -> Result:
    return measure_chat(
        context.model,
        context.tokenizer,
        context.conversations,
        accelerator,
        max_new_tokens=context.settings.chat_max_new_tokens,
        **context.sizes,
    )


def chat_cost(context: EvaluationContext) -> Workload:
    rows, settings = context.conversations, context.settings
    texts = [message["content"] for row in rows for message in row["messages"]]
    tokens = sum(map(len, encode_texts(context.tokenizer, texts)))
    return Workload(2 * tokens, -(-len(rows) // settings.batch_size) * settings.chat_max_new_tokens)


def run_completions(context: EvaluationContext, accelerator: Accelerator) -> Result:
    if not accelerator.is_main_process:
        return {}
    return complete(context.model, context.tokenizer, seed=context.settings.seed, samples=context.samples)


def completions_cost(context: EvaluationContext) -> Workload:
    texts = [*(prompt for prompt, _ in FACTS), *OPEN_PROMPTS]
    times = 1 + context.samples
    return Workload(times * sum(map(len, encode_texts(context.tokenizer, texts))), times * COMPLETION_TOKENS)
