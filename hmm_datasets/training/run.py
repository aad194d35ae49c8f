"""A training run from its first line to its last: record, resume, train, evaluate, save, account.

Optimizer step `t` trains on rows `[t G, (t + 1) G)`, or where the global batch grows, on those after the rows of the
steps before. A run that goes on from step `t` is given the rows from there on as a data set of their own, so that
resuming at step 1,000,000 costs what resuming at step 10 does.
"""

import time
from collections.abc import Sized
from pathlib import Path
from typing import Any

from torch.utils.data import Subset
from transformers import PrinterCallback, ProgressCallback, Trainer
from transformers.utils.logging import disable_progress_bar
from trl import SFTTrainer

from ..errors import InputError
from ..files import read_json, write_json
from ..hub.run_cards import write_run_card
from ..ops.checkpoints import newest_good
from ..report.forecast_table import consumption_table
from ..report.overview import draw_run
from .interruptions import Interruptions, parse_time
from .lineage import lineage
from .models import count_parameters
from .pace import GeometricPace
from .plan import Plan
from .progress import ProgressLine
from .record import History, check_data, write_record
from .samples import Samples
from .saving import check_checkpoint, identity_of
from .sharding import holdings

SUMMARY_NAME = "summary.json"
PLAN_NAME = "plan.json"


def train_and_save(
    trainer: Trainer,
    *,
    settings: dict[str, Any],
    data: dict[str, Any],
    plan: Plan | None = None,
    base: str | None = None,
) -> dict[str, Any]:
    """Train to the end of the budget, from the newest whole checkpoint if there is one, and save the model.

    Writes to `trainer.args.output_dir`: `run.json`, `plan.json`, `history.jsonl`, where asked `samples.jsonl`,
    `checkpoint-N/`, and at the end the model, its card, `summary.json` and `plots/`; with `push_to_hub` all but the
    checkpoints then goes to the Hub.

    Args:
        trainer ([`~transformers.Trainer`]): ready to train; its `args` mix in
            [`~hmm_datasets.training.settings.GlobalBatch`].
        settings (`dict`): the recipe's own settings, for the record.
        data (`dict`): what fixes the examples and their order, for the record.
        plan ([`~hmm_datasets.training.plan.Plan`], *optional*): what the run will consume; what it consumed is
            checked against it, to the token.
        base (`str`, *optional*): folder or Hub name of the model that training starts from; None for a new model.

    Returns:
        `dict`: the summary: steps, tokens, seconds, parameters, evaluation. Of a run that was told to stop, how far it
        came: there is no model yet, and no summary.

    Raises:
        `InputError`: the folder holds another run, or the tokens consumed are not those planned.
    """
    args = trainer.args
    Path(args.output_dir).mkdir(parents=True, exist_ok=True)
    data = {**data, "global_batch_size": args.global_batch_size}
    check_data(args.output_dir, data, args.accept_changes)
    finished = _finished(args)
    if finished is not None:
        if trainer.is_world_process_zero():
            print(f"{args.output_dir}: finished before, at step {finished['steps']}; nothing to do")
        return finished
    checkpoint = _checkpoint_to_resume(args) if args.resume else None
    trainer.identity = identity_of(trainer, data)
    if checkpoint is not None:
        check_checkpoint(checkpoint, trainer.identity, args.accept_changes)
    origin = lineage(base, stage=_stage(trainer, base), data=_description(settings, plan))
    write_record(args.output_dir, {**settings, **args.to_dict()}, data, args.accept_changes, origin)
    if plan is not None:
        trainer.say(f"{args.output_dir}: {plan}")
        if trainer.is_world_process_zero():
            write_json(Path(args.output_dir) / PLAN_NAME, plan.to_dict())
    if args.evaluations_per_doubling > 0:
        trainer.add_callback(GeometricPace(args.evaluations_per_doubling))
    if args.sample_prompts:
        trainer.add_callback(Samples(trainer))
    trainer.add_callback(History(args.output_dir))
    trainer.remove_callback(PrinterCallback)
    if trainer.pop_callback(ProgressCallback) is not None:
        trainer.add_callback(ProgressLine())
    interruptions = Interruptions(trainer, None if args.time_limit is None else parse_time(args.time_limit))
    trainer.add_callback(interruptions)
    disable_progress_bar()
    before = 0
    if checkpoint is not None:
        # Read now: by the end the checkpoint may have made room for newer ones.
        state = read_json(checkpoint / "trainer_state.json")
        before = state["num_input_tokens_seen"]
        if args.train_sampling_strategy == "sequential":
            _start_at(trainer, state["global_step"])
            trainer.random_state_of = checkpoint
    began = time.time()
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    seconds = time.time() - began
    if interruptions.interrupted:
        trainer.say(
            f"{args.output_dir}: stopped at step {trainer.state.global_step:,} of {trainer.state.max_steps:,}, with a "
            "checkpoint; the same command goes on"
        )
        return {"steps": trainer.state.global_step, "interrupted": interruptions.reason}
    evaluation = trainer.evaluate() if trainer.eval_dataset is not None else {}

    tokens = trainer.state.num_input_tokens_seen
    promised = None if plan is None else plan.tokens_at(trainer.state.global_step)
    if promised is not None and tokens != promised:
        raise InputError(
            f"{args.output_dir}: {trainer.state.global_step} steps consumed {tokens:,} tokens, the plan says "
            f"{promised:,}; the checkpoint it went on from is of another global batch or length"
        )
    trainer.save_model(args.output_dir, _internal_call=True)  # pushed below, with what is written until then
    summary = {
        "steps": trainer.state.global_step,
        "budget": _budget(args),
        "tokens": tokens,
        "planned_tokens": promised,
        "flops": trainer.state.total_flos,
        "global_batch_size": args.global_batch_size,
        "world_size": args.world_size,
        "learning_rate": args.learning_rate,
        "seconds": round(seconds, 1),
        "tokens_per_second": round((tokens - before) / seconds),
        "resumed_from": None if checkpoint is None else checkpoint.name,
        "parameters": count_parameters(trainer.accelerator.unwrap_model(trainer.model)),
        "distributed_type": str(trainer.accelerator.distributed_type.value),
        "holdings": holdings(trainer),
        "evaluation": {k.removeprefix("eval_"): v for k, v in evaluation.items() if isinstance(v, int | float)},
    }
    if trainer.is_world_process_zero():
        write_json(Path(args.output_dir) / SUMMARY_NAME, summary)
        draw_run(args.output_dir)
        if plan is not None:
            print(consumption_table(plan.to_dict(), summary))
        if not write_run_card(args.output_dir):
            print(f"{args.output_dir}/README.md: written or edited by hand, and left as it is")
    if args.push_to_hub:
        _push(trainer)
    trainer.accelerator.wait_for_everyone()
    return summary


def _push(trainer: Trainer) -> None:
    """Push the finished run; one that the Hub refuses is finished all the same."""
    try:
        trainer.push_to_hub()
    except InputError as error:
        folder, name = trainer.args.output_dir, trainer.hub_model_id
        trainer.say(f"{folder}: not pushed: {error}; all is saved, to push again: hmm-datasets push {folder} {name}")


def _stage(trainer: Trainer, base: str | None) -> str:
    """What this stage of training is called."""
    if isinstance(trainer, SFTTrainer):
        return "fine-tuning"
    return "pretraining" if base is None else "midtraining"


def _description(settings: dict[str, Any], plan: Plan | None) -> str | None:
    """What is trained on, in words."""
    if plan is None:
        return settings.get("conversations")
    if plan.data.source is not None:
        return f"sequences of {plan.data.source}"
    return " and ".join(corpus["corpus"] for corpus in plan.data.corpora(plan.rows)) or None


def _start_at(trainer: Trainer, step: int) -> None:
    """Give the trainer the rows from `step` on, in place of skipping those before."""
    rows: Sized = trainer.train_dataset
    trainer.train_dataset = Subset(rows, range(trainer.args.ramp.rows_before(step), len(rows)))
    trainer.args.ignore_data_skip = True


def _budget(args) -> dict[str, float]:
    return {"max_steps": args.max_steps} if args.max_steps > 0 else {"num_train_epochs": args.num_train_epochs}


def _finished(args) -> dict[str, Any] | None:
    """The summary of a run in `output_dir` that spent this budget."""
    path = Path(args.output_dir) / SUMMARY_NAME
    if not args.resume or not path.exists():
        return None
    summary = read_json(path)
    return summary if summary["budget"] == _budget(args) else None


def _checkpoint_to_resume(args) -> Path | None:
    """The newest whole checkpoint with steps left; the Trainer takes one more step where it finds none left."""

    def has_steps_left(folder: Path) -> bool:
        state = read_json(folder / "trainer_state.json")
        return state["global_step"] < (args.max_steps if args.max_steps > 0 else state["max_steps"])

    return newest_good(args.output_dir, has_steps_left)
