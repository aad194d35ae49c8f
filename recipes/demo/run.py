"""The whole road in some minutes on two cores: text, HMM, stream, pretrain, measure, midtrain, SFT, report, answers.

    hmm-datasets demo

Runs the recipes, each as its own command, which is printed; stops at the first that fails. Everything is written to
`outputs/demo` in the current folder. The model of the HMM and that of the stories need nothing of each other and are
trained side by side, a core each; fine-tuning runs on two processes. Started again it goes on where it stopped:
training that is done is not done twice. `hmm-datasets configs copy demo` makes copies of its settings, which are then
used in place of the shipped ones.
"""

import argparse
import sys

from hmm_datasets.stages import SideBySide, run_stages

RECIPE = "hmm-datasets {} --config demo/{}.yaml"
HMM = (
    ("Words of real stories, and an HMM fitted to them", RECIPE.format("fit", "fit_hmm")),
    ("A Llama on sequences drawn from it", RECIPE.format("pretrain", "pretrain_hmm")),
    ("How far from the optimum?", RECIPE.format("evaluate", "evaluate_hmm")),
)
TEXT = (
    ("BPE, token streams", RECIPE.format("tokenize", "tokenize_corpus")),
    ("A Llama on the stories", RECIPE.format("pretrain", "pretrain_text")),
    ("Midtraining on stories and conversations", RECIPE.format("midtrain", "midtrain")),
    ("Bits per byte of held-out stories", RECIPE.format("evaluate", "evaluate_text")),
)
STAGES = (
    SideBySide((HMM, TEXT)),
    ("Fine-tuning on story questions, on two processes", RECIPE.format("sft", "sft") + " --launch cpu2"),
    ("Report", "hmm-datasets report --experiment outputs/demo"),
    ("Push", RECIPE.format("push-all", "push")),
    ("What the chat model answers to questions it never saw", "hmm-datasets answers --model outputs/demo/sft"),
)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    sys.exit(run_stages(STAGES))
