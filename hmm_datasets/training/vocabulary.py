"""An output layer computed for a vocabulary padded to a multiple of 128, with the loss left as it is.

Tensor cores take matrices whose sides are multiples of 8 or more; an odd vocabulary sends the largest product of a
small model elsewhere (Shoeybi et al., "Megatron-LM", 2019, section 4.1, pad to 128 per GPU for that). Here the
parameters keep their `V` rows, so that the saved model is an ordinary one and tied embeddings stay tied; the weight
gets rows of zeros where it is multiplied, and the logits are cut back to `V`. Cost: a copy of the weight forward and
of the logits' gradient backward, which is why nothing is padded on a CPU unless asked.
"""

import torch
from jaxtyping import Float
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel

from ..errors import InputError

GPU_MULTIPLE = 128


class PaddedOutput(nn.Linear):
    """A linear layer from `D` to `V` features, computed with `V` rounded up to a multiple.

    Args:
        layer (`nn.Linear`): whose parameters it takes, the very same ones, so that tied weights stay tied.
        multiple (`int`): what the rows of the weight are rounded up to a multiple of.
    """

    def __init__(self, layer: nn.Linear, multiple: int):
        super().__init__(layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta")
        self.weight, self.bias = layer.weight, layer.bias
        self.multiple = multiple
        self.train(layer.training)

    def forward(self, hidden: Float[torch.Tensor, "*B D"]) -> Float[torch.Tensor, "*B V"]:
        """The logits: a view of those of the padded vocabulary."""
        more = -self.out_features % self.multiple
        weight = functional.pad(self.weight, (0, 0, 0, more))
        bias = None if self.bias is None else functional.pad(self.bias, (0, more))
        return functional.linear(hidden, weight, bias)[..., : self.out_features]


def pad_output(model: PreTrainedModel, multiple: int) -> None:
    """Compute the output layer of a model for a vocabulary that is a multiple of `multiple`.

    Nothing happens where it is one already, or where the output layer is no `nn.Linear`.

    Args:
        model ([`~transformers.PreTrainedModel`]): a language model; changed in place.
        multiple (`int`): 128 for GPUs; 1 leaves the model as it is.

    ```python
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=101, **sizes))
    >>> pad_output(model, 128)
    >>> logits = model(torch.tensor([[1, 2, 3]])).logits
    >>> tuple(logits.shape), logits.stride(), tuple(model.lm_head.weight.shape)
    ((1, 3, 101), (384, 128, 1), (101, 8))

    ```
    """
    layer = model.get_output_embeddings()
    if type(layer) is nn.Linear and layer.out_features % multiple != 0:
        model.set_output_embeddings(PaddedOutput(layer, multiple))


def vocabulary_multiple(asked: int | None, device: torch.device) -> int:
    """What to pad to: as asked, else 128 on a GPU and nothing on a CPU, which does not gain by it.

    Raises:
        `InputError`: below 1.
    """
    if asked is not None and asked < 1:
        raise InputError(f"pad_vocabulary_to is {asked}; expected 1 (no padding) or more")
    if asked is None:
        return 1 if device.type == "cpu" else GPU_MULTIPLE
    return asked
