"""Loading the models that the benchmark scores."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from transformers import AutoModelForCausalLM

from ...errors import InputError
from ...hmm.causal_lm import ExactCausalLM
from ...hub.download import ModelName
from ...training.pretrained import load_pretrained

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel


def load_models(name: str, processes: Sequence[str], accelerator: "Accelerator") -> "dict[str, PreTrainedModel]":
    """The model to score on each process, by its name.

    Args:
        name (`str`): folder or Hub name of one model for all processes, or a folder with a model for each process in
            the subfolder of that name.
        processes (sequence of `str`): names of processes.
        accelerator ([`~accelerate.Accelerator`]): its device is where the models go.

    Raises:
        `InputError`: there is no such model.
    """
    folder = Path(name)
    if not folder.is_dir() or (folder / "config.json").exists() or ModelName.parse(folder).gguf_file is not None:
        return dict.fromkeys(processes, load_causal_lm(name, accelerator))
    missing = [process for process in processes if not (folder / process / "config.json").is_file()]
    if missing:
        raise InputError(
            f"{folder}: has neither config.json of a model nor {missing[0]}/config.json of a model for that process"
        )
    return {process: load_causal_lm(str(folder / process), accelerator) for process in processes}


def load_causal_lm(name: str, accelerator: "Accelerator") -> "PreTrainedModel":
    """A causal language model in eval mode; that of a process gets a beginning token, from which it predicts
    the first symbol."""
    model = load_pretrained(AutoModelForCausalLM, name)
    if isinstance(model, ExactCausalLM) and model.config.bos_token_id is None:
        model = type(model).from_process(model.to_process(), bos_token_id=model.config.num_symbols)
    return model.to(accelerator.device).eval()
