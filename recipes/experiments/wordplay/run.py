"""Word play: a small model learns to write by characters, and the ways to train it on several processes side by side.

    hmm-datasets experiment wordplay --text input.txt
    hmm-datasets experiment wordplay --text input.txt --strategies ddp zero1 zero2 zero3 fsdp2 --num_processes 2

A Llama reads a text one character at a time (as Karpathy's char-rnn and nanoGPT do), and then writes some. The usual
text is Tiny Shakespeare, 1.1 MB of plays, `data/tinyshakespeare/input.txt` of https://github.com/karpathy/char-rnn;
any file or corpus will do. With `--strategies` the same model is trained on the same rows for some steps under each
launch configuration, and `report.md` shows samples and tokens per second, MFU, memory, and how far the losses differ.
When started again the experiment continues where it stopped.
"""

import shlex
from dataclasses import MISSING, dataclass
from pathlib import Path

from hmm_datasets.runtime.program import run
from hmm_datasets.runtime.setting_rules import Void
from hmm_datasets.runtime.settings import setting

TEST_FRACTION = 0.1
"""Share of the text that is held out."""
STRATEGY_STEPS = 40
"""Optimizer steps under each of the strategies."""
DEFAULTS = "--global_batch_size 32 --per_device_train_batch_size 16 --learning_rate 3e-3"
"""Flags of pretraining that others take the place of."""
GIVEN = ("output_dir", "tokens", "tokenizer", "model", "length", "train_tokens")
"""Settings of pretraining that the experiment gives."""
PROMPTS = ["The ", "What ", "I "]
"""Beginnings of the texts that it writes."""


@dataclass
class WordplaySettings:
    """Settings of the experiment."""

    voids = (Void("num_processes", "without strategies"),)

    text: str = setting(MISSING, "The text: a file, or the name of a corpus.")
    output_dir: str = setting("outputs/wordplay", "Output folder.")
    model: str = setting("1m", "A size (1m to 13b), a depth (d12), or a configuration.")
    length: int = setting(128, "Characters per window.")
    train_tokens: int = setting(1_500_000, "Number of characters to train on.")
    pretrain: str = setting(
        "", f"Flags of pretraining, beyond '{DEFAULTS}' and wordplay/pretrain.yaml, such as '--adam_beta2 0.95'."
    )
    launcher: str = setting("cpu2", "Launch configuration of the training.")
    strategies: list[str] = setting([], "Launch configurations to compare: ddp zero1 zero2 zero3 fsdp2.")
    num_processes: int = setting(2, "Processes of each of the strategies.")


def main(settings: WordplaySettings) -> None:
    """Tokenize, train, evaluate; train under each strategy; report."""
    from hmm_datasets.operations.stages import run_or_exit

    run_or_exit(stages(settings))


def stages(settings: WordplaySettings) -> list[tuple[str, str]]:
    """Title and command of every stage."""
    from stage_flags import read_flags

    read_flags(settings.pretrain, GIVEN)
    flags = f"{DEFAULTS} {settings.pretrain}".rstrip()
    folder = settings.output_dir
    tokens, model, report = (shlex.quote(f"{folder}/{name}") for name in ("tokens", "model", "evaluation"))
    data = f"--tokens {shlex.quote(f'{folder}/tokens/text')} --tokenizer {shlex.quote(f'{folder}/tokens/tokenizer')}"
    train = f"--config wordplay/pretrain.yaml {data} --model {shlex.quote(settings.model)} --length {settings.length}"
    result = [
        (
            "The text, one token per character",
            f"hmm-datasets tokenize --vocabulary characters --corpus {shlex.quote(settings.text)} "
            f"--conversations none --test_fraction {TEST_FRACTION} --output_dir {tokens}",
        ),
        (
            f"A model of size {settings.model} on it",
            f"hmm-datasets pretrain --launch {shlex.quote(settings.launcher)} {train} "
            f"--train_tokens {settings.train_tokens} {flags} --output_dir {model}",
        ),
        (
            "Its bits per byte on the held-out part",
            f"hmm-datasets evaluate {model} --targets {shlex.quote(f'{folder}/tokens/text/test')} --tasks text "
            f"--window {settings.length} --stride {max(1, settings.length // 2)} --output_dir {report}",
        ),
    ]
    for name in settings.strategies:
        run_folder = shlex.quote(f"{folder}/strategies/{Path(name).stem}")
        result.append((
            f"The same model on the same rows under {name}, {STRATEGY_STEPS} steps",
            f"hmm-datasets pretrain --launch {shlex.quote(name)} --num_processes {settings.num_processes} "
            f"{train} --max_steps {STRATEGY_STEPS} "
            f"--train_tokens none --logging_steps 5 --save_strategy no {flags} --output_dir {run_folder}",
        ))  # fmt: skip
    names = " ".join(shlex.quote(Path(name).stem) for name in settings.strategies)
    written = f"--prompts {shlex.join(PROMPTS)}"
    script = shlex.quote(str(Path(__file__).with_name("written.py")))
    compared = f" --strategies {names}" if names else ""
    command = f"python {script} {shlex.quote(folder)} {written}{compared}"
    return [*result, ("What it writes" + " and the strategies side by side" * bool(names), command)]


if __name__ == "__main__":
    run(main)
