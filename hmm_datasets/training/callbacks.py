"""Continuations of chosen prompts during training, generated at every evaluation.

They are written to `samples.jsonl`, one row per prompt, and shown above the progress bar. Training is not affected:
the state of the random numbers and the mode of the model are restored. If every rank has the whole model, only rank 0
generates, and the others wait for it at their next collective. Under ZeRO-3 and FSDP2 all ranks take part, since each
has a part of the weights. A prompt costs `sample_tokens` forward passes of one row.

Evaluations at steps that are evenly spaced on a logarithmic axis.

Stopping a run by signal, by file or by a time limit, with a checkpoint of the step just done.

`hmm_datasets.runtime.stop_requests` lists what asks for it. Before a time limit a run stops early enough that the
checkpoint is written in time. A signal reaches ranks at different steps, so in each step the ranks agree on the
maximum of their requests, which are gathered together with their losses.

If another process or machine dies without notice, no rank waits for it longer than `ddp_timeout`.

A profile of some steps: which operations take the time, as a table, and as a trace to open in a browser.

Three steps are left out first, which compile, allocate and fill caches. On every rank torch's profiler then records
`profile_steps` steps, and each writes `profile/rank-N.json.gz`, a trace for https://ui.perfetto.dev or
`chrome://tracing`. Rank 0 also writes `profile/operations.txt`, the operations by their own time, and shows its first
lines. Recording slows the steps down, so their times in the log are not those of training.

The Trainer's progress bar, with one short line per log step instead of a dictionary.
"""

import math
import re
import shutil
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch
from transformers import ProgressCallback, TrainerCallback
from transformers.integrations import is_deepspeed_zero3_enabled
from trl import DPOConfig, GRPOConfig, SFTConfig

from ..compat.torch import set_timeout_of_all_groups
from ..compat.transformers_caches import generate
from ..display import format_date
from ..errors import InputError
from ..files import append_jsonl, atomic_file
from ..runtime.stop_requests import NOTHING, STOP, StopRequests
from ..text.tokenizers.chat_encoding import encode_conversation
from .record import forget_after

FOLDER_NAME = "profile"
_LEFT_OUT = 3
_ROWS, _SHOWN = 60, 12
_COLUMNS = (
    ("loss", "loss {:.4f}"),
    ("reward", "reward {:.4f}"),
    ("eval_loss", "held out {:.4f}"),
    ("eval_reward", "held out: reward {:.4f}"),
    ("eval_bayes_gap", "above the Bayes floor {:.4f}"),
    ("grad_norm", "gradient {:.3g}"),
    ("learning_rate", "lr {:.3g}"),
    ("tokens_per_second", "{:,.0f} tokens/s"),
    ("mfu", "MFU {:.1%}"),
    ("cost", "cost {:.2f}"),
    ("fraction", "{:.1%} done"),
)
SAMPLES_NAME = "samples.jsonl"


class LogSpacedEvaluation(TrainerCallback):
    """Requests an evaluation at step 1 and `per_doubling` times while the step doubles.

    Args:
        per_doubling (`int`): evaluations from step `n` to `2 n`.
    """

    def __init__(self, per_doubling: int):
        self.per_doubling = per_doubling

    def on_step_end(self, args, state, control, **kwargs):
        """Request an evaluation if this step is due."""
        if is_due(state.global_step, self.per_doubling):
            control.should_evaluate = True


def is_due(step: int, per_doubling: int) -> bool:
    """Whether an evaluation falls on `step`.

    ```python
    >>> [step for step in range(1, 40) if is_due(step, 2)]
    [1, 2, 3, 4, 6, 8, 12, 16, 23, 32]

    ```
    """
    return step == 1 or _evaluations_until(step, per_doubling) > _evaluations_until(step - 1, per_doubling)


def _evaluations_until(step: int, per_doubling: int) -> int:
    # The small addend keeps rounding from pushing the logarithm of a power of two below an integer.
    return math.floor(per_doubling * math.log2(step) + 1e-9)


class Interruptions(TrainerCallback):
    """Saves, or saves and stops, on request.

    Args:
        trainer ([`~hmm_datasets.training.trainer.StepTrainer`]): the trainer of the run.
        time_limit (`timedelta`, *optional*): time limit of the job, counted from the creation of this callback.

    Attributes:
        interrupted (`bool`): whether it has stopped the run.
        reason (`str`, *optional*): what asked for it, on whatever rank.
    """

    def __init__(self, trainer, time_limit: timedelta | None = None):
        self.trainer = trainer
        self.interrupted = False
        self.reason: str | None = None
        self._requests = StopRequests(trainer.args.output_dir, time_limit)
        self._longest_save = self._longest_step = 0.0
        self._step_ended: float | None = None

    def on_train_begin(self, args, state, control, **kwargs):
        """Listen for requests, and bound the time to wait for other ranks."""
        if args.world_size > 1:  # the Trainer sets the timeout of the first group alone, and not those of DeepSpeed
            set_timeout_of_all_groups(timedelta(seconds=args.ddp_timeout))
            self.trainer.step_loss.request = self._look
        self._requests.__enter__()

    def on_train_end(self, args, state, control, **kwargs):
        """Stop listening."""
        self.close()

    def close(self) -> None:
        """Stop listening, also after an error, of which the Trainer tells no callback.

        A handler left behind would keep this process, and the worker processes that it forks later, from ending on
        SIGTERM, and a `multiprocessing.Pool` waits for them without end.
        """
        self._requests.__exit__()

    def on_step_end(self, args, state, control, **kwargs):
        """Pass a request, on which the ranks have agreed, to the Trainer."""
        now = time.monotonic()
        if self._step_ended is not None:
            self._longest_step = max(self._longest_step, now - self._step_ended)
        wanted = self.trainer.step_loss.requested if args.world_size > 1 else self._look()
        self._step_ended = now
        if wanted == NOTHING:
            return
        self.reason = self._reason()
        self._requests.forget(wanted)
        control.should_save = True
        if wanted == STOP and state.global_step < state.max_steps:
            control.should_training_stop = self.interrupted = self.trainer.is_interrupted = True
        what = "saving and stopping" if self.interrupted else "saving"
        self.trainer.say(f"step {state.global_step:,}: {what} ({self.reason})")

    def on_save(self, args, state, control, **kwargs):
        """Measure how long saving takes, for the time limit."""
        if self._step_ended is not None:
            self._longest_save = max(self._longest_save, time.monotonic() - self._step_ended)
            self._step_ended = None

    def _reason(self) -> str | None:
        """What was asked for, on the first rank that was asked; a collective."""
        reasons = [self._requests.reason]
        if self.trainer.args.world_size > 1:
            reasons *= self.trainer.args.world_size
            torch.distributed.all_gather_object(reasons, self._requests.reason)
        return next(filter(None, reasons), None)

    def _look(self) -> int:
        """What is asked for on this rank."""
        needed = 2 * self._longest_save + 2 * self._longest_step
        return self._requests.look(needed=needed, main=self.trainer.is_world_process_zero())


class Profile(TrainerCallback):
    """Profiles the steps after the third one of this start.

    Args:
        trainer ([`~hmm_datasets.training.trainer.StepTrainer`]): the trainer.
    """

    def __init__(self, trainer):
        self.trainer = trainer
        self.folder = Path(trainer.args.output_dir) / FOLDER_NAME
        self._profiler: torch.profiler.profile | None = None
        self._left = _LEFT_OUT

    def on_step_end(self, args, state, control, **kwargs):
        """Start after the third step, and write once enough steps are recorded."""
        self._left -= 1
        if self._left == 0:
            self._start()
        elif self._profiler is not None and self._left == -args.profile_steps:
            self._finish(state.global_step - args.profile_steps + 1, state.global_step)

    def on_train_end(self, args, state, control, **kwargs):
        """Write what there is, if the run ends while it is recorded."""
        if self._profiler is not None and self._left < 0:
            self._finish(state.global_step + self._left + 1, state.global_step)

    def _start(self) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self.trainer.args.device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._profiler = torch.profiler.profile(activities=activities, acc_events=True)
        self._profiler.start()

    def _finish(self, first: int, last: int) -> None:
        profiler, self._profiler = self._profiler, None
        profiler.stop()
        trace = self.folder / f"rank-{self.trainer.args.process_index}.json.gz"
        with tempfile.TemporaryDirectory() as folder, atomic_file(trace) as temporary:
            compressed = Path(folder, trace.name)  # the profiler compresses if the name ends so
            profiler.export_chrome_trace(str(compressed))
            shutil.copyfile(compressed, temporary)
        if self.trainer.args.process_index != 0:
            return
        by = "self_cuda_time_total" if self.trainer.args.device.type == "cuda" else "self_cpu_time_total"
        table = profiler.key_averages().table(sort_by=by, row_limit=_ROWS, max_name_column_width=48)
        text = f"Steps {first:,} to {last:,} on rank 0, recording included.\n{table}\n"
        with atomic_file(self.folder / "operations.txt") as temporary:
            temporary.write_text(text, encoding="utf-8")
        self.trainer.say("\n".join(text.splitlines()[: _SHOWN + 4]))
        self.trainer.say(f"{self.folder}/: operations.txt, and a trace of each rank for https://ui.perfetto.dev")


class ProgressLine(ProgressCallback):
    """A progress bar, and per log step a line with losses or rewards, gradient norm, throughput and end date."""

    def on_prediction_step(self, args, state, control, eval_dataloader=None, **kwargs):
        """Show no bar for an evaluation, which is short; a second bar would hide the first."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Write the line above the bar, on rank 0."""
        if self.training_bar is None or not logs:
            return
        values = {name: float(value) for name, value in logs.items() if isinstance(value, int | float)}
        if "eval_reward" in values:
            values.pop("eval_loss", None)  # which says nothing: the advantages of a group of answers add up to zero
        parts = [form.format(values[name]) for name, form in _COLUMNS if name in values]
        rewards = {name: value for name, value in values.items() if re.fullmatch(r"(eval_)?rewards/.+/mean", name)}
        if len(rewards) > 1:
            parts += [f"{name.split('/')[1]} {value:.4f}" for name, value in rewards.items()]
        if "seconds_left" in values:
            parts.append(f"ends {format_date(time.time() + values['seconds_left'])}")
        if values.keys() & {"loss", "eval_loss", "eval_reward"}:
            line = f"step {state.global_step:>6,}  {state.num_input_tokens_seen:>13,} tokens  {'  '.join(parts)}"
            self.training_bar.write(line)


def check_samples(prompts: list[str], tokens: int, temperature: float) -> None:
    """Check the settings of [`Samples`].

    Raises:
        `InputError`: an empty prompt, no tokens, or a temperature below zero.
    """
    if not all(prompts):
        raise InputError(f"sample_prompts: prompt {prompts.index('') + 1} is empty; write some words there")
    if tokens < 1:
        raise InputError(f"sample_tokens is {tokens}; expected 1 or more")
    if not temperature >= 0:
        raise InputError(f"sample_temperature is {temperature}; expected 0 (greedy) or more")


class Samples(TrainerCallback):
    """Continues the prompts of the settings (`sample_prompts`, `sample_tokens`, `sample_temperature`).

    A trainer for conversations gives them to the model as a user's messages.

    Args:
        trainer ([`~hmm_datasets.training.trainer.StepTrainer`]): the trainer, with a tokenizer.

    Raises:
        `InputError`: it has no tokenizer.
    """

    def __init__(self, trainer):
        if trainer.processing_class is None:
            raise InputError(
                "sample_prompts is set, but there is no tokenizer to read them; leave it out, or give the trainer a "
                "tokenizer as processing_class"
            )
        self.trainer = trainer
        self.path = Path(trainer.args.output_dir) / SAMPLES_NAME
        self._done_at: int | None = None

    def on_train_begin(self, args, state, control, **kwargs):
        """Drop the rows after the checkpoint that the run continues from."""
        if state.is_world_process_zero:
            forget_after(self.path, state.global_step)

    def on_evaluate(self, args, state, control, **kwargs):
        """Continue every prompt, once per step even if several data sets are evaluated."""
        if self._done_at == state.global_step:
            return
        self._done_at = state.global_step
        is_sharded = self.trainer.is_fsdp_enabled or is_deepspeed_zero3_enabled()
        if not (state.is_world_process_zero or is_sharded):
            return
        for prompt, text in zip(args.sample_prompts, self._write(args), strict=True):
            if not state.is_world_process_zero:
                continue
            row = {"step": state.global_step, "tokens": state.num_input_tokens_seen, "time": time.time()}
            append_jsonl(self.path, row | {"prompt": prompt, "text": text})
            self.trainer.say(f"step {state.global_step:>6,}  {prompt!r} -> {text!r}")

    def _write(self, args) -> list[str]:
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        was_training = model.training
        model.eval()
        devices = [args.device] if args.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(args.seed)  # all ranks of a sharded model must draw the same tokens
            texts = [self._continue(model, prompt, args) for prompt in args.sample_prompts]
        model.train(was_training)
        return texts

    def _continue(self, model, prompt: str, args) -> str:
        tokenizer = self.trainer.processing_class
        if isinstance(args, SFTConfig | DPOConfig | GRPOConfig) and tokenizer.chat_template is not None:
            question = [{"role": "user", "content": prompt}]
            asked = encode_conversation(tokenizer, question, add_generation_prompt=True)
        else:
            asked = tokenizer(prompt, split_special_tokens=True)["input_ids"]
        tokens = torch.tensor([asked], device=args.device)
        sampling = {"do_sample": args.sample_temperature > 0}
        if sampling["do_sample"]:
            sampling["temperature"] = args.sample_temperature
        output = generate(
            model,
            input_ids=tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=args.sample_tokens,
            pad_token_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id,
            **sampling,
        )
        return tokenizer.decode(output[0, len(asked) :], skip_special_tokens=True)
