"""CORE: batched and with what prompts share run once, beside lm-evaluation-harness and a plain loop over items.

    python benchmarks/evaluation.py [--data FOLDER] [--model 3m] [--items 40] [--batch 32] [--rounds 3]

Prints machine, versions, then a table. `--data` is a folder with the `.jsonl` files of CORE's tasks; without it items
are made up, a file of each of three types. `--model` is a preset, whose weights are random, or a pretrained model. The
loop is the usual one: an item at a time, the prompts of its options padded to one batch, all logits. The harness gets
the same tokens of the same prompts, and batches them as it does. All run the same model in one process, in turns,
without the control; what they answer is compared item by item. The control, which the others lack, is timed beside
them. Run it on a quiet machine.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from accelerate import Accelerator
from machine import print_heading
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from hmm_datasets.evaluation.core import core_tasks, find_questions, score_core
from hmm_datasets.evaluation.scoring import beginning_token, common_prefix
from hmm_datasets.report.tables import text_table
from hmm_datasets.text.tokenizers.bpe import train_bpe
from hmm_datasets.training.models import llama_config, load_pretrained

PACKAGES = ("torch", "transformers", "accelerate", "lm_eval", "numpy")
VOCABULARY = 8192


def main() -> None:
    """Time both ways in turns, compare their answers, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder with CORE's files; default made-up items")
    parser.add_argument("--model", default="3m", help="preset, default 3m; or a folder or file with a model")
    parser.add_argument("--items", type=int, default=40, help="items a task at most, default 40")
    parser.add_argument("--batch", type=int, default=32, help="prompts at once, default 32")
    parser.add_argument("--rounds", type=int, default=3, help="how often the ways take turns, default 3")
    settings = parser.parse_args()
    print_heading(PACKAGES)
    with tempfile.TemporaryDirectory() as folder:
        data = settings.data or made_up(Path(folder))
        model, tokenizer = make_model(settings, data)
        ways = {
            "lm-evaluation-harness": lambda: harness(model, tokenizer, data, settings),
            "a loop over items": lambda: loop(model, tokenizer, data, settings),
            "hmm-datasets": lambda: ours(model, tokenizer, data, settings, corrupted=False),
            "hmm-datasets, with the control": lambda: ours(model, tokenizer, data, settings, corrupted=True),
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        answers = {}
        order = list(ways)
        for number in range(settings.rounds):
            for name in order[number % len(order) :] + order[: number % len(order)]:
                start = time.perf_counter()
                answers[name] = ways[name]()
                seconds[name].append(time.perf_counter() - start)
        report(answers, seconds, settings)


def report(answers: dict[str, list[dict]], seconds: dict[str, list[float]], settings: argparse.Namespace) -> None:
    """Print how far the answers differ, and the times."""
    found, table = answers["hmm-datasets"], []
    for name, times in seconds.items():
        ratios = [theirs / ours for ours, theirs in zip(seconds["hmm-datasets"], times, strict=True)]
        cells = [f"{statistics.median(times):.2f}", f"{min(times):.2f} to {max(times):.2f}"]
        rate = len(found) / statistics.median(times)
        table.append(
            [name, *cells, f"{rate:.2f}", f"{statistics.median(ratios):.2f}", *compared(found, answers[name])]
        )
    tasks = len({one["task"] for one in found})
    where = f"{tasks} of CORE's tasks" if settings.data else f"made-up items of {tasks} tasks"
    print(f"\n{where}, {len(found)} items, model {Path(settings.model).name}, {settings.rounds} rounds\n")
    header = [
        "answered by",
        "s, median",
        "of the rounds",
        "items/s",
        "of hmm-datasets' time",
        "other answers",
        "losses",
    ]
    print(text_table(header, table))
    print("\nother answers: items answered otherwise than by hmm-datasets; losses: largest difference, nats per token")


def compared(found: list[dict], others: list[dict]) -> tuple[str, str]:
    """In how many items the answers differ, and by how much the mean losses of the options at most."""
    pairs = list(zip(found, others, strict=True))
    assert all((one["task"], one["item"]) == (other["task"], other["item"]) for one, other in pairs)
    unlike = sum(one["correct"] != other["correct"] for one, other in pairs)
    error = max(abs(a - b) for one, other in pairs for a, b in zip(one["losses"], other["losses"], strict=True))
    return str(unlike), f"{error:.1e}"


def make_model(settings: argparse.Namespace, data: str | Path) -> tuple:
    """A pretrained model with its tokenizer; or a random one, and a tokenizer trained on the questions."""
    if Path(settings.model).exists():
        return tuple(load_pretrained(kind, settings.model) for kind in (AutoModelForCausalLM, AutoTokenizer))
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


class Item(NamedTuple):
    """An item: the tokens of the prompt of each option, from which of them on it is scored, and its answer."""

    task: str
    number: int
    prompts: list[list[int]]
    starts: list[int]
    gold: int | None  # None if every scored token has to be the likeliest

    def answered(self, losses: list[float], likeliest: bool) -> dict:
        """The result of the item from the mean losses of its options."""
        correct = likeliest if self.gold is None else losses.index(min(losses)) == self.gold
        return {"task": self.task, "item": self.number, "losses": losses, "correct": correct}


def items(tokenizer, data: str | Path, settings: argparse.Namespace) -> Iterator[Item]:
    """The items of all tasks, in the order of this package."""
    beginning, _ = beginning_token(tokenizer)
    for of in find_questions(data, core_tasks(), only_found=True, max_per_task=settings.items):
        for number, row in enumerate(of.rows):
            texts, gold = of.prompts(row, number), row.get("gold")
            prompts = [[beginning, *tokenizer(text, add_special_tokens=False)["input_ids"]] for text in texts]
            if of.task.type == "language_modeling":
                starts, prompts, gold = [len(prompts[0])], prompts[1:], None
            elif of.task.type == "schema":
                alike = common_prefix([prompt[::-1] for prompt in prompts])
                starts = [len(prompt) - alike for prompt in prompts]
            else:
                start = min(common_prefix(prompts), *(len(prompt) - 1 for prompt in prompts))
                starts = [start] * len(prompts)
            yield Item(of.task.label, number, prompts, starts, gold)


def loop(model, tokenizer, data: str | Path, settings: argparse.Namespace) -> list[dict]:
    """The items one by one, each a batch of its prompts."""
    return [
        item.answered(*option_losses(model, item.prompts, item.starts)) for item in items(tokenizer, data, settings)
    ]


def harness(model, tokenizer, data: str | Path, settings: argparse.Namespace) -> list[dict]:
    """All options by the log-likelihoods of lm-evaluation-harness."""
    from lm_eval.models.huggingface import HFLM

    lm = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=settings.batch, device="cpu")
    asked = list(items(tokenizer, data, settings))
    requests = [
        (("", f"{number} {option}"), prompt[:start], prompt[start:])
        for number, item in enumerate(asked)
        for option, (prompt, start) in enumerate(zip(item.prompts, item.starts, strict=True))
    ]
    scores = iter(lm._loglikelihood_tokens(requests, disable_tqdm=True))
    found = []
    for item in asked:
        own = [next(scores) for _ in item.prompts]
        sizes = [len(prompt) - start for prompt, start in zip(item.prompts, item.starts, strict=True)]
        losses = [-total / size for (total, _), size in zip(own, sizes, strict=True)]
        found.append(item.answered(losses, own[0][1]))
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
