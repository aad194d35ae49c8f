"""Bits per byte and simple facts of a pretrained model: beside a plain loop over windows, and `pipeline`.

    python benchmarks/evaluation_text.py MODEL TEXT [--kilobytes 40] [--window 512] [--rounds 3]

Both score the same strided windows of the same tokens in one process, in turns: the loop as transformers' guide on
perplexity has it, a window at a time with all logits. Facts are continued greedily by 24 tokens, in one batch and by
`pipeline("text-generation")` one by one and in batches of 8; texts are compared. Run it on a quiet machine.
"""

import argparse
import math
import statistics
from pathlib import Path

import torch
from accelerate import Accelerator
from machine import in_turns, print_heading
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

from hmm_datasets.evaluation.completions import FACTS, complete
from hmm_datasets.evaluation.document_windows import DocumentWindows
from hmm_datasets.evaluation.model_limits import beginning_token
from hmm_datasets.evaluation.text import measure_text
from hmm_datasets.report.tables import text_table
from hmm_datasets.text.tokenizers.encoding import encode_texts
from hmm_datasets.training.pretrained import load_pretrained

PACKAGES = ("torch", "transformers", "accelerate")
NEW_TOKENS = 24


def main() -> None:
    """Time the ways of both tasks in turns, compare what they found, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="folder or file with a model and a tokenizer")
    parser.add_argument("text", type=Path, help="a text file")
    parser.add_argument("--kilobytes", type=int, default=40, help="how much of the text, default 40")
    parser.add_argument("--window", type=int, default=512, help="tokens per window, half of them scored; default 512")
    parser.add_argument("--batch", type=int, default=8, help="windows at once, default 8")
    parser.add_argument("--rounds", type=int, default=3, help="how often the ways take turns, default 3")
    settings = parser.parse_args()
    print_heading(PACKAGES)
    model, tokenizer = (load_pretrained(kind, settings.model) for kind in (AutoModelForCausalLM, AutoTokenizer))
    model.eval()
    text = settings.text.read_bytes()[: 1000 * settings.kilobytes].decode(errors="ignore")
    windows = DocumentWindows([text], tokenizer, settings.window, settings.window // 2)
    found, seconds = in_turns(
        {
            "a loop over windows": lambda: loop(model, tokenizer, text, settings.window),
            "hmm-datasets": lambda: measure_text(
                model, tokenizer, windows, Accelerator(cpu=True), batch_size=settings.batch
            )["bits_per_byte"],
        },
        settings.rounds,
    )
    tokens = int(windows.tokens.sum())
    print(
        f"\n{len(text.encode()):,} bytes, {tokens:,} tokens, windows of {settings.window}, {settings.rounds} rounds\n"
    )
    report(seconds, tokens, "tokens/s", {name: f"{value:.6f}" for name, value in found.items()}, "bits per byte")
    texts = [prompt for prompt, _ in FACTS]
    found, seconds = in_turns(
        {
            "pipeline, one by one": lambda: piped(model, tokenizer, texts, 1),
            "pipeline, batches of 8": lambda: piped(model, tokenizer, texts, 8),
            "hmm-datasets": lambda: completed(model, tokenizer),
        },
        settings.rounds,
    )
    alike = {
        name: f"{sum(one == other for one, other in zip(rows, found['hmm-datasets'], strict=True))} of {len(texts)}"
        for name, rows in found.items()
    }
    print(f"\n{len(texts)} facts, {NEW_TOKENS} new tokens at most, {settings.rounds} rounds\n")
    report(seconds, len(texts), "facts/s", alike, "same text")


def report(seconds: dict[str, list[float]], count: int, unit: str, found: dict[str, str], what: str) -> None:
    """Print rates, ratios, and what was found."""
    rows = []
    for name, times in seconds.items():
        ratios = [theirs / ours for ours, theirs in zip(seconds["hmm-datasets"], times, strict=True)]
        span = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        rate = count / statistics.median(times)
        rows.append([name, f"{statistics.median(times):.2f}", f"{rate:.4g}", span, found[name]])
    print(text_table(["by", "s, median", unit, "of hmm-datasets' time", what], rows))


def loop(model, tokenizer, text: str, window: int) -> float:
    """Bits per byte by a loop over windows, of which the tokens that no window before it scored count."""
    beginning, _ = beginning_token(tokenizer)
    tokens = torch.tensor([[beginning, *encode_texts(tokenizer, [text])[0]]])
    nats, scored, end = 0.0, 1, min(window, tokens.shape[1])
    while scored < end:
        begin = max(0, end - window)
        with torch.inference_mode():
            logits = model(input_ids=tokens[:, begin:end], use_cache=False).logits[0, :-1]
        labels = tokens[0, begin + 1 : end].clone()
        labels[: scored - begin - 1] = -100
        nats += float(cross_entropy(logits.double(), labels, reduction="sum"))
        scored, end = end, min(end + window // 2, tokens.shape[1])
    return nats / math.log(2) / len(text.encode())


def completed(model, tokenizer) -> list[str]:
    """Continuations of the facts by this package."""
    found = complete(model, tokenizer, open_prompts=(), samples=0, max_new_tokens=NEW_TOKENS)
    return [row["greedy"] for row in found["prompts"]]


def piped(model, tokenizer, texts: list[str], batch_size: int) -> list[str]:
    """Continuations of the facts by a pipeline of transformers."""
    beginning, _ = beginning_token(tokenizer)
    tokenizer.padding_side = "left"
    generate = pipeline("text-generation", model=model, tokenizer=tokenizer, device="cpu")
    prompts = [tokenizer.decode([beginning]) + text for text in texts]
    outputs = generate(
        prompts, batch_size=batch_size, max_new_tokens=NEW_TOKENS, do_sample=False, return_full_text=False
    )
    return [output[0]["generated_text"] for output in outputs]


if __name__ == "__main__":
    main()
