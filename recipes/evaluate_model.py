"""Measure a model: against the exact optimum of an HMM, on held-out text, on the questions of CORE, or all of these.

    accelerate launch --config_file accelerate_configs/cpu2.yaml recipes/evaluate_model.py \
        --model outputs/demo/pretrain_hmm --against outputs/demo/hmm/hmm --output_dir outputs/demo/evaluate_hmm

`hmm-datasets evaluate MODEL` does the same in one process. In `output_dir`: `report.json`, `report.html`, `plots/`,
`items/`.
"""

from hmm_datasets.evaluation.evaluation import EvaluationSettings
from hmm_datasets.launch import run


def main(settings: EvaluationSettings) -> None:
    """Measure, write, print."""
    from hmm_datasets.evaluation.evaluation import evaluate_model

    evaluate_model(settings)


if __name__ == "__main__":
    run(main, EvaluationSettings)
