"""A profile of some steps: which operations take the time, as a table, and as a trace to open in a browser.

Three steps are left out first, which compile, allocate and fill caches. On every rank torch's profiler then records
`profile_steps` steps, and each writes `profile/rank-N.json.gz`, a trace for https://ui.perfetto.dev or
`chrome://tracing`. Rank 0 also writes `profile/operations.txt`, the operations by their own time, and shows its first
lines. Recording slows the steps down, so their times in the log are not those of training.
"""

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from transformers import TrainerCallback

from ...files import atomic_file

if TYPE_CHECKING:
    from ..run_context import RunContext

FOLDER_NAME = "profile"
_LEFT_OUT = 3
_ROWS, _SHOWN = 60, 12


class Profile(TrainerCallback):
    """Profiles the steps after the third one of this start.

    Args:
        run ([`~hmm_datasets.training.run_context.RunContext`]): the run.
    """

    def __init__(self, run: "RunContext"):
        self._run = run
        self.folder = Path(run.args.output_dir) / FOLDER_NAME
        self._profiler: torch.profiler.profile | None = None
        self._left = _LEFT_OUT

    def on_step_end(self, args, state, control, **kwargs):
        """Start after the third step, and write once enough steps are recorded."""
        self._left -= 1
        if self._left == 0:
            self._start()
        elif self._profiler is not None and self._left == -args.profile_steps:
            self._finish(state.global_step - args.profile_steps + 1, state.global_step)

    def on_train_end(self, args, state, control, **kwargs):
        """Write what there is, if the run ends while it is recorded."""
        if self._profiler is not None and self._left < 0:
            self._finish(state.global_step + self._left + 1, state.global_step)

    def _start(self) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self._run.args.device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._profiler = torch.profiler.profile(activities=activities, acc_events=True)
        self._profiler.start()

    def _finish(self, first: int, last: int) -> None:
        profiler, self._profiler = self._profiler, None
        profiler.stop()
        trace = self.folder / f"rank-{self._run.args.process_index}.json.gz"
        with tempfile.TemporaryDirectory() as folder, atomic_file(trace) as temporary:
            compressed = Path(folder, trace.name)  # the profiler compresses if the name ends so
            profiler.export_chrome_trace(str(compressed))
            shutil.copyfile(compressed, temporary)
        if self._run.args.process_index != 0:
            return
        by = "self_cuda_time_total" if self._run.args.device.type == "cuda" else "self_cpu_time_total"
        table = profiler.key_averages().table(sort_by=by, row_limit=_ROWS, max_name_column_width=48)
        text = f"Steps {first:,} to {last:,} on rank 0, recording included.\n{table}\n"
        with atomic_file(self.folder / "operations.txt") as temporary:
            temporary.write_text(text, encoding="utf-8")
        self._run.say("\n".join(text.splitlines()[: _SHOWN + 4]))
        self._run.say(f"{self.folder}/: operations.txt, and a trace of each rank for https://ui.perfetto.dev")
