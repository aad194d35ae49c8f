"""From text to a chat model in five stages, each measured by the same evaluation: what is gained, what is forgotten.

    hmm-datasets chat-ladder [--core_data FOLDER]

A small Llama is pretrained on stories, midtrained on stories and conversations, and fine-tuned on questions about
stories. From there it is trained on preferences between right and wrong answers (`dpo`), and, separately, on the
reward of a right answer (`grpo`). Preferences are made of the fine-tuned model's own answers, see `preferences.py`.
After each stage the model is measured on held-out stories, held-out questions, simple facts and, with `--core_data`,
some tasks of CORE; `table.py` shows all stages side by side. Everything is written to `outputs/chat_ladder`. It takes
about ten minutes on two cores; when started again the experiment continues where it stopped.
"""

import argparse
import shlex
import sys
from pathlib import Path

from hmm_datasets.stages import run_stages

ROOT = "outputs/chat_ladder"
QUESTIONS = "story-questions"
CORE_TASKS = "arc_easy copa winograd"


def stages(core_data: str | None = None, max_prompts: int = 4000) -> list[tuple[str, str]]:
    """Title and command of every stage."""
    here = Path(__file__).parent
    tokens = f"{ROOT}/tokens"
    streams = f"{tokens}/text {tokens}/chat"
    preferences = f"--model {ROOT}/sft --output {ROOT}/preferences.jsonl --max_prompts {max_prompts}"
    training = [
        ("BPE, token streams", f"tokenize --config demo/tokenize_corpus.yaml --output_dir {tokens}"),
        (
            "pretrain: a Llama on stories",
            "pretrain --launch cpu2 --config demo/pretrain_text.yaml --per_device_train_batch_size 16 "
            f"--tokens {tokens}/text --tokenizer {tokens}/tokenizer --train_tokens 2_000_000",
        ),
        (
            "midtrain: 70% stories, 30% conversations by tokens, the latter packed whole",
            f"midtrain --launch cpu2 --config demo/midtrain.yaml --model {ROOT}/pretrain --streams {streams} "
            f"--weights 0.7 0.3 --weigh_by tokens --packed_streams {tokens}/chat --optimizer_from {ROOT}/pretrain",
        ),
        (
            "sft: questions about stories",
            f"sft --launch cpu2 --config demo/sft.yaml --model {ROOT}/midtrain --num_questions 0 "
            "--max_conversations 1500",
        ),
        ("Right and wrong answers of that model", f"python {shlex.quote(str(here / 'preferences.py'))} {preferences}"),
        (
            "dpo: right answers rather than wrong ones",
            f"dpo --launch cpu2 --config chat_ladder/dpo.yaml --model {ROOT}/sft "
            f"--preferences {ROOT}/preferences.jsonl",
        ),
        (
            "grpo: rewards for right answers",
            f"grpo --launch cpu2 --config chat_ladder/grpo.yaml --model {ROOT}/sft --prompts {QUESTIONS}",
        ),
    ]
    found = []
    for title, command in training:
        if command.startswith("python"):
            found.append((title, command))
            continue
        name = command.partition(" ")[0]
        output = "" if name == "tokenize" else f" --output_dir {ROOT}/{name}"
        found.append((title, f"hmm-datasets {command}{output}"))
    core = "" if core_data is None else f" --core_data {shlex.quote(core_data)} --core_tasks {CORE_TASKS}"
    core += "" if core_data is None else " --core_max_per_task 200"
    for name in STAGES:
        found.append((
            f"{name}: on held-out stories and questions",
            f"hmm-datasets evaluate {ROOT}/{name} --targets {tokens}/text/test --window 128 --by_document true "
            f"--chat_data {QUESTIONS} --chat_max_new_tokens 16 --tasks text chat completions"
            f"{' core' * bool(core)}{core} --output_dir {ROOT}/evaluation/{name}",
        ))  # fmt: skip
    found.append(("All stages", f"python {shlex.quote(str(here / 'table.py'))} {ROOT} --stages {' '.join(STAGES)}"))
    return found


STAGES = ("pretrain", "midtrain", "sft", "dpo", "grpo")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--core_data", metavar="FOLDER", help="folder with the questions of CORE")
    parser.add_argument("--max_prompts", type=int, default=4000, metavar="N", help="questions to make preferences of")
    arguments = parser.parse_args()
    sys.exit(run_stages(stages(arguments.core_data, arguments.max_prompts)))
