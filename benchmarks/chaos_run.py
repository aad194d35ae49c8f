"""The run of `chaos.py`: a small Llama on Mess3, whose loss is made NaN on rank 1 when a file asks for it."""

import os
import time
from pathlib import Path

from hmm_datasets.runtime.program import run
from hmm_datasets.training.fields import PretrainFields


def main(settings: PretrainFields) -> None:
    """Train as the recipes do; a step takes at least `STEP_SECONDS`."""
    from transformers import set_seed

    from hmm_datasets.training.model_configs import ModelSettings, new_model
    from hmm_datasets.training.run import train_and_save
    from hmm_datasets.training.sources import DataSettings
    from hmm_datasets.training.trainer import Pretrainer

    class Disturbed(Pretrainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            found = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
            wanted = Path(os.environ.get("MAKE_NAN", "/nowhere"))
            if model.training and self.args.process_index == 1 and wanted.exists():
                wanted.unlink()  # once, as a fault of the hardware
                return found * float("nan")
            return found

        def get_batch_samples(self, *args):
            time.sleep(float(os.environ.get("STEP_SECONDS", "0")))
            return super().get_batch_samples(*args)

    set_seed(settings.seed)
    data = DataSettings(hmm=os.environ["HMM"], length=32, num_test_sequences=64).load()
    model = new_model(ModelSettings("1m").config(data))
    plan = settings.plan(data, model)
    trainer = Disturbed(model=model, args=settings, plan=plan, eval_dataset=data.test_rows)
    train_and_save(trainer, settings={}, data=data.identity)


if __name__ == "__main__":
    run(main)
