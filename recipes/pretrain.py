"""Pretrain a Llama-style model: on sequences of an HMM or a family, drawn as they are needed, or on tokenized text.

    hmm-datasets pretrain --launch cpu2 --config demo/pretrain_hmm.yaml [--learning_rate 3e-3 ...]

What the run will consume: `hmm-datasets plan demo/pretrain_hmm.yaml`. Optimizer step t trains on rows
[t G, (t + 1) G), G the global batch, on any number of processes. The same command goes on where a stopped run was.
Beside the model in `output_dir`: `run.json` (settings, versions, command, commit), `history.jsonl` (a row a log step),
`checkpoint-N/`.
"""

from dataclasses import asdict

from hmm_datasets.launch import run
from hmm_datasets.training.models import ModelSettings
from hmm_datasets.training.sources import DataSettings


def main(data_settings: DataSettings, model_settings: ModelSettings, settings) -> None:
    """Open the data, build the model, plan, train, save."""
    from transformers import default_data_collator, set_seed

    from hmm_datasets.evaluation.baselines import BaselineComparison
    from hmm_datasets.training.models import new_model
    from hmm_datasets.training.run import train_and_save
    from hmm_datasets.training.trainer import Pretrainer

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
        data_collator=default_data_collator,  # the Trainer's choice for a tokenizer pads row by row
        **evaluation,
    )
    chosen = {**asdict(data_settings), **asdict(model_settings)}
    train_and_save(trainer, settings=chosen, data=data.identity)


if __name__ == "__main__":
    run(main, DataSettings, ModelSettings, "PretrainSettings")
