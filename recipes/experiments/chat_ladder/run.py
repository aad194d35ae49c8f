"""From text to a chat model in five stages, each measured by the same evaluation: what is gained, what is forgotten.

    hmm-datasets experiment chat-ladder [--core_data FOLDER]

A small Llama is pretrained on stories, midtrained on stories and conversations, and fine-tuned on questions about
stories. From there it is trained on preferences between right and wrong answers (`dpo`), and, separately, on the
reward of a right answer (`grpo`). Preferences are made of the fine-tuned model's own answers, see `preferences.py`.
After each stage the model is measured on held-out stories, held-out questions, simple facts and, with `--core_data`,
some tasks of CORE; `table.py` shows all stages side by side. Everything is written to `outputs/chat_ladder`. It takes
about ten minutes on two cores; when started again the experiment continues where it stopped.

    hmm-datasets experiment chat-ladder --model FOLDER --preferences FILE [--text FILE] [--core_data FOLDER]

begins with a pretrained chat model instead. It is measured as it is, fine-tuned on 500 instructions with LoRA (`lora`)
and, separately, with all its weights (`sft`), and from the latter trained on preferences (`dpo`).
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hmm_datasets.errors import InputError
from hmm_datasets.runtime.program import run
from hmm_datasets.runtime.setting_rules import Void
from hmm_datasets.runtime.settings import setting

MAX_PROMPTS = 4000
"""Questions to make preferences of."""
STAGES = ("pretrain", "midtrain", "sft", "dpo", "grpo")
QUESTIONS, INSTRUCTIONS = "story-questions", "instructions-sample"
CORE_TASKS = "arc_easy copa winograd"


@dataclass
class ChatLadderSettings:
    """Settings of the experiment."""

    voids = (Void("text", "without model"),)

    output_dir: str = setting("outputs/chat_ladder", "Output folder.")
    model: str | None = setting(None, "A pretrained chat model to begin with; by default one is trained from text.")
    preferences: str | None = setting(None, "With a model: a corpus of preferences.")
    text: str = setting("tinystories-sample", "With a model: the text whose bits per byte are measured.")
    core_data: str | None = setting(None, "Folder with the questions of CORE.")

    def __post_init__(self):
        if (self.model is None) != (self.preferences is None):
            raise InputError("model and preferences: give both to begin with a pretrained model, or neither")


def main(settings: ChatLadderSettings) -> None:
    """Train and measure every stage, compare."""
    from hmm_datasets.operations.stages import run_or_exit

    run_or_exit(stages_from_text(settings) if settings.model is None else stages_from_a_model(settings))


def stages_from_a_model(settings: ChatLadderSettings) -> list[tuple[str, str]]:
    """Title and command of every stage that begins with a pretrained model."""
    root, model, preferences, text = (
        shlex.quote(str(argument))
        for argument in (settings.output_dir, settings.model, settings.preferences, settings.text)
    )
    tuned = f"hmm-datasets sft --config chat_ladder/pretrained_sft.yaml --conversations {INSTRUCTIONS}"
    commands = [
        (
            "lora: 500 instructions, an adapter",
            f"{tuned} --model {model} --use_peft --learning_rate 2e-4 --output_dir {root}/lora",
        ),
        ("sft: 500 instructions, all weights", f"{tuned} --model {model} --output_dir {root}/sft"),
        (
            "dpo: 200 polite answers rather than impolite ones",
            f"hmm-datasets dpo --config chat_ladder/pretrained_dpo.yaml --model {root}/sft "
            f"--preferences {preferences} --output_dir {root}/dpo",
        ),
    ]
    measures = (
        f"--targets {text} --max_documents 60 --chat_data {INSTRUCTIONS} --chat_questions 50 "
        f"--batch_size 8 {_tasks(settings, 60)}"
    )
    measured = {"pretrained": model} | {name: f"{root}/{name}" for name in ("lora", "sft", "dpo")}
    for name, folder in measured.items():
        command = f"hmm-datasets evaluate {folder} {measures} --output_dir {root}/evaluation/{name}"
        commands.append((f"{name}: on stories and held-out instructions", command))
    return [*commands, _compared(root, list(measured))]


def stages_from_text(settings: ChatLadderSettings) -> list[tuple[str, str]]:
    """Title and command of every stage that begins with text."""
    root = shlex.quote(settings.output_dir)
    tokens = f"{root}/tokens"
    streams = f"{tokens}/text {tokens}/chat"

    def trained(recipe: str, config: str, flags: str) -> str:
        """The command of a stage that trains, whose run is named by its recipe."""
        return f"hmm-datasets {recipe} --launch cpu2 --config {config} --output_dir {root}/{recipe} {flags}"

    commands = [
        ("BPE, token streams", f"hmm-datasets tokenize --config demo/tokenize_corpus.yaml --output_dir {tokens}"),
        (
            "pretrain: a Llama on stories",
            trained("pretrain", "demo/pretrain_text.yaml", f"--tokens {tokens}/text --tokenizer {tokens}/tokenizer")
            + " --train_tokens 2_000_000 --epochs_ok 5",
        ),
        (
            "midtrain: 70% stories, 30% conversations by tokens, the latter packed whole",
            trained("midtrain", "demo/midtrain.yaml", f"--model {root}/pretrain --streams {streams}")
            + f" --weights 0.7 0.3 --weigh_by tokens --packed_streams {tokens}/chat --optimizer_from {root}/pretrain",
        ),
        (
            "sft: questions about stories",
            trained("sft", "demo/sft.yaml", f"--model {root}/midtrain --num_questions 0 --max_conversations 1500"),
        ),
        (
            "Right and wrong answers of that model",
            f"python {_beside('preferences.py')} --model {root}/sft --output {root}/preferences.jsonl "
            f"--max_prompts {MAX_PROMPTS}",
        ),
        (
            "dpo: right answers rather than wrong ones",
            trained("dpo", "chat_ladder/dpo.yaml", f"--model {root}/sft --preferences {root}/preferences.jsonl"),
        ),
        (
            "grpo: rewards for right answers",
            trained("grpo", "chat_ladder/grpo.yaml", f"--model {root}/sft --prompts {QUESTIONS}"),
        ),
    ]
    commands += [
        (
            f"{name}: on held-out stories and questions",
            f"hmm-datasets evaluate {root}/{name} --targets {tokens}/text/test --window 128 --by_document true "
            f"--chat_data {QUESTIONS} --chat_max_new_tokens 16 {_tasks(settings, 200)} "
            f"--output_dir {root}/evaluation/{name}",
        )
        for name in STAGES
    ]
    return [*commands, _compared(root, STAGES)]


def _tasks(settings: ChatLadderSettings, questions: int) -> str:
    """What is measured, as flags of `evaluate`."""
    tasks = "--tasks text chat completions"
    if settings.core_data is not None:
        core_data = shlex.quote(settings.core_data)
        tasks += f" core --core_data {core_data} --core_tasks {CORE_TASKS} --core_max_per_task {questions}"
    return tasks


def _compared(root: str, names: Sequence[str]) -> tuple[str, str]:
    return "All stages", f"python {_beside('table.py')} {root} --stages {' '.join(names)}"


def _beside(name: str) -> str:
    return shlex.quote(str(Path(__file__).with_name(name)))


if __name__ == "__main__":
    run(main)
