# /// script
# requires-python = ">=3.11"
# dependencies = ["hmm-datasets[peft]"]
# ///

"""Report in a folder how far a model is from the optimum.

It is measured against the exact optimum of an HMM, on held-out text, on the questions of CORE, or all of these.

    hmm-datasets evaluate outputs/demo/pretrain_hmm --launch cpu2 --targets outputs/demo/hmm/hmm

Without `--launch` it runs in one process. It writes `report.json`, `report.html`, `plots/` and `items/` to
`output_dir`, by default `evaluation/` in the model's folder.
"""

from hmm_datasets.evaluation.settings import EvaluationSettings
from hmm_datasets.runtime.program import run


def main(settings: EvaluationSettings) -> None:
    """Evaluate the model."""
    from hmm_datasets.evaluation.evaluation import evaluate_model

    evaluate_model(settings)


if __name__ == "__main__":
    run(main)
