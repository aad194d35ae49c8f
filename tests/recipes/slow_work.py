"""A recipe whose epochs or batches take 0.3 s more, with a heartbeat every 0.2 s: `slow_work.py RECIPE ARGUMENTS`."""

import runpy
import sys
import time

from hmm_datasets.runtime import heartbeats

if __name__ == "__main__":
    enter = heartbeats.enter

    def enter_slowly(phase, step=None):
        enter(phase, step)
        if phase == "working":
            time.sleep(0.3)

    heartbeats.enter = enter_slowly
    heartbeats.heartbeat.__wrapped__.__defaults__ = (0.2,)
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
