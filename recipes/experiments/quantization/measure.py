"""Models with quantized linear layers, and their divergence from exact distributions and from float32."""

import copy
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from symbol_predictions import symbol_log_probs
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from hmm_datasets.data.sequences import TEST_FIRST
from hmm_datasets.errors import InputError
from hmm_datasets.hmm.analysis.divergence import kl_divergence
from hmm_datasets.hmm.loading import load_source
from hmm_datasets.statistics import clustered_mean
from hmm_datasets.training.pretrained import load_pretrained

_BLOCK = 32  # weights that share a scale in int4, as in llama.cpp's formats


def quantized(model: PreTrainedModel, name: str) -> tuple[PreTrainedModel, float]:
    """A copy of a model whose linear layers are quantized, and the bits per weight of these.

    Args:
        model ([`~transformers.PreTrainedModel`]): a model in float32.
        name (`str`): a format of gguf, whose weights become float32 again, or `int8` (weights, one scale per row),
            `int8_dynamic` (also activations, one scale per token) or `int4` (weights in blocks of 32) of torchao.

    Raises:
        `InputError`: a layer whose rows cannot be divided into the blocks of the format.
    """
    model = copy.deepcopy(model)
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    size = sum(layer.weight.numel() for layer in layers)
    for layer in layers:
        if layer.in_features % _BLOCK:
            raise InputError(f"a layer has {layer.in_features} inputs; expected a multiple of {_BLOCK}")
    if not name.startswith("int"):
        return model, 8 * sum(_through_gguf(layer, name) for layer in layers) / size
    from torchao.quantization import (
        Int8DynamicActivationInt8WeightConfig,
        Int8WeightOnlyConfig,
        IntxWeightOnlyConfig,
        quantize_,
    )
    from torchao.quantization.granularity import PerGroup

    configs = {
        "int8": Int8WeightOnlyConfig,
        "int8_dynamic": Int8DynamicActivationInt8WeightConfig,
        "int4": lambda: IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(_BLOCK)),
    }
    scales = size / _BLOCK if name == "int4" else sum(layer.out_features for layer in layers)
    quantize_(model, configs[name]())
    return model, (4 if name == "int4" else 8) + 32 * scales / size


def _through_gguf(layer: nn.Linear, name: str) -> int:
    """Replace the weight of a layer by what its quantized form stands for, and return the bytes of that form."""
    from gguf import GGMLQuantizationType, quants

    kind = GGMLQuantizationType[name]
    packed = quants.quantize(layer.weight.detach().numpy(), kind)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(quants.dequantize(packed, kind)))
    return packed.nbytes


def predictions(model: PreTrainedModel, tokens: Tensor, num_symbols: int) -> Float[Tensor, "N L E"]:
    """Log-probabilities of a model over the symbols, normalized over them, float64."""
    with torch.inference_mode():
        return symbol_log_probs(model, tokens, num_symbols).log_softmax(-1)


def measure(folder: Path, settings: Any) -> dict[str, Any]:
    """The divergences of the model in a folder before and after quantization.

    Returns:
        `dict`: `parameters`; `exact`, `KL(exact || float32)`; and `formats`, for each `bits` per weight, `exact`
        (`KL(exact || quantized)`), `rise` (their difference) and `float32` (`KL(float32 || quantized)`). Divergences
        are in nats per symbol, with a `mean` and its `standard_error` over sequences.
    """
    source = load_source(settings.hmm)
    model = load_pretrained(AutoModelForCausalLM, str(folder)).float().eval()
    drawn = source.sample(settings.num_sequences, settings.length, seed=settings.seed, first=TEST_FIRST + (1 << 32))
    tokens = torch.from_numpy(drawn.astype("int64"))
    exact = torch.as_tensor(source.next_token_probs(tokens))[:, :-1].double()
    plain = predictions(model, tokens, source.num_symbols)
    before = kl_divergence(exact, plain)
    figures = {"parameters": model.num_parameters(), "exact": _figure(before), "formats": {}}
    for name in settings.formats:
        changed, bits = quantized(model, name)
        after = predictions(changed, tokens, source.num_symbols)
        divergence = kl_divergence(exact, after)
        figures["formats"][name] = {
            "bits": bits,
            "exact": _figure(divergence),
            "rise": _figure(divergence - before),
            "float32": _figure(kl_divergence(plain.exp(), after)),
        }
    return figures


def _figure(values: Float[Tensor, "N L"]) -> dict[str, float | None]:
    mean = clustered_mean(values.numpy())
    return {"mean": mean.mean, "standard_error": mean.standard_error, "num_sequences": len(values)}
