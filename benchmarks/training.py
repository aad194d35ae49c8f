"""Training: a step of the recipe beside a bare torch loop and the plain Trainer, waiting for data, resuming, GPUs.

    python benchmarks/training.py [--part step options data loader resume gpu] [--model 3m] [--length 128] [--batch 32]
                                  [--rounds 5]

Prints machine, versions, then a table a part. A step is timed in short runs that take turns, all of one process: the
recipe's trainer as `recipes/pretrain.py` sets it up, on a stream of an HMM; a loop of torch alone, and the Trainer on
a list, which have the same rows in memory. Model, optimizer (fused AdamW), clipping, schedule and batch are the same.
What is reported is the median step of a run, and the median, least and most of the rounds. Run it on a quiet machine.
"""

import argparse
import contextlib
import gc
import io
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from machine import CORES, print_heading
from torch.utils.data import DataLoader, IterableDataset, Subset
from transformers import LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments, default_data_collator
from transformers import get_scheduler as make_schedule

from hmm_datasets import HMMSequences
from hmm_datasets.data.windows import TokenWindows
from hmm_datasets.files import DIGESTS_NAME, read_json, read_jsonl, write_digests, write_json
from hmm_datasets.hmm import processes
from hmm_datasets.report.tables import text_table
from hmm_datasets.text.stream import TokenStream, write_tokens
from hmm_datasets.training.model_configs import model_config
from hmm_datasets.training.run import train_and_save
from hmm_datasets.training.settings import PretrainSettings
from hmm_datasets.training.trainer import Pretrainer

PACKAGES = ("torch", "transformers", "accelerate", "numba", "numpy")
STATES, SYMBOLS = 500, 1000
STEPS, WARM = 13, 3
LOADED_TOKENS = 10_000_000
FAR, SKIPPED = 1_000_000, 10_000


def main() -> None:
    """Time what was asked for; print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = {"step": step, "options": options, "data": data, "loader": loader, "resume": resume, "gpu": gpu}
    parser.add_argument("--part", nargs="*", choices=parts, default=list(parts))
    parser.add_argument("--model", default="3m", help="preset for the parts without a GPU, default 3m")
    parser.add_argument("--length", type=int, default=128, help="tokens per row, default 128")
    parser.add_argument("--batch", type=int, default=32, help="rows per step, default 32")
    parser.add_argument("--rounds", type=int, default=5, help="how often the runs take turns, default 5")
    parser.add_argument("--option_steps", type=int, default=100, help="steps per run of the options, default 100")
    settings = parser.parse_args()
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # else DeepSpeed warns that it found no GPU
    print_heading(PACKAGES)
    with tempfile.TemporaryDirectory() as folder:
        settings.folder = Path(folder)
        for part in settings.part:
            parts[part](settings)


class Clock(TrainerCallback):
    """When each step ended, by the clock; on a GPU once its work is done."""

    def __init__(self):
        self.times: list[float] = []

    def on_step_end(self, args, state, control, **kwargs):
        """Look at the clock."""
        if args.device.type == "cuda":
            torch.cuda.synchronize()
        self.times.append(time.perf_counter())

    def seconds(self) -> list[float]:
        """Of every step but the first ones."""
        return np.diff(self.times)[WARM - 1 :].tolist()


def step(settings: argparse.Namespace) -> None:
    """Seconds per step: the recipe, torch alone, the plain Trainer on a list."""
    rows = hmm_rows(settings.length)
    ways = {
        "torch alone, rows in a list": _bare,
        "hmm-datasets, the recipe's trainer on a stream": _recipe,
        "Trainer, rows in a list": _plain,
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    order = list(ways)
    for number in range(settings.rounds):
        for name in order[number % 3 :] + order[: number % 3]:
            found[name].append(statistics.median(ways[name](settings, rows)))
    base = found["torch alone, rows in a list"]
    table = []
    for name, seconds in found.items():
        ratios = [ours / bare for ours, bare in zip(seconds, base, strict=True)]
        cells = [f"{statistics.median(seconds) * 1e3:.1f}", f"{min(seconds) * 1e3:.1f} to {max(seconds) * 1e3:.1f}"]
        table.append([name, *cells, f"{statistics.median(ratios):.3f}", f"{min(ratios):.3f} to {max(ratios):.3f}"])
    tokens = settings.batch * settings.length
    print(f"\nA step: {settings.model} model, {tokens:,} tokens, {settings.rounds} rounds of {STEPS - WARM} steps\n")
    print(text_table(["trained by", "ms, median", "of the rounds", "of torch alone", "of the rounds"], table))


def hmm_rows(length: int) -> HMMSequences:
    """Rows of `length` tokens, the beginning among them, from an HMM of 500 states and 1,000 symbols."""
    return HMMSequences(processes.random(STATES, SYMBOLS, alpha=0.1, seed=1), length - 1).by_index()


def _model(settings: argparse.Namespace, vocab_size: int, length: int | None = None, name: str | None = None):
    torch.manual_seed(0)
    return LlamaForCausalLM(
        model_config(name or settings.model, vocab_size=vocab_size, max_length=length or settings.length)
    )


def _recipe(settings: argparse.Namespace, rows: Any) -> list[float]:
    clock = Clock()
    _train(settings, rows, settings.folder / "recipe", clock, max_steps=STEPS)
    shutil.rmtree(settings.folder / "recipe")
    return clock.seconds()


def _train(
    settings: argparse.Namespace, rows: Any, folder: Path, *callbacks: TrainerCallback, model=None, **changes: Any
) -> None:
    """What `recipes/pretrain.py` does, without held-out rows."""
    batch = changes.pop("batch", settings.batch)
    args = PretrainSettings(
        str(folder),
        global_batch_size=batch,
        per_device_train_batch_size=batch,
        **{"save_steps": 10**9, "report_to": "none", "bf16": False} | changes,
    )
    model = model or _model(settings, rows.vocab_size)
    trainer = Pretrainer(model=model, args=args, train_dataset=rows, data_collator=default_data_collator)
    for callback in callbacks:
        trainer.add_callback(callback)
    with _quietly():
        train_and_save(trainer, settings={}, data={})


@contextlib.contextmanager
def _quietly():
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def _list(settings: argparse.Namespace, rows: Any, steps: int) -> list[dict[str, torch.Tensor]]:
    return rows.__getitems__(range(steps * settings.batch))


def _bare(settings: argparse.Namespace, rows: Any) -> list[float]:
    model, clock = _model(settings, rows.vocab_size), Clock()
    args = _arguments(settings)
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": args.weight_decay}, {"params": others, "weight_decay": 0.0}]
    betas = (args.adam_beta1, args.adam_beta2)
    optimizer = torch.optim.AdamW(groups, lr=args.learning_rate, betas=betas, fused=True)
    schedule = make_schedule(
        args.lr_scheduler_type, optimizer, args.get_warmup_steps(STEPS), STEPS, args.lr_scheduler_kwargs
    )
    model.to(args.device).train()
    for batch in DataLoader(_list(settings, rows, STEPS), settings.batch, collate_fn=default_data_collator):
        loss = model(**{name: column.to(args.device) for name, column in batch.items()}, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        clock.on_step_end(args, None, None)
    return clock.seconds()


def _arguments(settings: argparse.Namespace, **changes: Any) -> TrainingArguments:
    """The plain Trainer's, with what the recipe's settings have as defaults."""
    same = ("lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "learning_rate", "weight_decay", "adam_beta2")
    ours = PretrainSettings("unused", max_steps=1, global_batch_size=1, per_device_train_batch_size=1)
    return TrainingArguments(
        str(settings.folder / "plain"),
        per_device_train_batch_size=settings.batch,
        use_cpu=ours.use_cpu,
        dataloader_pin_memory=ours.dataloader_pin_memory,
        disable_tqdm=True,
        report_to="none",
        **{name: getattr(ours, name) for name in same} | {"max_steps": STEPS, "save_steps": 10**9} | changes,
    )


def _plain(settings: argparse.Namespace, rows: Any) -> list[float]:
    clock = Clock()
    trainer = Trainer(
        model=_model(settings, rows.vocab_size),
        args=_arguments(settings),
        train_dataset=_list(settings, rows, STEPS),
        data_collator=default_data_collator,
        callbacks=[clock],
    )
    with _quietly():
        trainer.train()
    shutil.rmtree(settings.folder / "plain", ignore_errors=True)
    return clock.seconds()


OPTIONS = {
    "as the recipe sets it up": {},
    "optim: adamw_torch, not fused": {"optim": "adamw_torch"},
    "torch_compile: true": {"torch_compile": True},
}


def options(settings: argparse.Namespace) -> None:
    """Median and slowest step with and without what is to make steps faster or more even."""
    rows, folder = hmm_rows(settings.length), settings.folder / "options"
    found: dict[str, list[list[float]]] = {name: [] for name in OPTIONS}
    garbage: dict[str, list[float]] = {name: [] for name in OPTIONS}
    order = list(OPTIONS)
    for number in range(settings.rounds):
        for name in order[number % len(order) :] + order[: number % len(order)]:
            clock, collected = Clock(), Collections()
            with mock.patch.dict(os.environ):  # in which torch_compile leaves a variable
                _train(settings, rows, folder, clock, collected, max_steps=settings.option_steps, **OPTIONS[name])
            shutil.rmtree(folder)
            found[name].append(clock.seconds())
            garbage[name].append(collected.seconds / sum(clock.seconds()))
    base = [statistics.median(seconds) for seconds in found[order[0]]]
    table = []
    for name, runs in found.items():
        ratios = [statistics.median(seconds) / bare for seconds, bare in zip(runs, base, strict=True)]
        figures = [statistics.median(map(measure, runs)) * 1e3 for measure in (statistics.median, _late, max)]
        ratio = f"{statistics.median(ratios):.3f}", f"{min(ratios):.3f} to {max(ratios):.3f}"
        table.append([name, *(f"{value:.1f}" for value in figures), f"{max(garbage[name]):.3%}", *ratio])
    print(f"\nOptions: {settings.model} model, {settings.rounds} rounds of {settings.option_steps - WARM} steps\n")
    print(
        text_table(["run", "ms, median", "99 %", "slowest", "collecting", "of the first row", "of the rounds"], table)
    )


def _late(seconds: Sequence[float]) -> float:
    return float(np.quantile(seconds, 0.99))


class Collections(TrainerCallback):
    """Adds up the time of garbage collections within the steps that the clock counts."""

    def __init__(self):
        self.seconds, self._began, self._counts = 0.0, 0.0, False

    def _look(self, phase: str, details: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
        elif self._counts:
            self.seconds += time.perf_counter() - self._began

    def on_step_end(self, args, state, control, **kwargs):
        """Begin after the first steps, end with the last."""
        if state.global_step == WARM:
            gc.callbacks.append(self._look)
        self._counts = WARM <= state.global_step < state.max_steps
        if state.global_step == state.max_steps:
            gc.callbacks.remove(self._look)


def loader(settings: argparse.Namespace) -> None:
    """Tokens per second that reach the training loop, as batches, when nothing is trained."""
    table = []
    for name, rows in (("HMM stream", hmm_rows(settings.length)), ("token windows", token_rows(settings))):
        for workers in (0, 2):
            count = LOADED_TOKENS // settings.length
            batches = DataLoader(
                Subset(rows, range(count)), settings.batch, num_workers=workers, collate_fn=default_data_collator
            )
            began, tokens = 0.0, 0
            for number, batch in enumerate(batches):
                if number == 20:  # workers have started, and code is compiled
                    began = time.perf_counter()
                elif number > 20:
                    tokens += batch["input_ids"].numel()
            table.append([name, str(workers), f"{tokens / (time.perf_counter() - began) / 1e6:.1f}"])
    print(f"\nLoading: batches of {settings.batch} rows of {settings.length} tokens\n")
    print(text_table(["rows", "workers", "million tokens/s"], table))


def data(settings: argparse.Namespace) -> None:
    """The share of a step that waits for rows, as the run itself accounts for it."""
    table = []
    for name, rows in (("HMM stream", hmm_rows(settings.length)), ("token windows", token_rows(settings))):
        folder = settings.folder / "data"
        _train(settings, rows, folder, max_steps=STEPS, logging_steps=1)
        history = [row for row in read_jsonl(folder / "history.jsonl") if "step_seconds" in row][WARM:]
        shutil.rmtree(folder)
        table.append([name, *_shares(history)])
    print(f"\nWaiting for data: {settings.model} model, {settings.batch} rows of {settings.length} tokens per step\n")
    print(text_table(["rows", "step, ms", "waiting, ms", "share, median", "at most"], table))


def _shares(history: list[dict[str, float]]) -> list[str]:
    shares = [row["data_seconds"] / row["step_seconds"] for row in history]
    middle = (statistics.median(row[name] for row in history) * 1e3 for name in ("step_seconds", "data_seconds"))
    return [*(f"{value:.2f}" for value in middle), f"{statistics.median(shares):.2%}", f"{max(shares):.2%}"]


def token_rows(settings: argparse.Namespace) -> TokenWindows:
    """Shuffled windows of ten million random tokens on disk."""
    folder = settings.folder / "tokens"
    if not folder.exists():
        numbers = np.random.default_rng(0).integers(0, SYMBOLS - 1, 10_000_000, dtype=np.int64)
        end = {"eos_id": SYMBOLS - 1, "tokenizer_hash": "none"}
        write_tokens([numbers], folder, vocab_size=SYMBOLS, corpus="numbers", **end)
    windows = TokenWindows(TokenStream(folder), settings.length, seed=0)
    windows.vocab_size = SYMBOLS
    return windows


def resume(settings: argparse.Namespace) -> None:
    """Seconds from the start of a resumed run to the end of its first step, by the step it continues from."""
    rows, folder = hmm_rows(settings.length), settings.folder / "resumed"
    _train(settings, rows, folder, max_steps=10, save_steps=10)
    shutil.copytree(folder / "checkpoint-10", settings.folder / "checkpoint-10")
    shutil.rmtree(folder)
    found: dict[int, list[float]] = {10: [], FAR: []}
    for _ in range(settings.rounds):
        for first in found:
            _checkpoint_of(settings.folder / "checkpoint-10", folder / f"checkpoint-{first}", settings)
            found[first].append(
                _first_step(lambda clock, n=first: _train(settings, rows, folder, clock, max_steps=n + 1))
            )
            shutil.rmtree(folder)
    kinds = {"Trainer, rows in a list": list, "Trainer, an iterable data set": _Stream}
    skipping = {
        (name, n): _plain_resumption(settings, rows, n, kind) for name, kind in kinds.items() for n in (10, SKIPPED)
    }
    table = [
        ["hmm-datasets", f"{n:,}", f"{statistics.median(s):.2f}", f"{min(s):.2f} to {max(s):.2f}"]
        for n, s in found.items()
    ]
    table += [[name, f"{n:,}", f"{s:.2f}", "once"] for (name, n), s in skipping.items()]
    print(f"\nResuming: {settings.model} model, {settings.batch} rows per step; to the end of the first step\n")
    print(text_table(["trained by", "from step", "seconds, median", "of the rounds"], table))


def _checkpoint_of(source: Path, folder: Path, settings: argparse.Namespace) -> None:
    """A copy of a checkpoint that says that it is of another step: by the step, rows and tokens of its state."""
    shutil.copytree(source, folder)
    first = int(folder.name.split("-")[1])
    tokens = first * settings.batch * settings.length
    state = read_json(folder / "trainer_state.json")
    totals = state["stateful_callbacks"].get("RunTotals", {"attributes": {}})["attributes"]
    if "rows" in totals:
        totals["rows"] = first * settings.batch
    write_json(folder / "trainer_state.json", state | {"global_step": first, "num_input_tokens_seen": tokens})
    if (folder / DIGESTS_NAME).exists():
        write_digests(folder)


def _first_step(run: Callable[[Clock], None]) -> float:
    clock, began = Clock(), time.perf_counter()
    run(clock)
    return clock.times[0] - began


class _Stream(IterableDataset):
    """Rows in memory, one after another, as a stream gives them."""

    def __init__(self, rows: Sequence[dict[str, torch.Tensor]]):
        self.rows = rows

    def __iter__(self):
        return iter(self.rows)


def _plain_resumption(settings: argparse.Namespace, rows: Any, first: int, kind: type) -> float:
    few = _list(settings, rows, 10)
    kept = kind([few[i % len(few)] for i in range((first + 1) * settings.batch)])
    folder = settings.folder / "plain"

    def trainer(**changes: Any) -> Trainer:
        return Trainer(
            model=_model(settings, rows.vocab_size),
            args=_arguments(settings, **changes),
            train_dataset=kept,
            data_collator=default_data_collator,
        )

    with _quietly():
        trainer(max_steps=2, save_steps=2).train()
        _checkpoint_of(folder / "checkpoint-2", folder / f"checkpoint-{first}", settings)
        shutil.rmtree(folder / "checkpoint-2")

        def run(clock: Clock) -> None:
            resumed = trainer(max_steps=first + 1)
            resumed.add_callback(clock)
            resumed.train(resume_from_checkpoint=str(folder / f"checkpoint-{first}"))

        seconds = _first_step(run)
    shutil.rmtree(folder)
    return seconds


def gpu(settings: argparse.Namespace) -> None:
    """Arithmetic and data on one GPU: MFU of a large model, waiting of small ones on short rows."""
    if not torch.cuda.is_available():
        print(f"\nGPU: none here ({CORES} cores); skipped")
        return
    runs = [
        ("500m", 2048, 16, {"bf16": True}),
        ("500m", 2048, 16, {"bf16": True, "torch_compile": True}),
        ("38m", 100, 2048, {"bf16": True, "torch_compile": True}),
        ("135m", 100, 2048, {"bf16": True, "torch_compile": True}),
    ]
    table = []
    for name, length, batch, changes in runs:
        rows, folder = hmm_rows(length), settings.folder / "gpu"
        model = _model(settings, rows.vocab_size, length, name)
        _train(settings, rows, folder, model=model, batch=batch, max_steps=60, logging_steps=10, **changes)
        history = [row for row in read_jsonl(folder / "history.jsonl") if "step_seconds" in row][2:]
        shutil.rmtree(folder)
        table.append(
            [name, f"{length:,}", f"{batch:,}", "yes" if "torch_compile" in changes else "no", *_rates(history)]
        )
        torch.cuda.empty_cache()
    print(f"\n{torch.cuda.get_device_name()}, bf16, rows of an HMM of {STATES} states and {SYMBOLS:,} symbols\n")
    header = ["model", "length", "rows", "compiled", "tokens/s", "MFU", "step, ms", "waiting, ms", "share", "at most"]
    print(text_table(header, table))


def _rates(history: Sequence[dict[str, float]]) -> list[str]:
    rate = statistics.median(row["tokens_per_second"] for row in history)
    mfu = [row["mfu"] for row in history if "mfu" in row]
    return [f"{rate:,.0f}", f"{statistics.median(mfu):.1%}" if mfu else "", *_shares(list(history))]


if __name__ == "__main__":
    main()
