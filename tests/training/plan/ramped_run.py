"""A tiny run with the settings of its command line, for a launcher; each rank records the rows it trains on."""

import json
import sys
from pathlib import Path

from hmm_datasets.runtime.program import run
from hmm_datasets.training.fields import PretrainFields


def main(settings: PretrainFields) -> None:

    sys.path.append(str(Path(__file__).parents[1]))  # which has a module that `run` imports
    from tiny_runs import random_rows, tiny_model
    from transformers.data.data_collator import default_data_collator

    from hmm_datasets.training.run import train_and_save
    from hmm_datasets.training.trainer import Pretrainer

    folder = Path(settings.output_dir)

    class Logged(Pretrainer):
        def training_step(self, model, inputs, *rest):
            if inputs is not None:
                row = {"step": self.state.global_step, "rows": inputs["input_ids"].tolist()}
                with open(folder / f"rows-{self.args.process_index}.jsonl", "a") as file:
                    file.write(json.dumps(row) + "\n")
            return super().training_step(model, inputs, *rest)

    folder.mkdir(parents=True, exist_ok=True)
    trainer = Logged(
        model=tiny_model(layers=2),
        args=settings,
        train_dataset=random_rows(200, ignored=True),
        data_collator=default_data_collator,
    )
    train_and_save(trainer, settings={}, data={})


if __name__ == "__main__":
    run(main)
