"""Training and generation on a GPU: MFU by size, attention, packing, fp16, chunks of the loss, generation, NCCL.

    python benchmarks/gpu_training.py mfu_125m mfu_350m mfu_500m mfu_1.3b attention packing fp16 chunks generation nccl

Started by `benchmarks/gpu.py`, which keeps what is printed. Model FLOPs are those of `training.plan.flops`, and the
peak of the chip that of `training.plan.devices`, as a run logs them. Weights are float32 and products bfloat16, the
optimizer is fused AdamW, and the batch is the largest power of two that fits, from a first guess down. The loop of
torch alone has the same model, settings and batch, its rows on the GPU, and no logging. With `--tiny` everything runs
on the CPU at sizes that show nothing.
"""

import argparse
import gc
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from gpu_parts import generation, nccl
from machine import against_goal
from transformers import LlamaConfig, LlamaForCausalLM, PrinterCallback, default_data_collator

from hmm_datasets.data.packing import PackedWindows
from hmm_datasets.data.windows import TokenWindows
from hmm_datasets.report.tables import text_table
from hmm_datasets.text.stream import TokenStream, write_tokens
from hmm_datasets.training import linear_cross_entropy
from hmm_datasets.training.model_configs import model_config
from hmm_datasets.training.plan.accelerators import peak_flops
from hmm_datasets.training.plan.flops import flops_per_token
from hmm_datasets.training.settings import PretrainSettings
from hmm_datasets.training.trainer import Pretrainer

VOCABULARY = 50_304
"""That of GPT-2, 50,257, up to a multiple of 128."""

MFU_GOALS = {"125m": 0.45, "350m": 0.50, "500m": 0.52, "1.3b": 0.52}
LENGTHS = {"125m": 1024, "350m": 1024, "500m": 2048, "1.3b": 2048}
BATCHES = {"125m": 64, "350m": 64, "500m": 32, "1.3b": 16}
"""Rows per step that are tried first."""

STEPS, LOGGED, WARM = 20, 4, 2
FLASH = ("flash_attention_3", "flash_attention_2", "kernels-community/flash-attn3", "kernels-community/flash-attn2")
"""The last two are fetched from the Hub by `kernels`, unless they are in its cache."""


class Way(NamedTuple):
    """How a model is trained: the name of the row, and what is set."""

    name: str
    attention: str = "sdpa"
    compiled: bool = False
    precision: str = "bf16"


class Found(NamedTuple):
    """Medians over the logged steps after the first ones, and the losses logged."""

    tokens_per_second: float
    mfu: float | None
    losses: list[float]
    others: dict[str, float]


class Bench:
    """Sizes and device of a run of this script, and the tokens that models are trained on."""

    def __init__(self, tiny: bool, folder: Path):
        self.tiny, self.folder = tiny, folder
        self.device = torch.device("cpu" if tiny else "cuda")
        self.vocabulary = 1024 if tiny else VOCABULARY
        self.steps, self.logged = (4, 1) if tiny else (STEPS, LOGGED)

    def stream(self) -> TokenStream:
        """Documents of random tokens, 400 on average; as long as the steps need."""
        if not (self.folder / "tokens").exists():
            random = np.random.default_rng(0)
            sizes = random.geometric(1 / (20 if self.tiny else 400), 2_000 if self.tiny else 50_000)
            documents = (random.integers(1, self.vocabulary, size, dtype=np.int64) for size in sizes)
            named = {"vocab_size": self.vocabulary, "eos_id": 0, "tokenizer_hash": "none", "corpus": "numbers"}
            write_tokens(documents, self.folder / "tokens", **named)
        return TokenStream(self.folder / "tokens")

    def model(self, size: str, length: int, attention: str) -> LlamaForCausalLM:
        """A new model, made on the device; raises what transformers raises if it lacks this attention."""
        torch.manual_seed(0)
        name = "1m" if self.tiny else "1.3b" if size == "350m" else size
        config = model_config(name, vocab_size=self.vocabulary, max_length=length)
        if self.tiny:
            config.num_hidden_layers = 1
        elif size == "350m":  # of Brown et al., 2020, table 2.1, which has no preset
            shape = {"hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 16}
            config = LlamaConfig(**config.to_dict() | shape | {"intermediate_size": 2752, "head_dim": 64})
        config._attn_implementation = attention
        with self.device:
            return LlamaForCausalLM(config)

    def trained(self, size: str, rows: Any, way: Way, batch: int, **changes: Any) -> Found:
        """A run of the recipe's trainer, as it logs itself."""
        given = {
            "max_steps": self.steps,
            "global_batch_size": batch,
            "per_device_train_batch_size": batch,
            "logging_steps": self.logged,
            "save_strategy": "no",
            "report_to": "none",
            "disable_tqdm": True,
            "optim": "adamw_torch_fused",
            "torch_compile": way.compiled,
            "bf16": way.precision == "bf16",
            "fp16": way.precision == "fp16",
        }
        args = PretrainSettings(str(self.folder / "run"), **given | changes)
        model = self.model(size, rows.length, way.attention)
        trainer = Pretrainer(model=model, args=args, train_dataset=rows, data_collator=default_data_collator)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        logged = [row for row in trainer.state.log_history if "step_seconds" in row]
        later, last = logged[WARM:], logged[-1]
        mfu = [row["mfu"] for row in later if "mfu" in row]
        others = {name: last[name] for name in ("memory_allocated", "loss_scale", "skipped_steps") if name in last}
        rate = statistics.median(row["tokens_per_second"] for row in later)
        return Found(rate, statistics.median(mfu) if mfu else None, [row["loss"] for row in logged], others)

    def bare(self, size: str, rows: Any, way: Way, batch: int) -> Found:
        """The same steps by torch alone."""
        model = self.model(size, rows.length, way.attention).train()
        per_token = flops_per_token(model, rows.length)
        run = torch.compile(model) if way.compiled else model
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
        batches = [
            {name: column.to(self.device) for name, column in default_data_collator(part).items()}
            for part in (rows.__getitems__(range(n * batch, (n + 1) * batch)) for n in range(self.steps))
        ]
        seconds, losses = [], []
        for given in batches:
            began = time.perf_counter()
            with torch.autocast(self.device.type, torch.bfloat16):
                loss = run(**given, use_cache=False).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())  # waits for the GPU
            seconds.append(time.perf_counter() - began)
        rate = batch * rows.length / statistics.median(seconds[WARM * self.logged :])
        return Found(rate, self.mfu(rate, per_token), losses, {})

    def mfu(self, rate: float, per_token: int) -> float | None:
        """MFU at a rate in tokens per second; None for a device whose peak is unknown."""
        peak = None if self.tiny else peak_flops(torch.cuda.get_device_name(), "bf16")
        return None if peak is None else rate * per_token / peak


def largest(run: Callable[[int], Found], batch: int) -> tuple[int, Found]:
    """Run with the batch given, or half of it, and so on until it fits the memory."""
    while True:
        found, full = None, None
        try:
            found = run(batch)
        except torch.OutOfMemoryError as error:
            full = str(error).splitlines()[0]
        # After the error has gone, since its traceback holds the tensors of the run.
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if found is not None:
            return batch, found
        if batch == 1:
            raise SystemExit(f"not even one row fits: {full}")
        batch //= 2


def mfu(bench: Bench, size: str) -> None:
    """MFU of the recipe's trainer at a size, eager and compiled, with the attentions there are, beside torch alone."""
    length = 64 if bench.tiny else LENGTHS[size]
    rows = TokenWindows(bench.stream(), length, seed=0)
    flash = next((name for name in FLASH if why_not(bench, name, length) is None), None)
    ways = [Way("eager")]
    if not bench.tiny:  # what is compiled on a CPU is rehearsed by gpu_recipes.py
        ways = [Way("compiled", compiled=True), *ways]
        ways += [Way("compiled", attention=flash, compiled=True)] if flash else []
    batch, table = 4 if bench.tiny else BATCHES[size], []
    print(f"{size}: V={bench.vocabulary:,}, rows of {length:,}, {bench.steps} steps; goal for the best Trainer row\n")
    best = 0.0
    for way in ways:
        for name, run in (("Trainer", bench.trained), ("torch alone", bench.bare)):
            # One batch for all, the one that fits the first.
            batch, found = largest(lambda batch, run=run, way=way: run(size, rows, way, batch), batch)
            best = max(best, (found.mfu or 0.0) * (name == "Trainer"))
            mfu = "unknown peak" if found.mfu is None else f"{found.mfu:.1%}"
            memory = found.others.get("memory_allocated")
            cells = [f"{name}, {way.name}", way.attention, batch, f"{found.tokens_per_second:,.0f}", mfu]
            table.append([*cells, "" if memory is None else f"{memory / 2**30:.1f}", f"{found.losses[-1]:.3f}"])
            print(f"  {cells}", flush=True)
    print()
    print(text_table(["trained by", "attention", "rows", "tokens/s", "MFU", "GiB at most", "last loss"], table))
    goal = f"{MFU_GOALS[size]:.0%}"
    told = f"{best:.1%}; goal {against_goal(best, MFU_GOALS[size], goal)}" if best else f"unknown; goal {goal}"
    print(f"\nbest MFU of the Trainer: {told}")


def why_not(bench: Bench, attention: str, length: int) -> str | None:
    """Why a model cannot have this attention here; None if it can: one step of a small model ran."""
    try:
        model = bench.model("1m", length, attention)
        tokens = torch.ones(1, length, dtype=torch.int64, device=bench.device)
        with torch.autocast(bench.device.type, torch.bfloat16):
            model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
    except Exception as error:  # of transformers, kernels, the Hub's client or a compiler
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:60]}"
    return None


def attention(bench: Bench) -> None:
    """Tokens per second of a model of 125m at 4,096 tokens, by its attention, torch alone, eager."""
    length = 64 if bench.tiny else 4096
    rows, table = TokenWindows(bench.stream(), length, seed=0), []
    for name in ("sdpa", "eager", "flex_attention", *FLASH):
        reason = why_not(bench, name, length)
        if reason is None:
            batch, found = largest(
                lambda batch, name=name: bench.bare("125m", rows, Way(name, name), batch), 4 if bench.tiny else 8
            )
            table.append([name, batch, f"{found.tokens_per_second:,.0f}", f"{found.losses[0]:.4f}", ""])
        else:
            table.append([name, "", "", "", reason])
    print(f"Attention: 125m, rows of {length:,}\n")
    print(text_table(["attention", "rows", "tokens/s", "first loss", "not here"], table))


def packing(bench: Bench) -> None:
    """Windows of whole documents, with attention confined to each; the first losses are of the same rows and weights.

    FlashAttention reads the bounds of documents only from batches of one row, so it gets one row at a time.
    """
    length = 64 if bench.tiny else 2048
    packed = PackedWindows(bench.stream(), length, seed=0, cache_dir=bench.folder / "plans")
    plain = TokenWindows(bench.stream(), length, seed=0)
    batch, table = 4 if bench.tiny else 16, []
    ways = [("not packed", plain, Way("sdpa"), batch), ("packed", packed, Way("sdpa"), batch)]
    for name in ("flex_attention", *FLASH):
        if why_not(bench, name, length) is None:
            at_once = 1 if name in FLASH else batch
            ways += [
                ("packed", packed, Way(name, name), at_once),
                ("packed, compiled", packed, Way(name, name, compiled=True), at_once),
            ]
    for kind, rows, way, at_once in ways:
        found = bench.trained("125m", rows, way, batch, per_device_train_batch_size=at_once)
        table.append([kind, way.attention, at_once, f"{found.tokens_per_second:,.0f}", f"{found.losses[0]:.4f}"])
        print(f"  {table[-1]}", flush=True)
    print(f"\nPacking: 125m, rows of {length:,}, {packed.fill_rate:.1%} filled, {batch} rows per step\n")
    print(text_table(["rows", "attention", "rows at once", "tokens/s", f"loss of {bench.logged} steps"], table))


def fp16(bench: Bench) -> None:
    """The same run of 125m in float32, bfloat16, and float16 with its loss scaled."""
    length = 64 if bench.tiny else 1024
    rows, table = TokenWindows(bench.stream(), length, seed=0), []
    for precision in ("fp32", "bf16") if bench.tiny else ("fp32", "bf16", "fp16"):
        found = bench.trained("125m", rows, Way(precision, precision=precision), 4 if bench.tiny else 16)
        losses = f"{found.losses[0]:.3f} to {found.losses[-1]:.3f}"
        scale, skipped = (found.others.get(name, "") for name in ("loss_scale", "skipped_steps"))
        table.append([precision, f"{found.tokens_per_second:,.0f}", losses, scale, skipped])
    print(f"Precision: 125m, rows of {length:,}, {bench.steps} steps\n")
    print(text_table(["precision", "tokens/s", "loss", "loss scale", "skipped steps"], table))


def chunks(bench: Bench) -> None:
    """Time and memory of the loss and its gradients by the size of a chunk, for a layer of 768 features."""
    tokens, width = (512, 64) if bench.tiny else (65_536, 768)
    hidden = torch.randn(tokens, width, device=bench.device, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(bench.vocabulary, width, device=bench.device, requires_grad=True)
    labels = torch.randint(bench.vocabulary, (tokens,), device=bench.device)

    def in_chunks() -> torch.Tensor:
        return linear_cross_entropy.summed_loss(hidden, weight, None, labels)[0]

    def at_once() -> torch.Tensor:
        with torch.autocast(bench.device.type, torch.bfloat16):
            logits = torch.nn.functional.linear(hidden, weight)
        return torch.nn.functional.cross_entropy(logits.float(), labels, reduction="sum")

    name = "CHUNK_BYTES" if bench.tiny else "GPU_CHUNK_BYTES"
    default, table = getattr(linear_cross_entropy, name), []
    for size in (default // 16, default // 4, default, 4 * default, None):
        if size is not None:
            setattr(linear_cross_entropy, name, size)
        seconds = []
        for _ in range(2 if bench.tiny else 6):
            hidden.grad = weight.grad = None
            if not bench.tiny:
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
            began = time.perf_counter()
            (at_once if size is None else in_chunks)().backward()
            if not bench.tiny:
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began)
        peak = "" if bench.tiny else f"{torch.cuda.max_memory_allocated() / 2**20:,.0f}"
        way = "all logits, by torch alone" if size is None else f"{size >> 20} MiB per chunk"
        table.append([way, f"{1e3 * statistics.median(seconds[1:]):,.1f}", peak, name if size == default else ""])
    setattr(linear_cross_entropy, name, default)
    print(f"Loss and gradients: {tokens:,} tokens, vocabulary {bench.vocabulary:,}, products in bfloat16\n")
    print(text_table(["logits", "ms", "peak MiB", ""], table))


def main() -> None:
    """Time what was asked for; print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts: dict[str, Callable[[Bench], None]] = {
        f"mfu_{size}": lambda bench, size=size: mfu(bench, size) for size in MFU_GOALS
    }
    parts |= {"attention": attention, "packing": packing, "fp16": fp16, "chunks": chunks}
    parts |= {"generation": lambda bench: generation(bench.model, bench.device, tiny=bench.tiny)}
    parts |= {"nccl": lambda bench: nccl(tiny=bench.tiny)}
    parser.add_argument("parts", nargs="+", choices=parts)
    parser.add_argument("--tiny", action="store_true", help="on the CPU, at tiny sizes")
    settings = parser.parse_args()
    if settings.tiny:
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # else DeepSpeed warns that it found no GPU
    with tempfile.TemporaryDirectory() as folder:
        for part in settings.parts:
            parts[part](Bench(settings.tiny, Path(folder)))


if __name__ == "__main__":
    main()
