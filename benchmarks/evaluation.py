"""CORE of a small model: batched and with what prompts share run once, beside a plain loop over items.

    python benchmarks/evaluation.py [--data FOLDER] [--model 3m] [--items 40] [--batch 32] [--rounds 3]

Prints machine, versions, then a table. `--data` is a folder with the `.jsonl` files of CORE's tasks; without it items
are made up, a file of each of three types. The loop is the usual one: an item at a time, the prompts of its options
padded to one batch, all logits. Both run the same model in one process, in turns, without the control; what they
answer is compared item by item. The control, which the loop lacks, is timed beside them. Run it on a quiet machine.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from machine import print_heading
from torch.nn.functional import cross_entropy
from transformers import LlamaForCausalLM

from hmm_datasets.evaluation.core import core_tasks, find_questions, score_core
from hmm_datasets.evaluation.scoring import common_prefix
from hmm_datasets.report.tables import text_table
from hmm_datasets.text.tokenizers.bpe import train_bpe
from hmm_datasets.training.models import llama_config

PACKAGES = ("torch", "transformers", "accelerate", "numpy")
VOCABULARY = 8192


def main() -> None:
    """Time both ways in turns, compare their answers, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder with CORE's files; default made-up items")
    parser.add_argument("--model", default="3m", help="preset, default 3m")
    parser.add_argument("--items", type=int, default=40, help="items a task at most, default 40")
    parser.add_argument("--batch", type=int, default=32, help="prompts at once, default 32")
    parser.add_argument("--rounds", type=int, default=3, help="how often the ways take turns, default 3")
    settings = parser.parse_args()
    print_heading(PACKAGES)
    with tempfile.TemporaryDirectory() as folder:
        data = settings.data or made_up(Path(folder))
        model, tokenizer = make_model(settings, data)
        ways = {
            "a loop over items": lambda: loop(model, tokenizer, data, settings),
            "hmm-datasets": lambda: ours(model, tokenizer, data, settings, corrupted=False),
            "hmm-datasets, with the control": lambda: ours(model, tokenizer, data, settings, corrupted=True),
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        answers = {}
        order = list(ways)
        for number in range(settings.rounds):
            for name in order[number % 3 :] + order[: number % 3]:
                start = time.perf_counter()
                answers[name] = ways[name]()
                seconds[name].append(time.perf_counter() - start)
        report(answers, seconds, settings)


def report(answers: dict[str, list[dict]], seconds: dict[str, list[float]], settings: argparse.Namespace) -> None:
    """Print how far the answers differ, and the times."""
    base = seconds["a loop over items"]
    table = []
    for name, times in seconds.items():
        ratios = [loop / way for way, loop in zip(times, base, strict=True)]
        cells = [f"{statistics.median(times):.2f}", f"{min(times):.2f} to {max(times):.2f}"]
        table.append([name, *cells, f"{statistics.median(ratios):.2f}", f"{min(ratios):.2f} to {max(ratios):.2f}"])
    expected, found = answers["a loop over items"], answers["hmm-datasets"]
    pairs = list(zip(expected, found, strict=True))
    assert all((one["task"], one["item"]) == (other["task"], other["item"]) for one, other in pairs)
    unlike = sum(one["correct"] != other["correct"] for one, other in pairs)
    error = max(abs(a - b) for one, other in pairs for a, b in zip(one["losses"], other["losses"], strict=True))
    tasks = len({one["task"] for one in expected})
    where = f"{tasks} of CORE's tasks" if settings.data else f"made-up items of {tasks} tasks"
    print(f"\n{where}, {len(expected)} items, {settings.model} model, {settings.rounds} rounds\n")
    print(text_table(["answered by", "s, median", "of the rounds", "loop over it", "of the rounds"], table))
    print(f"\nItems that the two answer otherwise: {unlike}; losses differ by {error:.1e} nats per token at most")


def make_model(settings: argparse.Namespace, data: str | Path) -> tuple:
    """A random model, and a tokenizer trained on the questions."""
    texts = [line for path in sorted(Path(data).rglob("*.jsonl")) for line in path.read_text().splitlines()]
    tokenizer = train_bpe(texts, VOCABULARY if settings.data else 400, min_frequency=1, show_progress=False)
    torch.manual_seed(0)
    config = llama_config(settings.model, vocab_size=len(tokenizer), max_length=2048)
    return LlamaForCausalLM(config).eval(), tokenizer


def ours(model, tokenizer, data: str | Path, settings: argparse.Namespace, *, corrupted: bool) -> list[dict]:
    """The items by this package."""
    accelerator = Accelerator(cpu=True)
    found = score_core(
        *(model, tokenizer, data, accelerator),
        max_per_task=settings.items,
        batch_size=settings.batch,
        corrupted=corrupted,
    )
    return found["items"]


def loop(model, tokenizer, data: str | Path, settings: argparse.Namespace) -> list[dict]:
    """The items one by one, each a batch of its prompts."""
    found = []
    for of in find_questions(data, core_tasks(), only_found=True, max_per_task=settings.items):
        for number, row in enumerate(of.rows):
            texts = of.prompts(row, number)
            prompts = [
                [tokenizer.bos_token_id, *tokenizer(text, add_special_tokens=False)["input_ids"]] for text in texts
            ]
            if of.task.type == "language_modeling":
                starts, prompts = [len(prompts[0])], prompts[1:]
            elif of.task.type == "schema":
                alike = common_prefix([prompt[::-1] for prompt in prompts])
                starts = [len(prompt) - alike for prompt in prompts]
            else:
                start = min(common_prefix(prompts), *(len(prompt) - 1 for prompt in prompts))
                starts = [start] * len(prompts)
            losses, likeliest = option_losses(model, prompts, starts)
            correct = likeliest if of.task.type == "language_modeling" else losses.index(min(losses)) == row["gold"]
            found.append({"task": of.task.label, "item": number, "losses": losses, "correct": correct})
    return found


def option_losses(model, prompts: list[list[int]], starts: list[int]) -> tuple[list[float], bool]:
    """Mean losses of the options of an item, and whether the first was the likeliest, token by token."""
    longest = max(map(len, prompts))
    tokens = torch.tensor([prompt + [0] * (longest - len(prompt)) for prompt in prompts])
    with torch.inference_mode():
        logits = model(input_ids=tokens, use_cache=False).logits
    losses = cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
    losses = losses.view(len(prompts), -1)
    means = [
        row[start - 1 : len(prompt) - 1].mean().item()
        for row, prompt, start in zip(losses, prompts, starts, strict=True)
    ]
    first = slice(starts[0] - 1, len(prompts[0]) - 1)
    return means, bool((logits[0, :-1].argmax(-1)[first] == tokens[0, 1:][first]).all())


def made_up(folder: Path) -> Path:
    """Files of three tasks, one of each type, of random words."""
    generator = random.Random(0)
    words = ["".join(generator.choices("abcdefghijklmnopqrstuvwxyz", k=generator.randint(2, 8))) for _ in range(300)]

    def some(least: int, most: int) -> str:
        return " ".join(generator.choices(words, k=generator.randint(least, most)))

    rows = {
        "arc_easy": lambda: {"query": some(8, 20), "choices": [some(1, 4) for _ in range(4)], "gold": 0},
        "winograd_wsc": lambda: {"context_options": [some(8, 12), some(8, 12)], "continuation": some(2, 6), "gold": 1},
        "bigbench_operators": lambda: {"context": some(10, 30), "continuation": some(1, 1)},
    }
    for name, make in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(make()) + "\n" for _ in range(200)))
    return folder


if __name__ == "__main__":
    main()
