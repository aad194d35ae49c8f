"""The whole road in some minutes on two cores: text, HMM, stream, pretrain, measure, midtrain, SFT, report, answers.

    python recipes/demo/run.py

Runs the recipes, each as its own command, which is printed; stops at the first that fails. The model of the HMM and
that of the stories need nothing of each other and are trained side by side, a core each; fine-tuning runs on two
processes. Started again it goes on where it stopped: training that is done is not done twice.
"""

import sys
from pathlib import Path

from hmm_datasets.stages import SideBySide, run_stages

RECIPE = "python recipes/{}.py --config recipes/demo/{}.yaml"
LAUNCH = "accelerate launch --config_file accelerate_configs/cpu2.yaml recipes/{}.py --config recipes/demo/{}.yaml"
HMM = (
    ("Words of real stories, and an HMM fitted to them", RECIPE.format("fit_hmm", "fit_hmm")),
    ("A Llama on sequences drawn from it", RECIPE.format("pretrain", "pretrain_hmm")),
    ("How far from the optimum?", RECIPE.format("evaluate", "evaluate_hmm")),
)
TEXT = (
    ("BPE, token streams", RECIPE.format("tokenize_corpus", "tokenize_corpus")),
    ("A Llama on the stories", RECIPE.format("pretrain", "pretrain_text")),
    ("Midtraining on stories and conversations", RECIPE.format("midtrain", "midtrain")),
    ("Bits per byte of held-out stories", RECIPE.format("evaluate", "evaluate_text")),
)
STAGES = (
    SideBySide((HMM, TEXT)),
    ("Fine-tuning on story questions, on two processes", LAUNCH.format("sft", "sft")),
    ("Report", "python recipes/report.py --experiment outputs/demo"),
    ("Push", RECIPE.format("push", "push")),
    ("What the chat model answers to questions it never saw", "python recipes/answers.py --model outputs/demo/sft"),
)


if __name__ == "__main__":
    sys.exit(run_stages(STAGES, Path(__file__).resolve().parents[2]))
