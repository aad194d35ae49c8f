# /// script
# requires-python = ">=3.11"
# dependencies = ["hmm-datasets"]
# ///

"""Show how a fine-tuned model answered held-out questions: accuracy before and after, and transcripts.

    hmm-datasets answers --model outputs/demo/sft [--transcripts 10]

It reads what `hmm-datasets sft --num_questions` wrote into the model's folder. Transcripts are those of the first
questions, whether the answers are right or wrong.
"""

import argparse
from pathlib import Path

from hmm_datasets.errors import InputError
from hmm_datasets.evaluation.chat.measures import FIGURES_NAME, ROWS_NAME, answers_table, transcripts
from hmm_datasets.files import read_json, read_jsonl
from hmm_datasets.runtime.one_line_errors import one_line_errors


def main() -> None:
    """Read and print the answers."""
    parser = argparse.ArgumentParser(description="Accuracy on held-out questions, and transcripts.")
    parser.add_argument("--model", type=Path, required=True, help="folder of the fine-tuned model")
    parser.add_argument("--transcripts", type=int, default=3, metavar="N", help="answers to show, default 3")
    arguments = parser.parse_args()
    with one_line_errors():
        if not (arguments.model / FIGURES_NAME).exists():
            raise InputError(
                f"{arguments.model}: has no {FIGURES_NAME}; fine-tune with hmm-datasets sft --num_questions 256"
            )
        rows = read_jsonl(arguments.model / ROWS_NAME)[: arguments.transcripts]
        print(answers_table(read_json(arguments.model / FIGURES_NAME)).text())
        print(f"\nThe first {len(rows)} questions:\n\n{transcripts(rows)}")


if __name__ == "__main__":
    main()
