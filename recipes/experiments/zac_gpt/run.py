"""From text to a chat model of half a billion parameters: pretraining, midtraining, fine-tuning and LIMA, measured.

    hmm-datasets experiment zac-gpt --config zac_gpt/full.yaml [--launcher ddp --num_processes 8]
    hmm-datasets experiment zac-gpt --config zac_gpt/small.yaml

A tokenizer is trained on the first documents of a corpus, and corpus and conversations become token streams. A Llama
is pretrained on the text with Muon, midtrained on 30% text and 70% packed conversations, fine-tuned on conversations
with the loss on the assistant's words, and then on the thousand of LIMA three times. After each stage, and at the
checkpoints that pretraining keeps, the model is measured: bits per byte, CORE (with `core_data`) and facts, and after
each stage chat.
`stages.md` has all stages side by side, `along.png` the curves along pretraining. Settings of the stages are in
`zac_gpt/pretrain.yaml`, `midtrain.yaml`, `sft.yaml` and `lima.yaml`; `hmm-datasets plan pretrain --config
zac_gpt/pretrain.yaml --assumed_vocab_size 32768` plans one before there are data. When started again the experiment
continues where it stopped: streams and runs continue, finished evaluations are not repeated.
"""

import shlex
from dataclasses import MISSING, dataclass
from pathlib import Path

from hmm_datasets.operations.launching import recipe_settings
from hmm_datasets.runtime.program import run
from hmm_datasets.runtime.settings import setting

CHAT_DATA = "smoltalk"
"""Conversations whose test split chat is measured on, unless the flags of evaluations have others."""
STAGES = ("pretrain", "midtrain", "sft", "lima")
RECIPES = {"lima": "sft", "tokenizer": "tokenize"}
"""The recipe of a stage that has not its name."""
DEFAULTS = {"tokenizer": "--vocab_size 32768 --max_documents 500_000", "tokenize": "--test_fraction 0.001"}
"""Flags of stages without a YAML file that others take the place of."""
TEXT = ("output_dir", "corpus", "conversations", "tokenizer")
GIVEN = {"tokenizer": (*TEXT, "test_fraction"), "tokenize": TEXT}
"""Settings of these stages that the experiment gives; of others the output folder."""


@dataclass
class ZacSettings:
    """Settings of the experiment. Those named as a stage are flags for it, beyond its YAML file or DEFAULTS."""

    output_dir: str = setting(MISSING, "Output folder.")
    corpus: str = setting("fineweb-edu", "The text: a corpus, a file or a Hub data set.")
    conversations: list[str] = setting(["smoltalk", "ultrachat"], "Corpora of conversations.")
    tokenizer: str = setting("", f"Flags of training the tokenizer on text, beyond '{DEFAULTS['tokenizer']}'.")
    tokenize: str = setting(
        "", f"Flags of making streams of each corpus, beyond '{DEFAULTS['tokenize']}', such as '--max_documents 3000'."
    )
    pretrain: str = setting("", "Flags of pretraining, such as '--model 250m'.")
    midtrain: str = setting(
        "", "Flags of midtraining, such as '--weights 0.3 0.35 0.35', of text and each of the conversations."
    )
    sft: str = setting("", "Flags of fine-tuning.")
    lima: str = setting("", "Flags of the stage on LIMA.")
    evaluate: str = setting("", "Flags of every evaluation.")
    core_data: str | None = setting(None, "Folder with the questions of CORE; without it CORE is not measured.")
    launcher: str = setting("ddp", "Launch configuration of every stage of training.")
    num_processes: int = setting(8, "Processes of every stage of training.")


def main(settings: ZacSettings) -> None:
    """Tokenize, train every stage, measure each."""
    from hmm_datasets.operations.stages import run_or_exit

    run_or_exit(stages(settings))


def stages(settings: ZacSettings) -> list[tuple[str, str]]:
    """Title and command of every stage that is not done."""
    from stage_flags import read_flags

    read = {}
    for name in (*DEFAULTS, *STAGES, "evaluate"):
        flags = f"{DEFAULTS.get(name, '')} {getattr(settings, name)}"
        fixed = GIVEN.get(name, ["output_dir"])
        read[name] = read_flags(flags, fixed, recipe=RECIPES.get(name, name), name=name)
    root = settings.output_dir
    sample, tokens = f"{root}/tokenizer", f"{root}/tokens"
    tokenize = recipe_settings("tokenize")[0](
        output_dir=tokens, conversations=settings.conversations, tokenizer=f"{sample}/tokenizer"
    )
    chats = [f"{tokens}/{folder}" for folder in tokenize.chat_folders.values()]
    corpus = f"--corpus {shlex.quote(settings.corpus)}"
    launch = f"--launch {shlex.quote(settings.launcher)} --num_processes {settings.num_processes}"
    streams = shlex.join([f"{tokens}/text", *chats])
    data = {
        "pretrain": f"--tokens {tokens}/text --tokenizer {tokens}/tokenizer",
        "midtrain": f"--model {root}/pretrain --optimizer_from {root}/pretrain --streams {streams} "
        f"--weigh_by tokens --packed_streams {shlex.join(chats)}",
        "sft": f"--model {root}/midtrain",
        "lima": f"--model {root}/sft",
    }
    titles = {
        "pretrain": "Pretraining on text",
        "midtrain": "Midtraining on text and packed conversations",
        "sft": "Fine-tuning on conversations",
        "lima": "Fine-tuning on LIMA, three times",
    }
    result = [
        (
            "A tokenizer from the first documents",
            f"hmm-datasets tokenize {corpus} --test_fraction {read['tokenize']['test_fraction']} --conversations none "
            f"{DEFAULTS['tokenizer']} {settings.tokenizer} --output_dir {sample}",
        ),
        (
            "Text and conversations as token streams",
            f"hmm-datasets tokenize {corpus} --conversations {shlex.join(settings.conversations)} "
            f"--tokenizer {sample}/tokenizer {DEFAULTS['tokenize']} {settings.tokenize} --output_dir {tokens}",
        ),
    ]
    for name in STAGES:
        result.append((
            titles[name],
            f"hmm-datasets {RECIPES.get(name, name)} {launch} --config zac_gpt/{name}.yaml {data[name]} "
            f"{getattr(settings, name)} --output_dir {root}/{name}",
        ))  # fmt: skip
        if not (Path(root) / "evaluation" / name / "report.json").exists():
            result.append((f"{name}: measured", _evaluation(settings, name)))
    here = Path(__file__).parent
    along = f"python {shlex.quote(str(here / 'along.py'))} {root} --targets {tokens}/text/test"
    flags = _without_chat(settings.evaluate)
    along += _core(settings) + (f" --flags {shlex.quote(flags)}" if flags else "")
    table = f"python {shlex.quote(str(here.parent / 'chat_ladder' / 'table.py'))} {root} --stages {' '.join(STAGES)}"
    return [*result, ("Along pretraining", along), ("All stages", table)]


def _evaluation(settings: ZacSettings, name: str) -> str:
    root = settings.output_dir
    tasks = "text chat completions" + " core" * bool(settings.core_data)
    return (
        f"hmm-datasets evaluate {root}/{name} --targets {root}/tokens/text/test --tasks {tasks} "
        f"--chat_data {CHAT_DATA}{_core(settings)} {settings.evaluate} "
        f"--output_dir {root}/evaluation/{name}"
    )


def _without_chat(flags: str) -> str:
    """Flags of evaluations for those along pretraining, where chat is not measured.

    ```python
    >>> _without_chat("--window 128 --chat_questions 8 --batch_size 4")
    '--window 128 --batch_size 4'

    ```
    """
    kept: list[str] = []
    concerns_chat = False
    for word in shlex.split(flags):
        concerns_chat = word.startswith("--chat_") if word.startswith("--") else concerns_chat
        kept += [] if concerns_chat else [word]
    return shlex.join(kept)


def _core(settings: ZacSettings) -> str:
    return "" if settings.core_data is None else f" --core_data {shlex.quote(settings.core_data)}"


if __name__ == "__main__":
    run(main)
