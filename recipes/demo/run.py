"""The whole road in some minutes on two cores: text, HMM, stream, pretrain, measure, midtrain, SFT, report, push.

    python recipes/demo/run.py

Runs the recipes one after another, each as its own command, which is printed; stops at the first that fails. Started
again it goes on where it stopped: training that is done is not done twice.
"""

import sys
from pathlib import Path

from hmm_datasets.stages import run_stages

LAUNCH = "accelerate launch --config_file accelerate_configs/{}.yaml recipes/{}.py --config recipes/demo/{}.yaml"
STAGES = (
    ("Words of real stories, and an HMM fitted to them", LAUNCH.format("cpu2", "fit_hmm", "fit_hmm")),
    ("A Llama on sequences drawn from it, on two processes", LAUNCH.format("cpu2", "pretrain", "pretrain_hmm")),
    ("How far from the optimum?", LAUNCH.format("cpu2", "evaluate", "evaluate_hmm")),
    ("BPE, token streams", "python recipes/tokenize_corpus.py --config recipes/demo/tokenize_corpus.yaml"),
    ("A Llama on the stories", LAUNCH.format("cpu2", "pretrain", "pretrain_text")),
    ("Midtraining on stories and conversations", LAUNCH.format("cpu2", "midtrain", "midtrain")),
    ("Fine-tuning on conversations, and an answer", LAUNCH.format("cpu2", "sft", "sft")),
    ("Bits per byte of held-out stories", LAUNCH.format("cpu2", "evaluate", "evaluate_text")),
    ("Report", "python recipes/report.py --experiment outputs/demo"),
    ("Push", "python recipes/push.py --config recipes/demo/push.yaml"),
)


if __name__ == "__main__":
    sys.exit(run_stages(STAGES, Path(__file__).resolve().parents[2]))
