"""The vocabulary of a model: new tokens, and an output layer padded to a multiple of 128 without a change of the loss.

The embeddings of new tokens are the mean of the others (Hewitt, "Initializing new word embeddings for pretrained
language models", 2021): with it a new token is at first as likely as an average one, so the model's distribution over
the other tokens hardly changes. With random rows it may be the most likely token everywhere.

Tensor cores need matrices whose sides are multiples of 8 or more, so with an odd vocabulary the largest product of a
small model does not use them; Shoeybi et al., "Megatron-LM", 2019, section 4.1, pad to 128 per GPU for this reason.
Here the parameters keep their `V` rows, so the saved model is an ordinary one and tied embeddings stay tied. Rows of
zeros are added to the weight only for the product, and the logits are cut back to `V`. This copies the weight in the
forward pass and the gradient of the logits in the backward pass, so on a CPU nothing is padded by default.
"""

from collections.abc import Collection

import torch
from jaxtyping import Float
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..compat.deepspeed import whole_parameters

GPU_MULTIPLE = 128


class PaddedOutput(nn.Linear):
    """A linear layer from `D` to `V` features, computed with `V` rounded up to a multiple.

    Args:
        layer (`nn.Linear`): the layer to replace; its parameters are shared, so that tied weights stay tied.
        multiple (`int`): `V` is rounded up to a multiple of this.
    """

    def __init__(self, layer: nn.Linear, multiple: int):
        super().__init__(layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta")
        self.weight, self.bias = layer.weight, layer.bias
        self.multiple = multiple
        self.train(layer.training)

    def forward(self, hidden: Float[torch.Tensor, "*B D"]) -> Float[torch.Tensor, "*B V"]:
        """The logits, a view of those of the padded vocabulary."""
        more = -self.out_features % self.multiple
        if more == 0:
            return super().forward(hidden)
        weight = functional.pad(self.weight, (0, 0, 0, more))
        bias = None if self.bias is None else functional.pad(self.bias, (0, more))
        return functional.linear(hidden, weight, bias)[..., : self.out_features]


def add_embeddings(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, new: Collection[str]) -> None:
    """Give a model embeddings of tokens that were added to its tokenizer: the mean of those of all other tokens.

    The model keeps the rows it has beyond its tokenizer's tokens, if any. Under ZeRO 3 all ranks take part.

    Args:
        model ([`~transformers.PreTrainedModel`]): a language model; changed in place.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): its tokenizer, with the new tokens.
        new (collection of `str`): the new tokens.
    """
    if not new:
        return
    if len(tokenizer) > model.config.get_text_config().vocab_size:
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    rows = sorted(tokenizer.convert_tokens_to_ids(list(new)))
    layers = [model.get_input_embeddings(), model.get_output_embeddings()]
    tables = {id(table): table for layer in layers if layer is not None
              for table in (layer.weight, getattr(layer, "bias", None)) if table is not None}  # fmt: skip
    known = [row for row in range(len(tokenizer)) if row not in set(rows)]
    with whole_parameters(tables.values()), torch.no_grad():
        for table in tables.values():
            table[rows] = table[known].double().mean(0).to(table.dtype)


def pad_output(model: PreTrainedModel, multiple: int) -> None:
    """Compute the output layer of a model for a vocabulary that is a multiple of `multiple`.

    Nothing happens if it is such a multiple already, or if the output layer is not an `nn.Linear`.

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


def vocabulary_multiple(device: torch.device) -> int:
    """The multiple to pad to: 128 on a GPU, and 1 (no padding) on a CPU."""
    return 1 if device.type == "cpu" else GPU_MULTIPLE
