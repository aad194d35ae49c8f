"""A training run from its first line to its last: record, resume, train, evaluate, save, account.

Optimizer step `t` trains on rows `[t G, (t + 1) G)`, or where the global batch grows, on those after the rows of the
steps before. A run that goes on from step `t` is given the rows from there on as a data set of their own, so that
resuming at step 1,000,000 costs what resuming at step 10 does.
"""

import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from transformers import PrinterCallback
from transformers.utils.logging import disable_progress_bar
from trl import SFTTrainer

from ..errors import InputError
from ..exclusive_lock import exclusive_lock
from ..files import read_json, remove, write_json
from ..hub.run_cards import write_run_card
from ..identity import check_folder_identity
from ..report.forecast_table import consumption_table
from ..report.overview import draw_run
from .callbacks.evaluation_schedule import LogSpacedEvaluation
from .callbacks.interruptions import Interruptions, parse_time
from .callbacks.progress import ProgressLine
from .callbacks.samples import Samples
from .checkpoints.resuming import Start, find_start
from .checkpoints.saving import UNFINISHED_NAME
from .lineage import lineage
from .models import count_parameters
from .plan.plan import Plan
from .record import History, write_record
from .sharding import shard_sizes
from .trainer import StepTrainer

SUMMARY_NAME = "summary.json"
PLAN_NAME = "plan.json"


def train_and_save(
    trainer: StepTrainer,
    *,
    settings: dict[str, Any],
    data: dict[str, Any],
    base: str | None = None,
) -> dict[str, Any]:
    """Train to the end of the budget, from the newest whole checkpoint if there is one, and save the model.

    Writes to `trainer.args.output_dir`, which it locks: `run.json`, `plan.json`, `history.jsonl`, where asked
    `samples.jsonl`, `checkpoint-N/`, and at the end the model, its card, `summary.json` and `plots/`; with
    `push_to_hub` all but the checkpoints then goes to the Hub. Files of the model appear whole, and before the last
    evaluation, so that nothing that fails at the end costs the model.

    Args:
        trainer ([`~hmm_datasets.training.trainer.StepTrainer`]): ready to train. If it has a plan, what it
            consumed is checked against that, to the token.
        settings (`dict`): the recipe's own settings, for the record.
        data (`dict`): what fixes the examples and their order, for the record.
        base (`str`, *optional*): folder or Hub name of the model that training starts from; None for a new model.

    Returns:
        `dict`: the summary: steps, tokens, seconds, parameters, evaluation. Of a run that was told to stop, how far it
        came: there is no model yet, and no summary.

    Raises:
        `InputError`: the folder holds another run, or one that is still going; or the tokens consumed are not those
            planned, which is found before the first step, or else after the model is saved.
    """
    with exclusive_lock(trainer.args.output_dir, nested=True):
        return _train_and_save(trainer, settings, data, base)


def _train_and_save(
    trainer: StepTrainer, settings: dict[str, Any], data: dict[str, Any], base: str | None
) -> dict[str, Any]:
    args, plan = trainer.args, trainer.plan
    check_folder_identity(Path(args.output_dir), {"data": data}, args.accept_changes)
    finished = _finished(args)
    if finished is not None:
        if trainer.is_world_process_zero():
            print(f"{args.output_dir}: finished before, at step {finished['steps']}; nothing to do")
        return finished
    start = find_start(args) if plan is None else plan.start
    if args.should_save:
        remove(Path(args.output_dir) / UNFINISHED_NAME)  # of a run that was killed
    trainer.begin(data, start)
    if plan is not None and start is not None:
        _check_tokens(plan, start, args.accept_changes)
    origin = lineage(base, stage=_stage(trainer, base), data=_description(settings, plan))
    write_record(args.output_dir, {**settings, **args.to_dict()}, data, args.accept_changes, origin)
    interruptions = _add_callbacks(trainer)
    if plan is not None:
        trainer.say(f"{args.output_dir}: {plan}")
        if trainer.is_world_process_zero():
            write_json(Path(args.output_dir) / PLAN_NAME, plan.to_dict())
    began = time.time()
    trainer.train(resume_from_checkpoint=None if start is None else str(start.folder))
    seconds = time.time() - began
    if interruptions.interrupted:
        trainer.say(
            f"{args.output_dir}: stopped at step {trainer.state.global_step:,} of {trainer.state.max_steps:,}, with a "
            "checkpoint; the same command goes on"
        )
        return {"steps": trainer.state.global_step, "interrupted": interruptions.reason}
    trainer.save_finished()
    evaluation = trainer.evaluate() if trainer.eval_dataset is not None else {}
    summary = _summary(trainer, plan, seconds, evaluation)
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
    if plan is not None and summary["tokens"] != summary["planned_tokens"]:
        raise InputError(
            f"{args.output_dir}: the model is saved, but {summary['steps']:,} steps consumed {summary['tokens']:,} "
            f"tokens, and the plan says {summary['planned_tokens']:,}; its counts of tokens are not to be relied on"
        )
    return summary


def _check_tokens(plan: Plan, start: Start, accepted: Collection[str]) -> None:
    """Refuse to go on where the rows before `start` do not hold the tokens that were consumed by then."""
    expected = plan.tokens_at(start.step)
    if start.tokens != expected and not any(name.startswith("data.") for name in accepted):
        raise InputError(
            f"{start.folder}: consumed {start.tokens:,} tokens, but the {plan.ramp.rows_before(start.step):,} rows "
            f"before hold {expected:,} now; the data are not those it was trained on: give it these, or choose "
            "another output_dir"
        )


def _add_callbacks(trainer: StepTrainer) -> Interruptions:
    args = trainer.args
    if args.evaluations_per_doubling > 0:
        trainer.add_callback(LogSpacedEvaluation(args.evaluations_per_doubling))
    if args.sample_prompts:
        trainer.add_callback(Samples(trainer))
    trainer.add_callback(History(args.output_dir))
    trainer.remove_callback(PrinterCallback)
    # The Trainer's own, which in a notebook is of another class that needs IPython to be imported.
    bars = [one for one in trainer.callback_handler.callbacks if type(one).__name__.endswith("ProgressCallback")]
    for bar in bars:
        trainer.remove_callback(bar)
    if bars:
        trainer.add_callback(ProgressLine())
    disable_progress_bar()
    interruptions = Interruptions(trainer, None if args.time_limit is None else parse_time(args.time_limit))
    trainer.add_callback(interruptions)
    return interruptions


def _summary(trainer: StepTrainer, plan: Plan | None, seconds: float, evaluation: dict[str, Any]) -> dict[str, Any]:
    args, state, start = trainer.args, trainer.state, trainer.start
    before = 0 if start is None else start.tokens
    planned = None
    if plan is not None:
        first_step = 0 if start is None else start.step
        planned = before + plan.tokens_at(state.global_step) - plan.tokens_at(first_step)
    return {
        "steps": state.global_step,
        "budget": _budget(args),
        "tokens": state.num_input_tokens_seen,
        "planned_tokens": planned,
        "flops": state.total_flos,
        "global_batch_size": args.global_batch_size,
        "world_size": args.world_size,
        "learning_rate": args.learning_rate,
        "seconds": round(seconds, 1),
        "tokens_per_second": round((state.num_input_tokens_seen - before) / seconds),
        "resumed_from": None if start is None else start.folder.name,
        "parameters": count_parameters(trainer.accelerator.unwrap_model(trainer.model)),
        "distributed_type": str(trainer.accelerator.distributed_type.value),
        "shard_sizes": shard_sizes(trainer),
        "evaluation": {k.removeprefix("eval_"): v for k, v in evaluation.items() if isinstance(v, int | float)},
    }


def _push(trainer: StepTrainer) -> None:
    """Push the finished run; one that the Hub refuses is finished all the same."""
    try:
        trainer.push_to_hub()
    except InputError as error:
        folder, name = trainer.args.output_dir, trainer.hub_model_id
        trainer.say(f"{folder}: not pushed: {error}; all is saved, to push again: hmm-datasets push {folder} {name}")


def _stage(trainer: StepTrainer, base: str | None) -> str:
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
    return " and ".join(corpus["corpus"] for corpus in plan.data.corpora(plan.rows)) or settings.get("conversations")


def _budget(args) -> dict[str, float]:
    return {"max_steps": args.max_steps} if args.max_steps > 0 else {"num_train_epochs": args.num_train_epochs}


def _finished(args) -> dict[str, Any] | None:
    """The summary of a run in `output_dir` that spent this budget."""
    path = Path(args.output_dir) / SUMMARY_NAME
    if not args.resume or not path.exists():
        return None
    summary = read_json(path)
    return summary if summary["budget"] == _budget(args) else None
