"""The tasks of an evaluation by name, and which of them run."""

from ..errors import InputError
from .context import EvaluationContext
from .task import Task
from .task_measures import (
    run_beliefs,
    run_chat,
    run_completions,
    run_core,
    run_optimum,
    run_text,
    run_training,
)

TASKS = {
    "optimum": Task(
        lambda context: context.source is not None,
        run_optimum,
        "there is no distribution to measure it against; give a process with --targets",
    ),
    "beliefs": Task(
        lambda context: getattr(context.source, "belief_width", None) is not None and context.model_type != "hmm",
        run_beliefs,
        "it needs one HMM or another process with beliefs, and a model with hidden states; give the process with "
        "--targets, and a model that is not an HMM itself",
    ),
    "training": Task(
        lambda context: bool(
            context.history()
            or (context.source is not None and (context.settings.checkpoints or context.settings.revisions))
        ),
        run_training,
        "the model's folder has no history with divergences, and checkpoints is not set; set --checkpoints true or "
        "--revisions all, and give the distribution with --targets",
    ),
    "text": Task(
        lambda context: context.held_out is not None and context.tokenizer is not None,
        run_text,
        "no held-out text; give a token stream or a corpus with --targets, and a model with a tokenizer",
    ),
    "core": Task(
        lambda context: context.settings.core_data is not None and context.writes_text,
        run_core,
        "no questions; give their folder with --core_data, and a model with a tokenizer",
    ),
    "chat": Task(
        lambda context: context.settings.chat_data is not None and context.has_template,
        run_chat,
        "no conversations; give a corpus with --chat_data, and a model whose tokenizer has a chat template",
    ),
    "completions": Task(lambda context: context.writes_text, run_completions, "the model has no tokenizer"),
}


def chosen_tasks(context: EvaluationContext) -> list[str]:
    """The tasks in the settings, or all that apply.

    Raises:
        `InputError`: a task does not apply, or none does.
    """
    wanted, possible = context.settings.tasks, [name for name, task in TASKS.items() if task.applies(context)]
    for name in wanted:
        if name not in possible:
            raise InputError(f"task {name}: {TASKS[name].needs}")
    if not possible:
        raise InputError(f"{context.settings.model}: {TASKS['optimum'].needs}, or text")
    chosen = [name for name in possible if name in wanted or not wanted]
    if context.settings.metrics and "optimum" not in chosen:
        raise InputError("metrics is set, but the task optimum, which computes them, does not run; add it to --tasks")
    return chosen
