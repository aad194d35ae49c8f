"""The public command on GPUs: what is compiled against what is not, and every way of sharding beside DDP.

    python benchmarks/gpu_recipes.py kernels sharding [--together] [--tiny]

Started by `benchmarks/gpu.py`, which keeps what is printed. Each row of a table is a run of `hmm-datasets pretrain` on
the same rows, with weights drawn from the same seed; the losses of its steps are compared with those of the first row,
and the part fails if one is further off than half precision explains. With `--together` the runs of a table are side
by side, for which a GPU has to have some 40 GB. With `--tiny` there are one or two CPU processes, a model of one
layer, two steps, and fewer runs (those of the other shardings are in `tests/recipes/test_sharding.py`);
FlexAttention, which has no backward pass on CPUs, only reads.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast, default_data_collator
from transformers.utils import is_flash_attn_2_available

from hmm_datasets.data.packing import PackedWindows
from hmm_datasets.report.tables import text_table
from hmm_datasets.text.stream import TokenStream, tokenizer_hash, write_tokens
from hmm_datasets.training.model_configs import model_config

WITHIN = 0.01
"""Nats per token by which a loss may differ in bfloat16, over some steps."""
REFERENCE = "sdpa, float32"
SHARDINGS = ("ddp", "zero1", "zero2", "zero3", "fsdp2")


class Runs:
    """Starts runs on one stream of documents, and compares their losses.

    Args:
        folder (`Path`): where tokens and runs are written.
        tiny (`bool`): on the CPU.
        together (`bool`): side by side.
    """

    def __init__(self, folder: Path, tiny: bool, together: bool):
        self.folder, self.tiny, self.together = folder, tiny, together
        self.pool = ThreadPoolExecutor()
        vocabulary = 4_096 if tiny else 50_304  # large enough that the loss is computed in chunks
        self.length, self.steps = (32, 2) if tiny else (1024, 10)
        config = model_config("1m" if tiny else "125m", vocab_size=vocabulary, max_length=self.length)
        if tiny:
            config.num_hidden_layers = 1
        config.save_pretrained(folder / "model")
        self.begun: dict[str, Future[tuple[int, list[float], float]]] = {}
        self.failed: list[str] = []
        random = np.random.default_rng(0)
        words = WordLevel({f"w{number}": number for number in range(vocabulary)}, unk_token="w1")
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), eos_token="w0", unk_token="w1")
        tokenizer.save_pretrained(folder / "tokenizer")
        made = tokenizer_hash(tokenizer)
        for split, count in (("train", 400 if tiny else 8_000), ("test", 40 if tiny else 200)):
            sizes = random.geometric(1 / (20 if tiny else 400), count)
            # Small ids are frequent, so that there is something to learn.
            rows = (np.minimum(random.geometric(0.02, size), vocabulary - 1) for size in sizes)
            target = folder / "tokens" / split
            write_tokens(rows, target, vocab_size=vocabulary, eos_id=0, tokenizer_hash=made, corpus="numbers")

    def output(self, name: str) -> Path:
        """The folder of a run."""
        return self.folder / name.replace(" ", "-").replace(",", "")

    def run(self, name: str, *flags: object) -> None:
        """Run the command, or start it if runs are side by side; [`Runs.show`] waits for it."""
        self.begun[name] = self.pool.submit(self._run, name, flags)
        if not self.together:
            self.begun[name].result()

    def _run(self, name: str, flags: tuple[object, ...]) -> tuple[int, list[float], float]:
        """Exit code, losses and seconds of the command."""
        output = self.output(name)
        command = [
            *(sys.executable, "-m", "hmm_datasets.cli", "pretrain", "--tokens", self.folder / "tokens"),
            *("--tokenizer", self.folder / "tokenizer"),
            *("--length", self.length, "--output_dir", output, "--max_steps", self.steps, "--logging_steps", 1),
            *("--global_batch_size", 8 if self.tiny else 32, "--per_device_train_batch_size", 4),
            *("--model", self.folder / "model", "--num_test_sequences", 4, "--save_strategy", "no"),
            # AdamW, for all alike: not every sharding has Muon.
            *("--packed", "true", "--optimizer", "adamw", *flags),
        ]
        hidden = {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}
        environment = os.environ | (hidden if self.tiny and torch.cuda.is_available() else {})
        began = time.monotonic()
        result = subprocess.run(
            list(map(str, command)), env=environment, capture_output=True, text=True, timeout=400, check=False
        )
        seconds = time.monotonic() - began
        losses = []
        if result.returncode == 0:
            rows = map(json.loads, (output / "history.jsonl").read_text(encoding="utf-8").splitlines())
            losses = [row["loss"] for row in rows if "loss" in row]
        else:
            print(result.stderr[-3000:], file=sys.stderr, flush=True)
        print(f"  {name}: exit code {result.returncode} after {seconds:.0f} s", flush=True)
        return result.returncode, losses, seconds

    def show(self) -> None:
        """Print the table; ends the program if a run failed or differs."""
        table, failed, first = [], list(self.failed), []
        for name, begun in self.begun.items():
            code, losses, seconds = begun.result()
            first = first or losses
            apart = max((abs(one - other) for one, other in zip(losses, first, strict=False)), default=np.nan)
            is_right = len(losses) == self.steps and apart <= (1e-3 if self.tiny else WITHIN)
            failed += [] if is_right else [name]
            shown = [f"{loss:.5f}" for loss in losses[:1] + losses[-1:]]
            verdict = "agrees" if is_right else "DIFFERS" if losses else f"FAILED, exit code {code}"
            table.append([name, *(shown or ["", ""]), f"{apart:.5f}", f"{seconds:.0f}", verdict])
        print()
        print(text_table(["run", "first loss", "last loss", "most apart", "seconds", ""], table))
        if failed:
            raise SystemExit(f"failed, or different from {REFERENCE}: {', '.join(failed)}")


def kernels(runs: Runs) -> None:
    """Packed rows under sdpa in float32; then in bfloat16, compiled, and by flex and flash attention."""
    compiled = ("--bf16", "true", "--torch_compile", "true")
    _reference(runs)
    if not runs.tiny:
        runs.run("sdpa, bf16", *_one_device(runs.tiny), "--bf16", "true")
    runs.run("sdpa, bf16, compiled", *_one_device(runs.tiny), *compiled)
    if runs.tiny:
        runs.begun[REFERENCE].result()  # whose model is read
        read_by_flex_attention(runs)
        return
    flex = (*_one_device(runs.tiny), "--attention", "flex_attention")
    runs.run("flex, bf16", *flex, "--bf16", "true")
    runs.run("flex, bf16, compiled", *flex, *compiled)
    if is_flash_attn_2_available():
        runs.run("flash 2, bf16, compiled", *_one_device(runs.tiny), *compiled, "--attention", "flash_attention_2")


def sharding(runs: Runs) -> None:
    """The same rows in bfloat16, on all devices of this machine, by every sharding."""
    _reference(runs)
    count = 2 if runs.tiny else torch.cuda.device_count()
    for name in ("fsdp2",) if runs.tiny else SHARDINGS:
        runs.run(name, "--launch", name, "--num_processes", count, "--bf16", "true")


def read_by_flex_attention(runs: Runs) -> None:
    """Loss of packed rows of the model of the first run, by flex attention and by sdpa."""
    packed = PackedWindows(TokenStream(runs.folder / "tokens" / "train"), runs.length, seed=0)
    batch = default_data_collator([packed[index] for index in range(4)])
    found = []
    for attention in ("sdpa", "flex_attention"):
        model = LlamaForCausalLM.from_pretrained(runs.output(REFERENCE), attn_implementation=attention).eval()
        with torch.no_grad():
            found.append(model(**batch, use_cache=False).loss.item())
    print(f"  packed rows read by sdpa and by flex attention: {found[0]:.5f} and {found[1]:.5f}", flush=True)
    runs.failed += [] if abs(found[0] - found[1]) < 1e-3 else ["flex attention"]


def _reference(runs: Runs) -> None:
    """The run with which the others are compared."""
    if not runs.begun:
        runs.run(REFERENCE, *_one_device(runs.tiny), "--bf16", "false")


def _one_device(tiny: bool) -> tuple[object, ...]:
    return () if tiny else ("--launch", "ddp", "--num_processes", 1)


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = {"kernels": kernels, "sharding": sharding}
    parser.add_argument("parts", nargs="+", choices=parts)
    parser.add_argument("--together", action="store_true", help="runs side by side")
    parser.add_argument("--tiny", action="store_true", help="on the CPU, at tiny sizes")
    settings = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(Path(folder), settings.tiny, settings.together)
        for part in settings.parts:
            parts[part](runs)
        runs.show()


if __name__ == "__main__":
    main()
