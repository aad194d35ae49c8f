"""From text to a chat model in five stages, each measured by the same evaluation: what is gained, what is forgotten.

    hmm-datasets experiment chat-ladder [--core_data FOLDER]

A small Llama is pretrained on stories, midtrained on stories and conversations, and fine-tuned on questions about
stories. From there it is trained on preferences between right and wrong answers (`dpo`), and, separately, on the
reward of a right answer (`grpo`). Preferences are made of the fine-tuned model's own answers, see `preferences.py`.
After each stage the model is measured on held-out stories, held-out questions, simple facts and, with `--core_data`,
some tasks of CORE; `table.py` shows all stages side by side. Everything is written to `outputs/chat_ladder`. It takes
about ten minutes on two cores; when started again the experiment continues where it stopped.
"""

import argparse
import shlex
from pathlib import Path

from hmm_datasets.stages import run_or_exit

ROOT = "outputs/chat_ladder"
QUESTIONS = "story-questions"
CORE_TASKS = "arc_easy copa winograd"


def stages(core_data: str | None = None, max_prompts: int = 4000) -> list[tuple[str, str]]:
    """Title and command of every stage."""
    tokens = f"{ROOT}/tokens"
    streams = f"{tokens}/text {tokens}/chat"
    found = [
        ("BPE, token streams", f"hmm-datasets tokenize --config demo/tokenize_corpus.yaml --output_dir {tokens}"),
        (
            "pretrain: a Llama on stories",
            _trained("pretrain", "demo/pretrain_text.yaml", f"--tokens {tokens}/text --tokenizer {tokens}/tokenizer")
            + " --train_tokens 2_000_000",
        ),
        (
            "midtrain: 70% stories, 30% conversations by tokens, the latter packed whole",
            _trained("midtrain", "demo/midtrain.yaml", f"--model {ROOT}/pretrain --streams {streams}")
            + f" --weights 0.7 0.3 --weigh_by tokens --packed_streams {tokens}/chat --optimizer_from {ROOT}/pretrain",
        ),
        (
            "sft: questions about stories",
            _trained("sft", "demo/sft.yaml", f"--model {ROOT}/midtrain --num_questions 0 --max_conversations 1500"),
        ),
        (
            "Right and wrong answers of that model",
            f"python {_beside('preferences.py')} --model {ROOT}/sft --output {ROOT}/preferences.jsonl "
            f"--max_prompts {max_prompts}",
        ),
        (
            "dpo: right answers rather than wrong ones",
            _trained("dpo", "chat_ladder/dpo.yaml", f"--model {ROOT}/sft --preferences {ROOT}/preferences.jsonl"),
        ),
        (
            "grpo: rewards for right answers",
            _trained("grpo", "chat_ladder/grpo.yaml", f"--model {ROOT}/sft --prompts {QUESTIONS}"),
        ),
    ]
    tasks = "--tasks text chat completions"
    if core_data is not None:
        tasks += f" core --core_data {shlex.quote(core_data)} --core_tasks {CORE_TASKS} --core_max_per_task 200"
    found += [
        (
            f"{name}: on held-out stories and questions",
            f"hmm-datasets evaluate {ROOT}/{name} --targets {tokens}/text/test --window 128 --by_document true "
            f"--chat_data {QUESTIONS} --chat_max_new_tokens 16 {tasks} --output_dir {ROOT}/evaluation/{name}",
        )
        for name in STAGES
    ]
    return [*found, ("All stages", f"python {_beside('table.py')} {ROOT} --stages {' '.join(STAGES)}")]


def _trained(recipe: str, config: str, flags: str) -> str:
    """The command of a stage that trains, whose run is named by its recipe."""
    return f"hmm-datasets {recipe} --launch cpu2 --config {config} --output_dir {ROOT}/{recipe} {flags}"


def _beside(name: str) -> str:
    return shlex.quote(str(Path(__file__).with_name(name)))


STAGES = ("pretrain", "midtrain", "sft", "dpo", "grpo")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--core_data", metavar="FOLDER", help="folder with the questions of CORE")
    parser.add_argument("--max_prompts", type=int, default=4000, metavar="N", help="questions to make preferences of")
    arguments = parser.parse_args()
    run_or_exit(stages(arguments.core_data, arguments.max_prompts))
