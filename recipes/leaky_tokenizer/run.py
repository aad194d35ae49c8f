"""A clean and a leaky tokenizer: what is gained by training a tokenizer on the test text too.

    hmm-datasets leaky-tokenizer --config leaky_tokenizer/small.yaml [--seeds 0 1 2 ...]

Two byte-level BPE tokenizers of the same size are trained, `clean` on the train text and `leaky` on train and test
text, and both texts are tokenized with both. For each seed the same model, with the same initial weights, is trained
on the same number of tokens with each tokenizer, and measured in bits per byte on the held-out documents. The last
stage compares them, see `compare.py`. When started again the experiment continues where it stopped.
"""

import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path

from hmm_datasets.launch import run


@dataclass
class LeakySettings:
    """Settings of the experiment."""

    output_dir: str = field(metadata={"help": "Output folder."})
    corpus: str = field(default="tinystories-sample", metadata={"help": "A text corpus: name, file or Hub data set."})
    test_fraction: float = field(default=0.25, metadata={"help": "Share of the documents that is held out."})
    max_documents: int | None = field(default=None, metadata={"help": "Maximum number of rows of the corpus to read."})
    vocab_size: int = field(
        default=4096, metadata={"help": "Vocabulary size of each tokenizer, special tokens included."}
    )
    split_pattern: str = field(default="gpt4", metadata={"help": "gpt2, gpt4, or a regular expression."})
    model: str = field(default="1m", metadata={"help": "A size (1m to 500m) of the models."})
    length: int = field(default=128, metadata={"help": "Tokens per window, in training and evaluation."})
    train_tokens: int = field(default=1_000_000, metadata={"help": "Number of tokens that each model is trained on."})
    global_batch_size: int = field(default=32, metadata={"help": "Windows per optimizer step."})
    micro_batch_size: int = field(default=16, metadata={"help": "Windows per process in one forward pass."})
    learning_rate: float = field(default=3e-3, metadata={"help": "Peak learning rate."})
    seeds: list[int] = field(
        default_factory=lambda: [0], metadata={"help": "Seeds; one model per tokenizer and seed."}
    )
    launcher: str = field(default="cpu2", metadata={"help": "Launch configuration of training and evaluation."})


def main(settings: LeakySettings) -> None:
    """Tokenize twice, train and evaluate for each seed, compare."""
    from hmm_datasets.stages import run_stages

    code = run_stages(stages(settings))
    if code != 0:
        sys.exit(code)


def stages(settings: LeakySettings) -> list[tuple[str, str]]:
    """Title and command of every stage."""
    launch = f"--launch {settings.launcher}"
    compare = shlex.quote(str(Path(__file__).with_name("compare.py")))
    text = _flags(settings, "corpus", "test_fraction", "max_documents", "vocab_size", "split_pattern")
    budget = _flags(settings, "model", "length", "train_tokens", "global_batch_size", "learning_rate")
    budget += f" --per_device_train_batch_size {settings.micro_batch_size} --save_steps 500 --save_total_limit 1"
    result = []
    for name, splits in (("clean", "train"), ("leaky", "train test")):
        folder = f"{settings.output_dir}/{name}"
        result.append(
            (
                f"The {name} tokenizer, trained on {splits.replace(' ', ' and ')} text; both texts tokenized",
                f"hmm-datasets tokenize {text} --tokenizer_splits {splits} --conversations none --output_dir {folder}",
            )
        )
        for seed in settings.seeds:
            result.append(
                (
                    f"A model on the {name} tokens, seed {seed}",
                    f"hmm-datasets pretrain {launch} --tokens {folder}/text --tokenizer {folder}/tokenizer {budget} "
                    f"--seed {seed} --output_dir {folder}/model-{seed}",
                )
            )
            result.append(
                (
                    "Its bits per byte on the held-out documents",
                    f"hmm-datasets evaluate {folder}/model-{seed} {launch} --targets {folder}/text/test "
                    f"--tasks text --window {settings.length} --stride {settings.length // 2} --by_document true "
                    f"--output_dir {folder}/evaluation-{seed}",
                )
            )
    result.append(
        (
            "Comparison of clean and leaky",
            f"python {compare} --experiment {settings.output_dir} --seeds " + " ".join(map(str, settings.seeds)),
        )
    )
    return result


def _flags(settings: LeakySettings, *names: str) -> str:
    given = {name: getattr(settings, name) for name in names}
    return " ".join(f"--{name} {shlex.quote(str(value))}" for name, value in given.items() if value is not None)


if __name__ == "__main__":
    run(main, LeakySettings)
