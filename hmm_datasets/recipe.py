"""How a recipe starts: settings from `--config FILE.yaml` and flags, errors in one line."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

from .errors import one_line_errors


def run(main: Callable[..., None], *kinds: type | str) -> None:
    """Parse the command line into settings and call `main` with them.

    Args:
        main (callable): takes one argument for each of `kinds`.
        kinds (`type` or `str`): dataclasses of settings, or names of those in `hmm_datasets.training.settings`, which
            loads only now.
    """
    # Python puts the script's folder first on the path, where recipes/evaluate.py would hide the evaluate library.
    folder = Path(sys.argv[0]).resolve().parent
    sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != folder]
    with one_line_errors():
        import torch

        if not torch.accelerator.is_available():
            os.environ.setdefault("DS_ACCELERATOR", "cpu")  # else DeepSpeed warns that it found no GPU
        from .training import settings

        main(*settings.parse_settings(*(getattr(settings, kind) if isinstance(kind, str) else kind for kind in kinds)))
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            from accelerate import PartialState

            # Together: a rank that leaves while another still holds a connection to it can make that one abort.
            state = PartialState()
            state.wait_for_everyone()
            state.destroy_process_group()
