"""Checks of machines before a run, to find what would otherwise fail hours later.

Each check is reported in one line with a remedy: devices, the disk, versions that differ between ranks, ranks that
cannot meet, and one all-reduce over all of them. Under a launcher every rank runs the checks, and rank 0 prints one
report of all:

    accelerate launch --config_file CONFIG -m hmm_datasets.commands.preflight OUTPUT_DIR
    hmm-datasets preflight OUTPUT_DIR --launch CONFIG

The ranks exchange their results through a key-value store and not by collectives, so a rank that hangs is named.
"""

from .ranks import PreflightSettings as PreflightSettings
from .ranks import run_preflight as run_preflight
