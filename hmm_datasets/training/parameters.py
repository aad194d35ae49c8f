"""The parameters of a model: how many there are, and that all of its embeddings are trained."""

import contextlib
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


def train_every_embedding(model: "torch.nn.Module") -> None:
    """Let the embedding of the padding token of a model of transformers be trained like the others.

    transformers makes `pad_token_id` the `padding_idx` of the embedding, whose row has no gradient. Where padding is
    also the beginning or the end token, as with the tokenizers of HMMs, that token would never be learned. Padding
    itself is not attended to and has no loss, so its row needs no protection.

    Args:
        model (`nn.Module`): the model; one without embeddings of transformers is left as it is.
    """
    with contextlib.suppress(AttributeError, NotImplementedError):
        embeddings = model.get_input_embeddings()
        if embeddings.padding_idx is not None:
            embeddings.padding_idx = None
