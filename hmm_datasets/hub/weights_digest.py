"""SHA-256 of the weights of a model, whatever files they were read from."""

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def weights_sha256(model: "PreTrainedModel") -> str:
    """A hash of a model's tensors (sorted names, types, shapes and bytes), independent of its files."""
    import torch

    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()
