# /// script
# requires-python = ">=3.11"
# dependencies = ["hmm-datasets"]
# ///

"""Train a model further, on a mixture of token streams.

    hmm-datasets midtrain --launch cpu2 --config demo/midtrain.yaml [--weights 0.5 0.5 ...]

Rows are taken from the streams in the given proportions. Their order depends only on their index, so it is the same on
any number of processes and after a resume. `hmm-datasets plan midtrain --config demo/midtrain.yaml` shows what the run
will consume.
"""

from dataclasses import asdict

from hmm_datasets.runtime.program import run
from hmm_datasets.training.fields import PretrainFields
from hmm_datasets.training.sources import MixtureSettings


def main(mixture: MixtureSettings, settings: PretrainFields) -> None:
    """Open the streams, load the model, plan, train, save."""
    from transformers import AutoModelForCausalLM, default_data_collator, set_seed

    from hmm_datasets.training.pretrained import load_pretrained
    from hmm_datasets.training.refusals import check_planned
    from hmm_datasets.training.run import train_and_save
    from hmm_datasets.training.trainer import Pretrainer

    check_planned(settings)
    set_seed(settings.seed)
    data = mixture.load()
    model = load_pretrained(AutoModelForCausalLM, mixture.model)
    plan = settings.plan(data, model)
    trainer = Pretrainer(
        model=model,
        args=settings,
        plan=plan,
        eval_dataset=data.test_rows,
        processing_class=data.tokenizer,
        data_collator=default_data_collator,  # with a tokenizer the Trainer would choose a collator that pads
    )
    train_and_save(trainer, settings=asdict(mixture), data=data.identity, base=mixture.model)


if __name__ == "__main__":
    run(main)
