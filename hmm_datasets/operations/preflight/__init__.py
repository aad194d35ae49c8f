"""Checks of machines before a run, to find what would otherwise fail hours later.

Each check is one measurement, reported in one line. Under a launcher every rank runs the checks, what must agree
between ranks is compared, and rank 0 prints one table of all:

    accelerate launch --config_file CONFIG -m hmm_datasets.commands.preflight OUTPUT_DIR
    hmm-datasets preflight OUTPUT_DIR --launch CONFIG

`host.py`, `device.py`, `network.py` and `rows.py` have the checks, `report.py` compares what ranks found and prints
it, and `ranks.py` runs all of it. The ranks exchange what they found through a key-value store and not by
collectives, so a rank that hangs is named. The checks take a few seconds.
"""

from .device import check_devices
from .host import check_builds, check_disk, check_host, check_hub, check_memory, check_shared_memory, check_versions
from .network import check_all_reduce
from .ranks import PreflightSettings, run_checks, run_preflight
from .report import Check, format_checks

__all__ = [
    "Check",
    "PreflightSettings",
    "check_all_reduce",
    "check_builds",
    "check_devices",
    "check_disk",
    "check_host",
    "check_hub",
    "check_memory",
    "check_shared_memory",
    "check_versions",
    "format_checks",
    "run_checks",
    "run_preflight",
]
