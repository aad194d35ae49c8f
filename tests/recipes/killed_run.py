"""A small run that records its current phase, so that tests can kill it in each phase."""

import os
import time
from pathlib import Path

from hmm_datasets.training.fields import PretrainFields

GLOBAL_BATCH, LENGTH = 12, 16


def phase(name):
    """Append the phase that begins to a file of this rank."""
    if "PHASES" in os.environ:
        with open(f"{os.environ['PHASES']}-{os.getpid()}", "a") as file:
            file.write(f"{name}\n")


def train(settings: PretrainFields):
    """Train, evaluate and save as the recipes do; a step takes as long as `STEP_SECONDS` says."""
    from transformers import set_seed

    from hmm_datasets.training.model_configs import ModelSettings, new_model
    from hmm_datasets.training.run import train_and_save
    from hmm_datasets.training.sources import DataSettings
    from hmm_datasets.training.trainer import Pretrainer

    class Phases(Pretrainer):
        def training_step(self, *args, **kwargs):
            phase("training")
            time.sleep(float(os.environ.get("STEP_SECONDS", "0")))
            return super().training_step(*args, **kwargs)

        def evaluate(self, *args, **kwargs):
            phase("evaluation")
            time.sleep(float(os.environ.get("STEP_SECONDS", "0")))
            return super().evaluate(*args, **kwargs)

        def _save_checkpoint(self, *args, **kwargs):
            phase("saving")
            super()._save_checkpoint(*args, **kwargs)

        def save_finished(self):
            phase("saving the model")
            super().save_finished()

    phase("building")
    set_seed(settings.seed)
    folder = Path(settings.output_dir).with_name("hmm")
    data = DataSettings(hmm=str(folder), length=LENGTH, num_test_sequences=24).load()
    model = new_model(ModelSettings("d1").config(data))
    plan = settings.plan(data, model)
    trainer = Phases(model=model, args=settings, plan=plan, eval_dataset=data.test_rows)
    return train_and_save(trainer, settings={}, data=data.identity)


if __name__ == "__main__":
    phase("import")
    from hmm_datasets.runtime.program import run

    phase("rendezvous")
    run(train)
