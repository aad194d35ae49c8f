# /// script
# requires-python = ">=3.11"
# dependencies = ["hmm-datasets"]
# ///

"""Show how a fine-tuned model answered held-out questions: accuracy before and after, and transcripts.

    hmm-datasets answers --model outputs/demo/sft [--transcripts 10]

It reads what `hmm-datasets sft --num_questions` wrote into the model's folder. Transcripts are those of the first
questions, whether the answers are right or wrong.
"""

from dataclasses import MISSING, dataclass
from pathlib import Path

from hmm_datasets.errors import InputError
from hmm_datasets.runtime.program import run
from hmm_datasets.runtime.settings import setting


@dataclass
class AnswersSettings:
    """The model whose answers are shown."""

    model: str = setting(MISSING, "Folder of the fine-tuned model.")
    transcripts: int = setting(3, "Number of answers to show.")


def main(settings: AnswersSettings) -> None:
    """Read and print the answers."""
    from hmm_datasets.evaluation.chat.measures import FIGURES_NAME, ROWS_NAME, answers_table, transcripts
    from hmm_datasets.files import read_json, read_jsonl

    folder = Path(settings.model)
    if not (folder / FIGURES_NAME).exists():
        raise InputError(f"{folder}: has no {FIGURES_NAME}; fine-tune with hmm-datasets sft --num_questions 256")
    rows = read_jsonl(folder / ROWS_NAME)[: settings.transcripts]
    print(answers_table(read_json(folder / FIGURES_NAME)).text())
    print(f"\nThe first {len(rows)} questions:\n\n{transcripts(rows)}")


if __name__ == "__main__":
    run(main)
