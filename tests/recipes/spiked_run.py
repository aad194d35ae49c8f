"""A recipe on rows some of which make the loss spike; a rank can be killed in the middle of a step."""

import os
import signal
import sys
from pathlib import Path

from hmm_datasets.training.fields import PretrainFields

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "training"))


def main(settings: PretrainFields):
    """Train as the recipes do."""
    import bad_rows
    from transformers.data.data_collator import default_data_collator

    from hmm_datasets.training.run import train_and_save
    from hmm_datasets.training.trainer import Pretrainer

    class Killed(Pretrainer):
        def training_step(self, *args, **kwargs):
            if os.environ.get("KILL") == f"{self.state.global_step}:{self.args.process_index}":
                os.kill(os.getpid(), signal.SIGKILL)
            return super().training_step(*args, **kwargs)

    trainer = Killed(
        model=bad_rows.model(),
        args=settings,
        train_dataset=bad_rows.WithBadRows([int(row) for row in os.environ["BAD"].split(",")]),
        data_collator=default_data_collator,
    )
    train_and_save(trainer, settings={}, data={})


if __name__ == "__main__":
    from hmm_datasets.runtime.program import run

    run(main)
