"""The loss of an output layer and its gradients: memory, time and rounding, in chunks and from all logits.

    python benchmarks/loss.py [--part layer step] [--rows 8] [--step_rows 2] [--length 1024] [--vocabulary 50257]
                              [--model 125m] [--rounds 3]

Prints machine, versions, then a table a part. Every way runs in a process of its own, whose peak of resident memory
(on a GPU of allocated memory) is taken before and after; the ways take turns, round by round. `layer` is the output
layer of the model alone: hidden states and a weight drawn at random, in float32, and next to each way the largest
difference of its loss and of its gradients (in the Euclidean norm) from those in float64. `step` is a whole step of
the recipe's trainer, on random tokens: the way without this package's chunks is `chunked_loss: false`. Run it on a
quiet machine: all logits of the default sizes take 8 GiB of memory, and the step 5.
"""

import argparse
import contextlib
import importlib
import importlib.util
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from machine import CORES, print_heading

from hmm_datasets.report.tables import text_table
from hmm_datasets.training.model_configs import PRESETS

PACKAGES = ("torch", "transformers", "trl", "numpy")
Z_LOSS = 1e-4
TRL_CHUNK = 32_768  # tokens of the vocabulary at a time, as TRL's trainers set it
MIB = 2**20


def main() -> None:
    """Measure what was asked for; print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = {"layer": layer, "step": step}
    parser.add_argument("--part", nargs="*", choices=[*parts, *_CHILDREN], default=list(parts))
    parser.add_argument("--rows", type=int, default=8, help="rows per micro-batch, default 8")
    parser.add_argument("--step_rows", type=int, default=2, help="rows of the step, default 2")
    parser.add_argument("--length", type=int, default=1024, help="tokens per row, default 1024")
    parser.add_argument("--vocabulary", type=int, default=50_257, help="tokens of the vocabulary, default 50,257")
    parser.add_argument("--model", default="125m", choices=PRESETS, help="preset, default 125m")
    parser.add_argument("--rounds", type=int, default=3, help="how often the ways take turns, default 3")
    parser.add_argument("--way", help=argparse.SUPPRESS)  # in a child: the way to measure
    parser.add_argument("--exact", help=argparse.SUPPRESS)  # in a child: file of the loss and gradients in float64
    settings = parser.parse_args()
    if settings.way is not None:
        print(json.dumps(_CHILDREN[settings.part[0]](settings)))
        return
    print_heading(PACKAGES)
    width = PRESETS[settings.model][1]
    print(f"vocabulary {settings.vocabulary:,}, {settings.model} (width {width}), {settings.rounds} rounds")
    for part in settings.part:
        parts[part](settings)


# The output layer alone


def _plain(hidden, weight, labels, z_loss: float):
    """What transformers does, and the z-loss from the same logits."""
    from transformers.loss.loss_utils import ForCausalLMLoss

    logits = torch.nn.functional.linear(hidden, weight)
    loss = ForCausalLMLoss(logits, None, len(weight), shift_labels=labels)
    return loss + z_loss * logits.float().logsumexp(-1).square().mean() if z_loss else loss


def _chunked(hidden, weight, labels, z_loss: float):
    from hmm_datasets.training.linear_cross_entropy import summed_loss

    return summed_loss(hidden, weight, None, labels, z_loss=z_loss)[0] / len(labels)


def _torch_op(hidden, weight, labels, z_loss: float):
    """torch's operation; the z-loss from the losses of tokens, log Z = loss + logit of the label."""
    options = torch.nn.LinearCrossEntropyOptions()
    operation = torch.nn.functional.linear_cross_entropy
    if not z_loss:
        return operation(hidden, weight, labels, options=options)
    losses = operation(hidden, weight, labels, reduction="none", options=options)
    return losses.mean() + z_loss * (losses + (hidden * weight[labels]).sum(-1)).square().mean()


def _trl(hidden, weight, labels, z_loss: float):
    from trl.kernels import ChunkedLogProbFunction

    log_probs, *_ = ChunkedLogProbFunction.apply(hidden, weight, None, labels, 1.0, TRL_CHUNK, None, 1.0, ())
    return -log_probs.mean()


def _liger(hidden, weight, labels, z_loss: float):
    kernels = importlib.import_module("liger_kernel.transformers")
    return kernels.LigerFusedLinearCrossEntropyLoss(lse_square_scale=z_loss)(weight, hidden, labels)


def _cut(hidden, weight, labels, z_loss: float):
    return importlib.import_module("cut_cross_entropy").linear_cross_entropy(hidden, weight, labels)


WAYS: dict[str, tuple[Callable, float]] = {
    "transformers, all logits": (_plain, 0.0),
    "transformers, all logits, z-loss": (_plain, Z_LOSS),
    "hmm-datasets, chunks": (_chunked, 0.0),
    "hmm-datasets, chunks, z-loss": (_chunked, Z_LOSS),
    "torch, linear_cross_entropy": (_torch_op, 0.0),
    "torch, linear_cross_entropy, z-loss": (_torch_op, Z_LOSS),
    "trl, ChunkedLogProbFunction": (_trl, 0.0),
    "Liger Kernel": (_liger, 0.0),
    "Liger Kernel, z-loss": (_liger, Z_LOSS),
    "cut-cross-entropy": (_cut, 0.0),
}
# Installed by hand for this comparison; no extra of the package needs them.
_ONLY_ON_GPUS = {_liger: "liger_kernel", _cut: "cut_cross_entropy"}


def _is_here(way: Callable) -> bool:
    if way not in _ONLY_ON_GPUS:
        return True
    return torch.cuda.is_available() and importlib.util.find_spec(_ONLY_ON_GPUS[way]) is not None


def layer(settings: argparse.Namespace) -> None:
    """Memory, time and rounding of the output layer."""
    ways = [name for name, (way, _) in WAYS.items() if _is_here(way)]
    with tempfile.TemporaryDirectory() as folder:
        files = {z_loss: f"{folder}/{z_loss}.pt" for z_loss in (0.0, Z_LOSS)}
        for z_loss, file in files.items():
            _in_child("exact", str(z_loss), settings, file)
        found = _in_turns("layer", ways, settings, {name: files[WAYS[name][1]] for name in ways})
    base = statistics.median(one["seconds"] for one in found[ways[0]])
    table = []
    for name in ways:
        seconds = [one["seconds"] for one in found[name]]
        figures = found[name][0]
        table.append(
            [
                name,
                f"{max(one['bytes'] for one in found[name]) / MIB:,.0f}",
                f"{statistics.median(seconds):.2f}",
                f"{min(seconds):.2f} to {max(seconds):.2f}",
                f"{statistics.median(seconds) / base:.2f}",
                *(f"{figures[name]:.1e}" for name in ("loss", "hidden", "weight")),
            ]
        )
    tokens = f"{settings.rows} x {settings.length:,} tokens"
    print(f"\nOutput layer, forward and backward on {tokens}; differences from float64\n")
    header = ["way", "peak, MiB", "s, median", "of the rounds", "of all logits", "loss", "gradient of h", "of W"]
    print(text_table(header, table))
    width = PRESETS[settings.model][1]
    weight, logits = settings.vocabulary * width * 4, settings.rows * settings.length * settings.vocabulary * 4
    print(f"\nthe weight has {weight / MIB:,.0f} MiB, all logits in float32 {logits / MIB:,.0f} MiB")
    if not torch.cuda.is_available():
        print(f"Liger Kernel and cut-cross-entropy need a GPU: none here ({CORES} cores); skipped")


def _in_turns(
    part: str, ways: list[str], settings: argparse.Namespace, files: dict[str, str] | None = None
) -> dict[str, list[dict[str, float]]]:
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for number in range(settings.rounds):
        for name in ways[number % len(ways) :] + ways[: number % len(ways)]:
            found[name].append(_in_child(part, name, settings, (files or {}).get(name, "")))
    return found


def _in_child(part: str, way: str, settings: argparse.Namespace, file: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--part", part, "--way", way, "--exact", file]
    for name in ("rows", "step_rows", "length", "vocabulary", "model"):
        command += [f"--{name}", str(getattr(settings, name))]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{way}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _inputs(settings: argparse.Namespace, device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    count, width = settings.rows * settings.length, PRESETS[settings.model][1]
    hidden = torch.randn(count, width)
    weight = torch.randn(settings.vocabulary, width) * 0.02
    return hidden.to(device), weight.to(device), torch.randint(settings.vocabulary, (count,)).to(device)


def _measured_layer(settings: argparse.Namespace) -> dict[str, float]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    way, z_loss = WAYS[settings.way]
    hidden, weight, labels = _inputs(settings, device)
    few = slice(0, 64)  # loads code and starts threads
    way(
        hidden[few].clone().requires_grad_(), weight[:1000].clone().requires_grad_(), labels[few] % 1000, z_loss
    ).backward()
    hidden.requires_grad_(), weight.requires_grad_()
    with _peak(device) as peak:
        began = time.perf_counter()
        loss = way(hidden, weight, labels, z_loss)
        loss.backward()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began
    true_loss, *true_gradients = torch.load(settings.exact, map_location=device)
    found = {"bytes": peak(), "seconds": seconds, "loss": abs(loss.item() - true_loss) / true_loss}
    for name, one, true in zip(("hidden", "weight"), (hidden, weight), true_gradients, strict=True):
        found[name] = ((one.grad - true).norm() / true.norm()).item()
    return found


def _exact(settings: argparse.Namespace) -> dict[str, float]:
    """Write loss and gradients in float64, by their formulas, some rows at a time."""
    z_loss = float(settings.way)
    hidden, weight, labels = _inputs(settings, "cuda" if torch.cuda.is_available() else "cpu")
    total, of_hidden, of_weight = 0.0, torch.empty_like(hidden), torch.zeros_like(weight, dtype=torch.float64)
    wide, count = weight.double(), len(labels)
    for first in range(0, count, 256):
        rows = slice(first, first + 256)
        logits = hidden[rows].double() @ wide.T
        normalizers = logits.logsumexp(-1, keepdim=True)
        total += (normalizers - logits.gather(1, labels[rows, None])).sum().item()
        total += z_loss * normalizers.square().sum().item()
        gradient = (logits - normalizers).exp() * (1 + 2 * z_loss * normalizers)
        gradient.scatter_add_(1, labels[rows, None], -torch.ones_like(normalizers))
        gradient /= count
        of_hidden[rows] = (gradient @ wide).float()
        of_weight += gradient.T @ hidden[rows].double()
    torch.save((total / count, of_hidden, of_weight.float()), settings.exact)
    return {}


@contextlib.contextmanager
def _peak(device: str):
    """Gives the bytes by which memory grew at its peak inside the context."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        yield lambda: torch.cuda.max_memory_allocated() - before
        return
    # Looked at while it runs: the system's own record also has the peak before the context.
    before, highest, is_done = _resident(), [0], threading.Event()

    def look() -> None:
        while not is_done.wait(0.002):
            highest[0] = max(highest[0], _resident())

    watch = threading.Thread(target=look)
    watch.start()
    try:
        yield lambda: highest[0] - before
    finally:
        highest[0] = max(highest[0], _resident())
        is_done.set()
        watch.join()


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


# A whole step

STEPS = {
    "all logits": {"chunked_loss": False},
    "all logits, z-loss": {"chunked_loss": False, "z_loss": Z_LOSS},
    "chunks": {"chunked_loss": True},
    "chunks, z-loss": {"chunked_loss": True, "z_loss": Z_LOSS},
}


def step(settings: argparse.Namespace) -> None:
    """Memory and time of the second step of the recipe's trainer, and its loss."""
    found = _in_turns("step", list(STEPS), settings)
    base = statistics.median(one["seconds"] for one in found["all logits"])
    table = []
    for name, runs in found.items():
        seconds = [one["seconds"] for one in runs]
        table.append(
            [
                name,
                f"{max(one['bytes'] for one in runs) / MIB:,.0f}",
                f"{statistics.median(seconds):.2f}",
                f"{min(seconds):.2f} to {max(seconds):.2f}",
                f"{statistics.median(seconds) / base:.2f}",
                f"{runs[0]['loss']:.6f}",
            ]
        )
    tokens = f"{settings.step_rows} x {settings.length:,} tokens"
    print(f"\nA step of the recipe's trainer on {tokens}: forward, backward, clipping, AdamW; the second of two\n")
    print(text_table(["loss", "peak, MiB", "s, median", "of the rounds", "of all logits", "loss of step 2"], table))


def _measured_step(settings: argparse.Namespace) -> dict[str, float]:
    from transformers import LlamaForCausalLM, TrainerCallback, default_data_collator

    from hmm_datasets.training.model_configs import model_config
    from hmm_datasets.training.settings import PretrainSettings
    from hmm_datasets.training.trainer import Pretrainer

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    tokens = torch.randint(settings.vocabulary, (2 * settings.step_rows, settings.length))
    config = model_config(settings.model, vocab_size=settings.vocabulary, max_length=settings.length)

    class Second(TrainerCallback):
        """Measures from the end of the first step to that of the second."""

        def on_step_end(self, args, state, control, **kwargs):
            if device == "cuda":
                torch.cuda.synchronize()
            if state.global_step == 1:
                self.context = _peak(device)
                self.peak, self.began = self.context.__enter__(), time.perf_counter()
            else:
                self.seconds = time.perf_counter() - self.began
                self.context.__exit__(None, None, None)

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        args: Any = PretrainSettings(
            folder, max_steps=2, global_batch_size=settings.step_rows, per_device_train_batch_size=settings.step_rows,
            logging_steps=1, save_strategy="no", report_to="none", disable_tqdm=True,
            bf16=False, **STEPS[settings.way],
        )  # fmt: skip
        second = Second()
        trainer = Pretrainer(
            model=LlamaForCausalLM(config),
            args=args,
            train_dataset=[{"input_ids": row, "labels": row} for row in tokens],
            data_collator=default_data_collator,
            callbacks=[second],
        )
        trainer.train()
        losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    return {"bytes": second.peak(), "seconds": second.seconds, "loss": losses[-1]}


_CHILDREN = {"layer": _measured_layer, "exact": _exact, "step": _measured_step}

if __name__ == "__main__":
    main()
