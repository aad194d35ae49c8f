"""A program of six short steps, each with a checkpoint, that goes on after the newest: `supervised_steps.py RUN`.

It is killed once in the second step and once in the fourth, by itself.
"""

import os
import signal
import sys
import time
from pathlib import Path

from hmm_datasets.files import atomic_folder
from hmm_datasets.runtime import heartbeats
from hmm_datasets.runtime.lock import exclusive_lock
from hmm_datasets.runtime.one_line_errors import one_line_errors
from hmm_datasets.runtime.parent_watch import end_with_launcher

if __name__ == "__main__":
    run = Path(sys.argv[1])
    end_with_launcher()
    with one_line_errors(), exclusive_lock(run), heartbeats.heartbeat(run, every=0.1):
        found = [int(path.name.removeprefix("checkpoint-")) for path in run.glob("checkpoint-*")]
        for step in range(max(found, default=0) + 1, 7):
            heartbeats.enter("data", step)
            time.sleep(0.1)
            if step in (2, 4) and not (run / f"killed-{step}").exists():
                (run / f"killed-{step}").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            with atomic_folder(run / f"checkpoint-{step}") as temporary:
                (temporary / "weights").write_text(str(step) * 1000)
