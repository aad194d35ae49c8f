"""LoRA (Hu et al., "LoRA: Low-rank adaptation of large language models", 2021), by the library peft.

The weights of the model stay as they are; an adapter of rank `r` is trained beside each of its linear layers but the
output. A run's folder then has the adapter (`adapter_model.safetensors`), which names the model it belongs to, and on
request also the merged model. Checkpoints have the adapter and its optimizer state.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import needing_extra
from ...files import atomic_folder
from ...hub.licences import write_licence
from ...hub.weights import base_of_adapter
from ...runtime.setting_rules import Void
from ...runtime.settings import setting
from ..pretrained import load_pretrained

if TYPE_CHECKING:
    from peft import LoraConfig, PeftModel
    from transformers import PreTrainedModel

MERGED_NAME = "merged"


@dataclass
class LoRASettings:
    """LoRA, with the names of TRL's settings: a mixin for `TrainingArguments` and its subclasses."""

    use_peft: bool = setting(False, "Train a LoRA adapter instead of all weights.")
    lora_r: int = setting(16, "Rank of the adapter.", least=1)
    lora_alpha: int = setting(32, "Scale of the adapter times its rank.")
    lora_dropout: float = setting(0.05, "Dropout of the adapter's inputs.", below=1)
    lora_target_modules: list[str] | None = setting(
        None, "Layers with an adapter; by default all linear layers but the output."
    )
    merge_adapter: bool = setting(False, f"Also save the model with the adapter merged, in {MERGED_NAME}/.")

    voids = (Void("lora_* merge_adapter", "without use_peft"),)


def lora_config(settings: LoRASettings) -> "LoraConfig | None":
    """The configuration of the adapter, or None without one.

    Raises:
        `InputError`: peft is not installed.
    """
    if not settings.use_peft:
        return None
    with needing_extra("peft", "use_peft"):
        from peft import LoraConfig
    return LoraConfig(
        task_type="CAUSAL_LM",
        r=settings.lora_r,
        lora_alpha=settings.lora_alpha,
        lora_dropout=settings.lora_dropout,
        target_modules=settings.lora_target_modules or "all-linear",
    )


def with_adapter(model: "PreTrainedModel", settings: LoRASettings) -> "PreTrainedModel | PeftModel":
    """A model with a new adapter beside it, or as it is if the settings have none."""
    config = lora_config(settings)
    if config is None:
        return model
    from peft import get_peft_model

    name_by_whole_path(model)
    return get_peft_model(model, config)


def name_by_whole_path(model: "PreTrainedModel") -> None:
    """Name a model by the whole path of its folder or file, if it has one: by this name its adapters find it, wherever
    a program that loads them is started."""
    name = getattr(model, "name_or_path", "")
    if isinstance(name, str) and name and Path(name).exists():
        model.name_or_path = str(Path(name).absolute())


def save_merged(folder: str | Path) -> Path:
    """Write the model of an adapter, with the adapter merged into its weights, into the adapter's folder.

    Args:
        folder (path): folder of the adapter and its tokenizer.

    Returns:
        `Path`: the folder of the merged model, an ordinary transformers model.
    """
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    from ..lineage import licence_of

    folder = Path(folder)
    name = base_of_adapter(folder / "adapter_config.json")
    base = load_pretrained(AutoModelForCausalLM, name)
    model = PeftModel.from_pretrained(base, folder).merge_and_unload()
    model.generation_config = GenerationConfig.from_pretrained(folder)
    with atomic_folder(folder / MERGED_NAME) as temporary:
        model.save_pretrained(temporary)
        AutoTokenizer.from_pretrained(folder, trust_remote_code=False).save_pretrained(temporary)
        write_licence(temporary, licence_of(name))
    return folder / MERGED_NAME
