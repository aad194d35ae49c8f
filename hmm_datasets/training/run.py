"""A training run from beginning to end: record, resume, train, save, evaluate, account.

Optimizer step `t` trains on rows `[t G, (t + 1) G)`, or, if the global batch grows, on the rows that follow those of
the steps before. A run that continues from step `t` gets the remaining rows as its data set, so resuming at step
1,000,000 takes no longer than resuming at step 10.
"""

from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback
from transformers.utils.logging import disable_progress_bar

from ..compat.torch import wait_for_rank_zero
from ..errors import InputError, RolledBack, suggestion
from ..files import check_digests, check_may_write, read_json, restored, write_digests, write_json, written_together
from ..hmm.names import SAVED_NAME, is_process_name
from ..hub.download import ModelName
from ..report.overview import draw_run
from ..report.plan_tables import consumption_table
from ..runtime import heartbeats
from ..runtime.events import append_event
from ..runtime.lock import exclusive_lock
from ..runtime.process_identity import this_place
from ..runtime.run_identity import check_folder_identity
from ..runtime.run_records import FINISHING_NAME, BaseModel
from ..runtime.stop_requests import parse_time
from .callbacks.interruptions import Interruptions
from .callbacks.log_spaced import LogSpaced
from .callbacks.progress_line import ProgressLine
from .callbacks.samples import Samples
from .checkpoints.archive import archive_newer
from .checkpoints.damaged import check_whole
from .checkpoints.inspection import list_steps, optimizer_checkpoint
from .checkpoints.resuming import Start, find_start, start_problems
from .checkpoints.skipped_rows import rows_identity
from .checkpoints.unfinished import remove_unfinished
from .content import CACHE_NAME, SECTION, weights_digest
from .lineage import base_model, lineage, weights_of
from .parameters import count_parameters
from .plan.plan import Plan
from .precision import describe_precision, types_of_weights
from .record import HISTORY_NAME, History, write_record
from .run_card import write_run_card
from .shard_sizes import shard_sizes
from .trackers import continue_trackers
from .trainer import StepTrainer

SUMMARY_NAME = "summary.json"
PLAN_NAME = "plan.json"
_MADE = ("checkpoint-*", "*.safetensors", SUMMARY_NAME, HISTORY_NAME)  # by which a run is one that has begun


def train_and_save(
    trainer: StepTrainer, *, settings: dict[str, Any], data: dict[str, Any], base: str | None = None
) -> dict[str, Any]:
    """Train to the end of the budget, from the newest whole checkpoint if there is one, and save the model.

    It locks `trainer.args.output_dir` and writes there `run.json`, `plan.json`, `history.jsonl`, `samples.jsonl` if
    there are `sample_prompts`, and `checkpoint-N/`; a process that the settings name as `process:...` is saved in
    `process/`; at the end also the model, its card, `summary.json` and `plots/`.
    With `push_to_hub` all but the checkpoints is then pushed to the Hub. The model is saved before the last
    evaluation, so a failure at the end does not lose it.

    Args:
        trainer ([`~hmm_datasets.training.trainer.StepTrainer`]): a trainer, ready to train. If it has a plan, the
            number of tokens consumed must be exactly the planned one.
        settings (`dict`): the recipe's own settings, for the record.
        data (`dict`): what determines the examples and their order, for the record.
        base (`str`, *optional*): folder or Hub name of the model that training starts from; None for a new model.

    Returns:
        `dict`: the summary: steps, tokens, seconds, parameters, evaluation. If the run was interrupted, only `steps`
        and `interrupted`, the reason; then neither a model nor a summary is saved.

    Raises:
        `RolledBack`: with `on_spike: rollback`, the run went back, or the checkpoint to continue from is damaged and
            was moved aside; the same command continues.
        `InputError`: the folder has another run, or one that is still running; or the tokens consumed are not those
            planned, which is checked before the first step and again after the model is saved.
    """
    folder = trainer.args.output_dir
    with exclusive_lock(folder, nested=True), heartbeats.heartbeat(folder):
        heartbeats.name_device(this_place().device_with_uuid)
        run = Run(trainer, settings, data, base)
        if not run.prepare():
            return run.summary
        run.resume()
        if run.train():
            run.finish()
        return run.summary


class Run:
    """The stages of [`train_and_save`], whose arguments are those of a run, in the order of calling.

    Attributes:
        summary (`dict`): what `train_and_save` returns, once the run has ended.
    """

    def __init__(self, trainer: StepTrainer, settings: dict[str, Any], data: dict[str, Any], base: str | None):
        self.trainer, self.settings, self.base = trainer, settings, None if base is None else base_model(base)
        self.folder, self.args, self.plan = Path(trainer.args.output_dir), trainer.args, trainer.plan
        self.data = data | self._versions()
        if base is not None:
            trainer.content["weights"] = weights_digest(base, self.folder / CACHE_NAME)
        self.identity = {"data": self.data} | ({SECTION: trainer.content} if trainer.content else {})
        self.summary: dict[str, Any] = {}

    def _versions(self) -> dict[str, Any]:
        """What else the loss curve follows from: the commit of the base on the Hub, and the optimizer's weights."""
        versions: dict[str, Any] = {}
        if self.base is not None and self.base.commit is not None:  # it may change while a run is interrupted
            versions["base"] = str(ModelName.parse(self.base.model).at(self.base.commit))
        if self.args.optimizer_from is not None:
            versions["optimizer"] = _optimizer_weights(self.args.optimizer_from, self.base)
        return versions

    def prepare(self) -> bool:
        """Check that the folder is of this run; False if it is finished already."""
        args = self.args
        _check_best_metric(self.trainer)
        check_folder_identity(self.folder, self.identity, args.allow_changed, made=_MADE)
        finished = _finished(args)
        if finished is None:
            return True
        self.summary, is_complete = finished, not (self.folder / FINISHING_NAME).exists()
        self.trainer.accelerator.wait_for_everyone()  # every rank has looked
        what = "nothing to do" if is_complete else "what was left to do then is done now"
        if self.trainer.is_world_process_zero():
            print(f"{args.output_dir}: already finished, at step {finished['steps']}; {what}", flush=True)
        if is_complete:
            self._check_consumption()
        else:
            self._publish()
        return False

    def resume(self) -> None:
        """Find the checkpoint to continue from, move later ones aside, and write the record of the run."""
        trainer, args, plan = self.trainer, self.args, self.plan
        start = find_start(args) if plan is None else plan.start
        _check_same_start(start)
        if start is not None:
            check_whole(trainer, start)
        trainer.begin(self.data, start)
        if plan is not None and start is not None:
            _check_tokens(plan, start, args.allow_changed)
        if start is not None:
            _print_new_type(trainer, start)
            trainer.say(f"{args.output_dir}: continues from {start.folder}")
        rows = rows_identity(trainer.rollbacks)
        trainer.accelerator.wait_for_everyone()  # every rank has looked for its start
        if args.should_save:
            remove_unfinished(self.folder)
            (self.folder / FINISHING_NAME).unlink(missing_ok=True)  # of a smaller budget
            _set_later_aside(trainer, self.folder, start)
        stage = trainer.stage or ("pretraining" if self.base is None else "midtraining")
        origin = asdict(lineage(self.base, stage=stage, data=_description(self.settings, plan)))
        write_record(
            *(args.output_dir, {**self.settings, **args.to_dict()}, self.data, args.allow_changed, origin),
            identity=self.identity | rows,
            weights=types_of_weights(trainer.model),
            made=_MADE,
            template_time=trainer.template_time,
        )
        if args.should_save and plan is not None:
            _save_named_process(self.folder, self.settings, plan)
            write_json(self.folder / PLAN_NAME, plan.to_dict())

    def train(self) -> bool:
        """Train to the end of the budget; False if the run was stopped before, on request, with a checkpoint."""
        trainer, args = self.trainer, self.args
        interruptions = _add_callbacks(trainer)
        continue_trackers(trainer)
        weights = types_of_weights(trainer.model)
        trainer.say(f"{args.output_dir}: {describe_precision(args.mixed_precision, args.precision_origin, weights)}")
        if self.plan is not None:
            trainer.say("\n".join(f"{args.output_dir}: {line}" for line in (str(self.plan), *self.plan.epochs)))
        if args.idle_devices:
            trainer.say(
                f"{args.output_dir}: trains on one of {args.idle_devices + 1} GPUs; --launch ddp takes them all"
            )
        try:
            trainer.train(resume_from_checkpoint=None if trainer.start is None else str(trainer.start.folder))
        except KeyError as error:
            if "metric_for_best_model" not in str(error):
                raise
            raise InputError(error.args[0]) from None
        except RolledBack:  # what the end of training would do for trackers and uploads
            trainer.callback_handler.on_train_end(args, trainer.state, trainer.control)
            trainer.finish_pushes()
            raise
        finally:
            interruptions.close()
        heartbeats.enter("finishing")
        if not interruptions.interrupted:
            return True
        heartbeats.end("stopped", interruptions.reason or "on request")
        trainer.say(
            f"{args.output_dir}: stopped at step {trainer.state.global_step:,} of {trainer.state.max_steps:,}, with a "
            "checkpoint; the same command continues"
        )
        self.summary = {"steps": trainer.state.global_step, "interrupted": interruptions.reason}
        return False

    def finish(self) -> None:
        """Save the model, evaluate it, write the summary, and do what follows from it.

        Whatever was done when a process is killed is done again by the next start: up to the summary, from the newest
        checkpoint on; after it, from the files of the run.
        """
        trainer = self.trainer
        trainer.save_finished()
        evaluation = trainer.evaluate() if trainer.eval_dataset is not None else {}
        summary = self.summary = _summary(trainer, self.plan, evaluation)
        if trainer.is_world_process_zero():
            with written_together(self.folder) as temporary:
                write_json(temporary / SUMMARY_NAME, summary)
                write_digests(temporary, [SUMMARY_NAME], into=self.folder)
                (temporary / FINISHING_NAME).touch()
        if self.args.push_to_hub:
            trainer.hub_pushes.push_trackers()
        self._publish()

    def _publish(self) -> None:
        """Draw, describe and push the finished run, from its files; then compare its tokens with the plan."""
        trainer, args, plan = self.trainer, self.args, self.plan
        if trainer.is_world_process_zero():
            draw_run(args.output_dir, in_terminal=not args.disable_tqdm)
            if plan is not None:
                print(consumption_table(plan.to_dict(), self.summary))
            if not write_run_card(args.output_dir):
                print(f"{args.output_dir}/README.md: written or edited by hand, so it is left as it is")
        with heartbeats.during("working"):  # for as long as it takes
            if args.push_to_hub and trainer.is_world_process_zero():
                _push(trainer)
            wait_for_rank_zero()
        trainer.accelerator.wait_for_everyone()
        if trainer.is_world_process_zero():
            check_may_write()
            (self.folder / FINISHING_NAME).unlink(missing_ok=True)
        self._check_consumption()

    def _check_consumption(self) -> None:
        """Refuse a run that has consumed other tokens than planned; also each time that it is started again."""
        args, summary = self.args, self.summary
        if summary.get("planned_tokens") not in (None, summary["tokens"]):
            raise InputError(
                f"{args.output_dir}: the model is saved, but {summary['steps']:,} steps consumed "
                f"{summary['tokens']:,} tokens, and the plan says {summary['planned_tokens']:,}; do not rely on its "
                "token counts"
            )


def _save_named_process(folder: Path, settings: dict[str, Any], plan: Plan) -> None:
    """Save a process that the settings name, since the name may mean another one in a later version."""
    if plan.data.source is not None and is_process_name(settings.get("hmm") or ""):
        plan.data.source.save_pretrained(folder / SAVED_NAME)


def _set_later_aside(trainer: StepTrainer, folder: Path, start: Start | None) -> None:
    going_on = "the run starts anew" if start is None else f"the run continues from {start.folder}"
    steps = list_steps(folder) if folder.is_dir() and trainer.args.resume else []
    for step in (number for number in steps if start is None or number >= start.step):
        checkpoint = folder / f"checkpoint-{step}"
        if problems := start_problems(checkpoint):
            line = f"{checkpoint} is damaged ({problems[0]}): {going_on}"
            trainer.say(line)
            append_event(trainer.args.output_dir, "torn", line, step=step)
    aside = archive_newer(folder, start)
    if aside is not None:
        moved = ", ".join(aside.names[:3]) + (", ..." if len(aside.names) > 3 else "")
        trainer.say(
            f"{folder}: {moved}: {aside.reason}; moved aside to {aside.folder}, and brought back by: hmm-datasets "
            f"checkpoint restore {folder}"
        )


def _print_new_type(trainer: StepTrainer, start: Start) -> None:
    """Print that weights are kept in another type from here on."""
    path, weights = start.folder / "config.json", types_of_weights(trainer.model)["weights"]
    saved = read_json(path).get("dtype") if path.exists() else None
    if saved is not None and saved != weights and not trainer.is_deepspeed_enabled:
        trainer.say(f"{start.folder}: has weights in {saved}; from here on they and their moments are in {weights}")


def _check_same_start(start: Start | None) -> None:
    """Raise an error if ranks have found different checkpoints to continue from."""
    if not torch.distributed.is_initialized():
        return
    starts: list[str | None] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(starts, None if start is None else str(start.folder))
    other = next((rank for rank, folder in enumerate(starts) if folder != starts[0]), None)
    if other is not None:
        raise InputError(
            f"rank 0 would continue from {starts[0] or 'no checkpoint'}, rank {other} from "
            f"{starts[other] or 'no checkpoint'}; output_dir must be on a disk that all machines share"
        )


def _optimizer_weights(optimizer: str, base: BaseModel | None) -> dict[str, str]:
    """The SHA-256 of the weights that an optimizer state belongs to.

    Raises:
        `InputError`: there is no such state, or it belongs to another model than the run starts from.
    """
    checkpoint = optimizer_checkpoint(optimizer)
    of_optimizer = weights_of(str(checkpoint))
    if base is None or (of_optimizer and base.weights and of_optimizer != base.weights):
        raise InputError(
            f"optimizer_from: {checkpoint}: has other weights than the model that training starts from, "
            f"{'a new one' if base is None else base.model}; name the model's own run, or leave optimizer_from out"
        )
    return of_optimizer


def _check_tokens(plan: Plan, start: Start, accepted: Collection[str]) -> None:
    """Refuse to continue if the rows before `start` do not have the number of tokens that were consumed by then."""
    expected = plan.tokens_at(start.step)
    if start.tokens != expected and not any(name.startswith(("data.", f"{SECTION}.")) for name in accepted):
        raise InputError(
            f"{start.folder}: consumed {start.tokens:,} tokens, but the {plan.schedule.rows_before(start.step):,} "
            f"rows before it now have {expected:,}; the data have changed since: restore them, or choose "
            "another output_dir"
        )


def _add_callbacks(trainer: StepTrainer) -> Interruptions:
    args = trainer.args
    trainer.add_callback(LogSpaced(args.evaluations_per_doubling, args.saves_per_doubling))
    if args.sample_prompts:
        trainer.add_callback(Samples(trainer, trainer.processing_class))
    trainer.add_callback(History(args.output_dir))
    trainer.remove_callback(PrinterCallback)
    # Found by name, since the class for notebooks can be imported only with IPython.
    bars = [shown for shown in trainer.callback_handler.callbacks if type(shown).__name__.endswith("ProgressCallback")]
    for bar in bars:
        trainer.remove_callback(bar)
    if bars:
        trainer.add_callback(ProgressLine())
    disable_progress_bar()
    interruptions = Interruptions(
        trainer, trainer.step_loss, None if args.time_limit is None else parse_time(args.time_limit)
    )
    trainer.add_callback(interruptions)
    return interruptions


def _check_best_metric(trainer: StepTrainer) -> None:
    """Refuse a `metric_for_best_model` that no evaluation will have, where their names are known before."""
    metric, compute = trainer.args.metric_for_best_model, getattr(trainer.compute_metrics, "__self__", None)
    is_known = trainer.args.recipe == "pretrain" and not isinstance(trainer.eval_dataset, dict)
    if metric is None or not is_known or (trainer.compute_metrics and not hasattr(compute, "metric_names")):
        return
    parts = [f"{name}_loss" for name in getattr(trainer.eval_dataset, "names", ())]
    names = ["loss", *parts, *getattr(compute, "metric_names", ())]
    if metric.removeprefix("eval_") not in names:
        raise InputError(
            f"metric_for_best_model is {metric}{suggestion(metric, names)}; evaluations have {', '.join(names)}"
        )


def _summary(trainer: StepTrainer, plan: Plan | None, evaluation: dict[str, Any]) -> dict[str, Any]:
    args, state, start, totals = trainer.args, trainer.state, trainer.start, trainer.totals
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
        "seconds": round(totals.seconds, 1),
        "seconds_to_first_step": totals.seconds_to_first_step,
        "tokens_per_second": round(totals.tokens / totals.seconds) if totals.seconds else 0,
        "resumed_from": None if start is None else start.folder.name,
        "parameters": count_parameters(trainer.accelerator.unwrap_model(trainer.model)),
        "distributed_type": str(trainer.accelerator.distributed_type.value),
        "shard_sizes": shard_sizes(trainer),
        "passed_over": [asdict(rollback) for rollback in trainer.rollbacks],
        "evaluation": {k.removeprefix("eval_"): v for k, v in evaluation.items() if isinstance(v, int | float)},
    }


def _push(trainer: StepTrainer) -> None:
    """Push the finished run; if the Hub refuses, the run still counts as finished."""
    try:
        if trainer.hub_model_id is None:
            trainer.init_hf_repo()
        trainer.hub_pushes.push_run("End of training", True, None, None)
    except InputError as error:
        folder, name = trainer.args.output_dir, trainer.hub_model_id
        trainer.say(f"{folder}: not pushed: {error}; all is saved; push with: hmm-datasets push {folder} {name}")


def _description(settings: dict[str, Any], plan: Plan | None) -> str | None:
    """The training data, in words."""
    named = next((settings[name] for name in ("conversations", "preferences", "prompts") if name in settings), None)
    if plan is None:
        return named
    if plan.data.source is not None:
        return f"sequences of {plan.data.source}"
    return " and ".join(corpus["corpus"] for corpus in plan.data.corpora(plan.rows)) or named


def _budget(args) -> dict[str, float]:
    return {"max_steps": args.max_steps} if args.max_steps > 0 else {"num_train_epochs": args.num_train_epochs}


def _finished(args) -> dict[str, Any] | None:
    """The summary of the run in `output_dir` if it has finished with this budget, else None."""
    path = Path(args.output_dir) / SUMMARY_NAME
    if not args.resume or not path.exists():
        return None
    restored(args.output_dir)
    check_digests(args.output_dir, f"delete {path}, and the same command writes it anew", [SUMMARY_NAME])
    summary = read_json(path)
    return summary if summary["budget"] == _budget(args) else None
