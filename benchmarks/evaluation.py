"""CORE: batched and with what prompts share run once, beside lm-evaluation-harness and a plain loop over items.

    python benchmarks/evaluation.py [--data FOLDER] [--model 3m] [--items 40] [--batch 32] [--rounds 3]

Prints machine, versions, then a table. `--data` is a folder with the `.jsonl` files of CORE's tasks; without it items
are made up, a file of each of three types. `--model` is a preset, whose weights are random, or a pretrained model. The
loop is the usual one: an item at a time, the prompts of its options padded to one batch, all logits. The harness gets
the same tokens of the same prompts, and batches them as it does. All run the same model in one process, task by task
and in turns; what they answer is compared item by item. Run it on a quiet machine.
"""

import argparse
import json
import random
import statistics
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from accelerate import Accelerator
from machine import in_turns, print_heading
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from hmm_datasets.evaluation.continuations import common_prefix
from hmm_datasets.evaluation.core.measure import score_core
from hmm_datasets.evaluation.core.questions import find_questions
from hmm_datasets.evaluation.core.tasks import core_tasks
from hmm_datasets.evaluation.model_limits import beginning_token
from hmm_datasets.report.tables import text_table
from hmm_datasets.text.tokenizers.bpe import train_bpe
from hmm_datasets.training.model_configs import model_config
from hmm_datasets.training.pretrained import load_pretrained

PACKAGES = ("torch", "transformers", "accelerate", "lm_eval", "numpy")
VOCABULARY = 8192
Measured = tuple[dict[str, list[dict]], dict[str, list[float]]]
"""Of a task, for each way its items, and the seconds of every round."""


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
            "hmm-datasets": lambda task: ours(model, tokenizer, data, task, settings),
            "lm-evaluation-harness": lambda task: harness(model, tokenizer, data, task, settings),
            "a loop over items": lambda task: loop(model, tokenizer, data, task, settings),
        }
        found = {}
        for questions in find_questions(data, core_tasks(), only_found=True, max_per_task=settings.items):
            label = questions.task.label
            found[label] = in_turns({name: partial(way, label) for name, way in ways.items()}, settings.rounds)
        report(found, settings)


def report(found: dict[str, Measured], settings: argparse.Namespace) -> None:
    """Print for each task and for all the times, and how far the answers differ."""
    names = list(next(iter(found.values()))[1])
    rows = [*found.items(), ("all", joined(list(found.values())))]
    table = []
    for label, (answers, seconds) in rows:
        mine, items = seconds[names[0]], len(answers[names[0]])
        cells = [label, str(items), f"{items / statistics.median(mine):.2f}"]
        for name in names[1:]:
            ratios = [theirs / ours for ours, theirs in zip(mine, seconds[name], strict=True)]
            cells.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
        unlike, errors = zip(*(compared(answers[names[0]], answers[name]) for name in names[1:]), strict=True)
        table.append([*cells, str(sum(unlike)), f"{max(errors):.1e}"])
    where = "CORE's tasks" if settings.data else "made-up items"
    print(f"\n{where}, model {Path(settings.model).name}, {settings.rounds} rounds\n")
    header = ["task", "items", "items/s of hmm-datasets", *(f"time of: {name}" for name in names[1:])]
    print(text_table([*header, "other answers", "losses"], table))
    print("\ntimes: as multiples of hmm-datasets' in the same round, median and range")
    print("other answers: items that another way answers otherwise; losses: largest difference, nats per token")


def joined(tasks: list[Measured]) -> Measured:
    """The answers of all tasks, and the seconds of each round over all of them."""
    names = tasks[0][0]
    answers = {name: [one for found, _ in tasks for one in found[name]] for name in names}
    rounds = {name: zip(*(seconds[name] for _, seconds in tasks), strict=True) for name in names}
    return answers, {name: [sum(times) for times in own] for name, own in rounds.items()}


def compared(found: list[dict], others: list[dict]) -> tuple[int, float]:
    """In how many items the answers differ, and by how much the mean losses of the options at most."""
    pairs = list(zip(found, others, strict=True))
    assert all((one["task"], one["item"]) == (other["task"], other["item"]) for one, other in pairs)
    unlike = sum(one["correct"] != other["correct"] for one, other in pairs)
    error = max(abs(a - b) for one, other in pairs for a, b in zip(one["losses"], other["losses"], strict=True))
    return unlike, error


def make_model(settings: argparse.Namespace, data: str | Path) -> tuple:
    """A pretrained model with its tokenizer; or a random one, and a tokenizer trained on the questions."""
    if Path(settings.model).exists():
        return tuple(load_pretrained(kind, settings.model) for kind in (AutoModelForCausalLM, AutoTokenizer))
    texts = [line for path in sorted(Path(data).rglob("*.jsonl")) for line in path.read_text().splitlines()]
    tokenizer = train_bpe(texts, VOCABULARY if settings.data else 400, min_frequency=1, show_progress=False)
    torch.manual_seed(0)
    config = model_config(settings.model, vocab_size=len(tokenizer), max_length=2048)
    return LlamaForCausalLM(config).eval(), tokenizer


def ours(model, tokenizer, data: str | Path, task: str, settings: argparse.Namespace) -> list[dict]:
    """The items of a task by this package."""
    accelerator = Accelerator(cpu=True)
    found = score_core(
        *(model, tokenizer, data, accelerator),
        tasks=[task],
        max_per_task=settings.items,
        batch_size=settings.batch,
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


def items(tokenizer, data: str | Path, task: str, settings: argparse.Namespace) -> Iterator[Item]:
    """The items of a task, in the order of this package."""
    beginning, _ = beginning_token(tokenizer)
    for of in find_questions(data, core_tasks([task]), only_found=False, max_per_task=settings.items):
        for number, row in enumerate(of.rows):
            texts, gold = of.prompts(number), row.get("gold")
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


def loop(model, tokenizer, data: str | Path, task: str, settings: argparse.Namespace) -> list[dict]:
    """The items one by one, each a batch of its prompts."""
    return [
        item.answered(*option_losses(model, item.prompts, item.starts))
        for item in items(tokenizer, data, task, settings)
    ]


def harness(model, tokenizer, data: str | Path, task: str, settings: argparse.Namespace) -> list[dict]:
    """All options by the log-likelihoods of lm-evaluation-harness."""
    from lm_eval.models.huggingface import HFLM

    lm = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=settings.batch, device="cpu")
    asked = list(items(tokenizer, data, task, settings))
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
