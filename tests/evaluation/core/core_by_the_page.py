"""CORE as defined, one item and one prompt at a time, for the tests to compare with."""

import json
import random

import torch


def answers(model, tokenizer, path, kind, shots, delimiter, *, beginning, limit=None, cap=None):
    """For each item of a file: whether it is answered correctly, and the mean losses of its options."""
    with open(path, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    random.Random(1337).shuffle(rows)
    rows = rows[:cap]
    return [
        answer(model, tokenizer, kind, delimiter, row, examples(rows, index, shots), beginning, limit)
        for index, row in enumerate(rows)
    ]


def examples(rows, index, shots):
    others = [other for other in range(len(rows)) if other != index]
    return [rows[other] for other in random.Random(1234 + index).sample(others, shots)]


def answer(model, tokenizer, kind, delimiter, row, shown, beginning, limit):
    def tokens(text):
        return beginning + tokenizer(text, add_special_tokens=False)["input_ids"]

    if kind == "language_modeling":
        blocks = [example["context"].strip() + delimiter + example["continuation"] for example in shown]
        asked = row["context"].strip() + delimiter
        without = tokens("\n\n".join([*blocks, asked]).rstrip())
        whole = tokens("\n\n".join([*blocks, asked + row["continuation"]]))
        assert whole[: len(without)] == without
        loss, likeliest = scored(model, whole, len(without), limit)
        return likeliest, [loss]
    if kind == "multiple_choice":
        blocks = [example["query"] + delimiter + example["choices"][example["gold"]] for example in shown]
        prompts = [tokens("\n\n".join([*blocks, row["query"] + delimiter + choice])) for choice in row["choices"]]
        start = 0
        while all(start < len(prompt) - 1 and prompt[start] == prompts[0][start] for prompt in prompts):
            start += 1
        starts = [start] * len(prompts)
    else:
        blocks = [
            example["context_options"][example["gold"]] + delimiter + example["continuation"] for example in shown
        ]
        prompts = [
            tokens("\n\n".join([*blocks, context + delimiter + row["continuation"]]))
            for context in row["context_options"]
        ]
        end = 0
        while all(end < len(prompt) and prompt[-1 - end] == prompts[0][-1 - end] for prompt in prompts):
            end += 1
        starts = [len(prompt) - end for prompt in prompts]
    losses = [scored(model, prompt, start, limit)[0] for prompt, start in zip(prompts, starts, strict=True)]
    best = min(range(len(losses)), key=lambda option: losses[option])
    return best == row["gold"], losses


def scored(model, prompt, start, limit):
    """The mean loss from `start` on, and whether each of these tokens was the most likely one."""
    if limit is not None and len(prompt) > limit:
        start -= len(prompt) - limit
        prompt = prompt[-limit:]
    with torch.no_grad():
        distributions = torch.log_softmax(model(input_ids=torch.tensor([prompt])).logits[0].double(), dim=-1)
    positions = [position for position in range(len(prompt)) if position >= start and position > 0]
    losses = [-distributions[position - 1, prompt[position]].item() for position in positions]
    return sum(losses) / len(losses), all(
        distributions[position - 1].argmax() == prompt[position] for position in positions
    )
