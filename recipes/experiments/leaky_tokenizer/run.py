"""A clean and a leaky tokenizer: what is gained by training a tokenizer on the test text too.

    hmm-datasets experiment leaky-tokenizer --config leaky_tokenizer/small.yaml [--plan T4] [--models 1m 3m ...]

Two byte-level BPE tokenizers of the same size are trained, `clean` on the train text and `leaky` on train and test
text, and both texts are tokenized with both. A sweep then trains, for each size and seed, the same model with the same
initial weights on the same number of tokens with each tokenizer, and measures it in bits per byte on the held-out
documents. The last stage compares them, see `compare.py`. When started again the experiment continues where it
stopped. With `--plan T4 H200` it only prints the hours that the models would take on these devices, without data.
"""

import shlex
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

from hmm_datasets.runtime.program import run
from hmm_datasets.runtime.settings import setting

TOKENIZERS = {"clean": "train", "leaky": "train test"}
"""Name of each tokenizer and the splits that it is trained on."""
DEFAULTS = {
    "tokenize": "--test_fraction 0.25 --vocab_size 4096",
    "pretrain": "--global_batch_size 32 --per_device_train_batch_size 16 --learning_rate 3e-3",
}
"""Flags that others take the place of."""
GIVEN = {
    "tokenize": ("output_dir", "corpus", "conversations", "tokenizer", "tokenizer_splits"),
    "pretrain": ("output_dir", "tokens", "tokenizer", "model", "seed", "length", "train_tokens"),
}
"""Settings of both recipes that the experiment gives."""


@dataclass
class LeakySettings:
    """Settings of the experiment."""

    output_dir: str = setting(MISSING, "Output folder.")
    corpus: str = setting("tinystories-sample", "A text corpus: name, file or Hub data set.")
    tokenize: str = setting(
        "", f"Flags of tokenization, beyond '{DEFAULTS['tokenize']}', such as '--max_documents 400'."
    )
    models: list[str] = setting(["1m"], "Sizes (1m to 500m) of the models.")
    length: int = setting(128, "Tokens per window, in training and evaluation.")
    train_tokens: int = setting(1_000_000, "Number of tokens that each model is trained on.")
    pretrain: str = setting(
        "",
        f"Flags of pretraining, beyond '{DEFAULTS['pretrain']}', such as '--fp16 true' for GPUs without bfloat16.",
    )
    seeds: list[int] = setting([0], "Seeds; one model per tokenizer, size and seed.")
    launcher: str | None = setting(None, "Launch configuration of each training; by default one process per model.")
    plan: list[str] = setting(
        [],
        "Devices, such as T4, T4:0.3 for a share of its peak, or T4:0.3:0.35 with a price per hour: print the hours "
        "on each, and end.",
    )


def main(settings: LeakySettings) -> None:
    """Tokenize twice, train and evaluate all models, compare."""
    from hmm_datasets.files import write_yaml
    from hmm_datasets.operations.stages import run_or_exit

    if settings.plan:
        print(hours_by_device(settings))
    else:
        write_yaml(Path(settings.output_dir) / "models.yaml", models_sweep(settings))
        run_or_exit(stages(settings))


def stages(settings: LeakySettings) -> list[tuple[str, str]]:
    """Title and command of every stage."""
    root = Path(settings.output_dir)
    text = f"--corpus {shlex.quote(settings.corpus)} {DEFAULTS['tokenize']} {settings.tokenize}".rstrip()
    result = [
        (
            f"The {name} tokenizer, trained on {splits.replace(' ', ' and ')} text; both texts tokenized",
            f"hmm-datasets tokenize {text} --tokenizer_splits {splits} --conversations none "
            f"--output_dir {_quoted(root / name)}",
        )
        for name, splits in TOKENIZERS.items()
    ]
    launch = "" if settings.launcher is None else f" --launch {shlex.quote(settings.launcher)}"
    result.append(
        (
            "A model of each size and seed on the tokens of each tokenizer; its bits per byte on held-out text",
            f"hmm-datasets sweep {_quoted(root / 'models.yaml')}{launch}",
        )
    )
    compare = _quoted(Path(__file__).with_name("compare.py"))
    result.append(("Comparison of clean and leaky", f"python {compare} --experiment {_quoted(root)}"))
    return result


def flags_of(settings: LeakySettings, recipe: str, *given: str) -> dict[str, Any]:
    """The flags of a recipe, by name; those that the experiment gives, `given` too, are refused."""
    from stage_flags import read_flags

    return read_flags(f"{DEFAULTS[recipe]} {getattr(settings, recipe)}", (*GIVEN[recipe], *given), recipe=recipe)


def models_sweep(settings: LeakySettings) -> dict[str, Any]:
    """The file of the sweep that trains and measures the models."""
    flags_of(settings, "tokenize")  # are refused before the file is written
    root = Path(settings.output_dir)
    shared: dict[str, Any] = {"length": settings.length, "train_tokens": settings.train_tokens}
    shared |= {"save_steps": 500, "save_total_limit": 1, "epochs_ok": 4} | flags_of(settings, "pretrain")
    return {
        "recipe": "pretrain",
        "output_dir": f"{settings.output_dir}/models",
        "settings": shared,
        "cells": [
            {"tokens": str(root / name / "text"), "tokenizer": str(root / name / "tokenizer")} for name in TOKENIZERS
        ],
        "grid": {"model": settings.models, "seed": settings.seeds},
        "then": [
            f"evaluate {{output_dir}} --targets {{tokens}}/test --tasks text --window {settings.length} "
            f"--stride {settings.length // 2} --by_document true"
        ],
        "table": {"values": ["text.bits_per_byte"]},
    }


def hours_by_device(settings: LeakySettings) -> str:
    """A table of the hours that a model of each size takes on each device, and all models of the experiment together.

    No data are needed: a row is full, and the vocabulary has the size that the settings choose.
    """
    from hmm_datasets.operations.planning import plan_recipe
    from hmm_datasets.report.tables import text_table

    flags = flags_of(settings, "pretrain", "assumed_rate", "price_per_hour")
    vocab_size = flags_of(settings, "tokenize")["vocab_size"]
    sweep = models_sweep(settings)
    given = sweep["settings"] | sweep["cells"][0] | {"output_dir": settings.output_dir}
    runs = len(TOKENIZERS) * len(settings.seeds)
    table, notes = [], []
    for device in settings.plan:
        name, share, price = (*device.split(":"), "", "")[:3]
        chosen = given | {"assumed_rate": ":".join(filter(None, (name, share)))}
        chosen |= {"price_per_hour": price} if price else {}
        chosen |= {"bf16": not flags.get("fp16")}  # as on the device, which need not be here
        plans = []
        for model in settings.models:
            values = {key: value for key, value in (chosen | {"model": model}).items() if key not in flags}
            words = [word for key, value in values.items() for word in (f"--{key}", str(value))]
            words += shlex.split(f"{DEFAULTS['pretrain']} {settings.pretrain}")
            plans.append(plan_recipe("pretrain", words, assumed_vocab_size=vocab_size))
            needed, usable = plans[-1]["memory"]["ddp"]["total"], plans[-1]["device"]["usable"]
            if needed > usable:
                notes.append(f"{device}, {model}: needs {needed / 1e9:.1f} GB of {usable / 1e9:.1f} GB")
        times = [plan["time"] for plan in plans]
        hours = [time["seconds"] / 3600 for time in times]
        cost = f"{runs * sum(time['cost'] for time in times):,.0f}" if price else "?"
        table.append([times[0]["rate"], *(f"{value:,.3g}" for value in hours), f"{runs * sum(hours):,.3g}", cost])
    models = runs * len(settings.models)
    header = ["device", *settings.models, f"all {models} models", "cost"]
    lines = [f"Hours of one device for a model of {settings.train_tokens:,} tokens, and for all"]
    return "\n\n".join([*lines, text_table(header, table), *notes])


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))


if __name__ == "__main__":
    run(main)
