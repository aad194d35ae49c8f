"""Numbers of parameters of a model."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


def count_parameters(model: "PreTrainedModel") -> dict[str, int]:
    """Number of parameters: `total`, and `body` without input and output embeddings. Shared ones count once."""
    total = sum(map(parameter_size, model.parameters()))
    embeddings = {
        id(module.weight): parameter_size(module.weight)
        for module in (model.get_input_embeddings(), model.get_output_embeddings())
        if module is not None
    }
    return {"total": total, "body": total - sum(embeddings.values())}


def parameter_size(parameter: "torch.nn.Parameter") -> int:
    """Number of elements of a whole parameter, also if ZeRO 3 has sharded it and its own tensor is empty."""
    return getattr(parameter, "ds_numel", parameter.numel())
