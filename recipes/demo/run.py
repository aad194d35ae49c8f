"""Run the demo in outputs/demo: some minutes on two cores.

All stages: fit an HMM, pretrain, evaluate, tokenize, midtrain, fine-tune, report.

    hmm-datasets demo

It runs the recipes one after the other, prints the command of each, and stops at the first that fails. Everything is
written to `outputs/demo` in the current folder. Fine-tuning runs on two processes. When started again the demo
continues where it stopped, and does not repeat finished training. `hmm-datasets configs copy demo` copies its
settings, which are then used instead of the shipped ones.
"""

import argparse
import shlex
from pathlib import Path

from hmm_datasets.operations.stages import run_or_exit

REPORT = f"python {shlex.quote(str(Path(__file__).with_name('report.py')))}"
RECIPE = "hmm-datasets {} --config demo/{}.yaml"
STAGES = (
    ("Words of real stories, and an HMM fitted to them", RECIPE.format("fit", "fit_hmm")),
    ("A Llama on sequences drawn from it", RECIPE.format("pretrain", "pretrain_hmm")),
    ("How far from the optimum?", RECIPE.format("evaluate", "evaluate_hmm")),
    ("BPE, token streams", RECIPE.format("tokenize", "tokenize_corpus")),
    ("A Llama on the stories", RECIPE.format("pretrain", "pretrain_text")),
    ("Midtraining on stories and conversations", RECIPE.format("midtrain", "midtrain")),
    ("Bits per byte of held-out stories", RECIPE.format("evaluate", "evaluate_text")),
    ("Fine-tuning on story questions, on two processes", RECIPE.format("sft", "sft") + " --launch cpu2"),
    ("Report", f"{REPORT} --experiment outputs/demo --license cdla-sharing-1.0"),
)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    run_or_exit(STAGES)
