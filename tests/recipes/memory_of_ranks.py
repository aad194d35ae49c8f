"""`recipes/pretrain.py` with a record of every allocation: `memory-RANK.json` has the most bytes at once."""

import json
import os
import runpy
import sys
from pathlib import Path

import numpy as np
from torch.profiler import ProfilerActivity, profile
from transformers import TrainerCallback

from hmm_datasets.training.trainer import Pretrainer

FOLDER = Path(sys.argv.pop(1) if __name__ == "__main__" else "")
RECORD = profile(activities=[ProfilerActivity.CPU], profile_memory=True)


class Recorder(TrainerCallback):
    """Ends the record with the last step, before anything is saved."""

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == state.max_steps:
            RECORD.__exit__(None, None, None)
            events = [event for event in RECORD.profiler.kineto_results.events() if event.name() == "[memory]"]
            changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
            (FOLDER / f"memory-{os.environ['RANK']}.json").write_text(json.dumps(int(np.cumsum(changes).max())))


class RecordedPretrainer(Pretrainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.add_callback(Recorder())


if __name__ == "__main__":
    sys.modules["hmm_datasets.training.trainer"].Pretrainer = RecordedPretrainer
    RECORD.__enter__()
    runpy.run_path("recipes/pretrain.py", run_name="__main__")
