"""Tasks during training: simple facts and questions of CORE, evaluated every so many steps and logged with the loss.

They are evaluated on the model as it is, on all ranks together. Training is not affected: the mode of the model and
the state of the random numbers are restored. The rows of `history.jsonl` have `facts` (how many of twenty simple
facts, or of those in a file, are continued correctly), and with `core_data` also `core`, the mean centered accuracy
with its 95% interval (`core_low` to `core_high`), and the accuracy of each task as `core/TASK`. A finished run has
their curves in `plots/`.

The cost is that of `hmm-datasets evaluate` with these tasks, but without the control of CORE: a forward pass for every
option of every question, divided among the ranks, and 24 forward passes of twenty short prompts.
"""

from typing import TYPE_CHECKING

import torch
from transformers import TrainerCallback
from transformers.integrations import is_deepspeed_zero3_enabled

from ..errors import InputError
from ..hmm.tokenizer import check_symbols, reads_symbols
from .completions import FACTS, complete, read_facts
from .core.measure import score_core

QUESTIONS_PER_TASK = 200
"""Questions of each task of CORE that are asked."""

if TYPE_CHECKING:
    from ..training.trainer import StepTrainer


class TaskEvaluations(TrainerCallback):
    """Evaluates the tasks of the settings every `task_steps` steps, and after the last one.

    Args:
        trainer ([`~hmm_datasets.training.trainer.StepTrainer`]): the trainer, with a tokenizer.

    Raises:
        `InputError`: it has no tokenizer, or one of symbols, which cannot read the tasks, or ranks have only a part of
            the weights.
    """

    def __init__(self, trainer: "StepTrainer"):
        if trainer.processing_class is None:
            raise InputError("task_steps is set, but there is no tokenizer to read the tasks; leave it out")
        if trainer.args.world_size > 1 and (trainer.is_fsdp_enabled or is_deepspeed_zero3_enabled()):
            raise InputError(
                "task_steps: each rank has only a part of the weights under ZeRO-3 and FSDP2; leave it out, keep "
                "checkpoints (keep_every), and evaluate these"
            )
        self.trainer = trainer
        self.facts = FACTS if trainer.args.facts is None else read_facts(trainer.args.facts)
        if trainer.args.core_data is not None and reads_symbols(trainer.processing_class):
            raise InputError("core_data: the model reads symbols of a process, not the text of CORE; leave it out")
        what = f"{trainer.args.facts or 'the facts of task_steps (name others: facts)'}: "
        for prompt, answer in self.facts:
            check_symbols(trainer.processing_class, f"{prompt} {answer}", what)

    def on_step_end(self, args, state, control, **kwargs):
        """Evaluate, if this step is due."""
        if state.global_step % args.task_steps == 0 or state.global_step == state.max_steps:
            should_log = control.should_log
            self.trainer.log(self.measure())
            control.should_log = should_log  # logging a row counts as the log of this step, which would lose its loss

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        """The columns of a row."""
        trainer, args = self.trainer, self.trainer.args
        model = trainer.accelerator.unwrap_model(trainer.model)
        was_training = model.training
        model.eval()
        row = {}
        if args.core_data is not None:
            scores = score_core(
                model,
                trainer.processing_class,
                args.core_data,
                trainer.accelerator,
                max_per_task=QUESTIONS_PER_TASK,
                batch_size=args.per_device_eval_batch_size,
                corrupted=False,
            )
            if scores:  # on the main process
                row |= {"core": scores["score"], "core_low": scores["low"], "core_high": scores["high"]}
                row |= {f"core/{name}": task["accuracy"] for name, task in scores["tasks"].items()}
        scores = complete(model, trainer.processing_class, facts=self.facts, open_prompts=(), samples=0)
        row["facts"] = float(scores["facts_correct"])
        model.train(was_training)
        return row


def add_task_evaluations(trainer: "StepTrainer") -> None:
    """Let a trainer evaluate the tasks of its settings, if there are any."""
    if trainer.args.task_steps > 0:
        trainer.add_callback(TaskEvaluations(trainer))
