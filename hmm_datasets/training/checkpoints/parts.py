"""The parts of a checkpoint: the model, the state of training, and what only resuming needs."""

from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

from ...errors import InputError
from ...files import DIGESTS_NAME
from ...runtime.run_identity import IDENTITY_NAME

STATE_NAME = "trainer_state.json"
UNIVERSAL_NAME = "latest_universal"
"""A file with the name of the folder that has a checkpoint in DeepSpeed's universal format."""

MEGATRON = "layer_*-model_*-model_states.pt"
"""The files of layers in a folder `global_step*` of Megatron-DeepSpeed."""

_RESUMING = (
    *("optimizer.pt", "optimizer.bin", "optimizer_*", "scheduler.pt", "scaler.pt", "rng_state*.pth"),
    *("rollout_*.pt", "*optim_states.pt"),
    *("latest", "latest_universal", "global_step*", "pytorch_model_fsdp_*"),
    *("zero_to_fp32.py", "zero_to_torch.py"),
)
_RECORDS = (STATE_NAME, IDENTITY_NAME, DIGESTS_NAME, "training_args.bin")
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "pytorch_model.bin.index.json")


@contextmanager
def not_deleted(*folders: Path) -> Iterator[None]:
    """A context that reads checkpoints, and reports it if a run deletes one of them meanwhile.

    Raises:
        `InputError`: one has been deleted.
    """
    try:
        yield
    except FileNotFoundError:
        gone = next((folder for folder in folders if not folder.is_dir()), None)
        if gone is None:
            raise
        raise InputError(
            f"{gone}: was deleted meanwhile, as a run does that is running with save_total_limit; take a newer one"
        ) from None


def resuming_names(folder: Path) -> list[str]:
    """The files and folders of a checkpoint that only resuming needs: optimizer, schedule, random numbers."""
    return _matching(folder, _RESUMING)


def weight_names(folder: Path) -> list[str]:
    """The files with the weights of a model that `from_pretrained` reads."""
    return _matching(folder, _WEIGHTS)


def companion_names(folder: Path) -> list[str]:
    """The other files of a model: configuration, tokenizer, chat template, code."""
    others = {*resuming_names(folder), *weight_names(folder), *_RECORDS}
    return sorted(path.name for path in folder.iterdir() if path.is_file() and path.name not in others)


def _matching(folder: Path, patterns: tuple[str, ...]) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if any(fnmatch(path.name, pattern) for pattern in patterns))
