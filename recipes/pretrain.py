# /// script
# requires-python = ">=3.11"
# dependencies = ["hmm-datasets"]
# ///

"""Pretrain a model, on an HMM, a family or text.

    hmm-datasets pretrain --launch cpu2 --config demo/pretrain_hmm.yaml [--learning_rate 3e-3 ...]

`hmm-datasets plan pretrain --config demo/pretrain_hmm.yaml` shows what the run will consume. Optimizer step `t` trains
on rows `[t G, (t + 1) G)`, where `G` is the global batch, on any number of processes. The same command continues a
stopped run. `output_dir` has the model, `run.json` (settings, versions, command, commit), `history.jsonl` (one row per
log step) and `checkpoint-N/`.
"""

from dataclasses import asdict

from hmm_datasets.runtime.program import run
from hmm_datasets.training.fields import PretrainFields
from hmm_datasets.training.model_configs import ModelSettings
from hmm_datasets.training.sources import DataSettings


def main(data_settings: DataSettings, model_settings: ModelSettings, settings: PretrainFields) -> None:
    """Open the data, build the model, plan, train, save."""
    from transformers import default_data_collator, set_seed

    from hmm_datasets.evaluation.baselines import BaselineComparison
    from hmm_datasets.training.model_configs import new_model
    from hmm_datasets.training.refusals import check_planned
    from hmm_datasets.training.run import train_and_save
    from hmm_datasets.training.trainer import Pretrainer

    check_planned(settings)
    set_seed(settings.seed)
    data = data_settings.load()
    model = new_model(model_settings.config(data))
    plan = settings.plan(data, model)
    evaluation = {}
    if data.source is not None:
        baselines = BaselineComparison(data.source)
        evaluation = {"compute_metrics": baselines.summarize, "preprocess_logits_for_metrics": baselines.reduce_logits}
    trainer = Pretrainer(
        model=model,
        args=settings,
        plan=plan,
        eval_dataset=data.test_rows,
        processing_class=data.tokenizer,
        data_collator=default_data_collator,  # with a tokenizer the Trainer would choose a collator that pads
        **evaluation,
    )
    chosen = {**asdict(data_settings), **asdict(model_settings)}
    train_and_save(trainer, settings=chosen, data=data.identity)


if __name__ == "__main__":
    run(main)
