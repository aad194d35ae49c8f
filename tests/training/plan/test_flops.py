"""The formula for FLOPs is the number of those in the matrix products of the models, which torch counts.

`python tests/training/plan/test_flops.py` prints both for every kind of model.
"""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    DeepseekV3Config,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MambaConfig,
    MixtralConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from hmm_datasets.compat.torch import fake_tensors
from hmm_datasets.training.model_configs import default_dtype, new_model
from hmm_datasets.training.plan.flops import flops_per_token

LENGTH = 512
SIZES = {"vocab_size": 32_000, "hidden_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 16}
LATENT = {"q_lora_rank": 256, "kv_lora_rank": 128, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
MODELS = {
    "Llama": LlamaConfig(**SIZES, intermediate_size=2816, num_key_value_heads=4),
    "GPT-2": GPT2Config(n_layer=4),
    "Qwen3": Qwen3Config(**SIZES, intermediate_size=3072, num_key_value_heads=8, head_dim=128),
    "Gemma 3": Gemma3TextConfig(
        **SIZES | {"num_hidden_layers": 6, "intermediate_size": 3072, "num_key_value_heads": 1},
        **{"head_dim": 256, "sliding_window": 64},
    ),
    "Mixtral": MixtralConfig(**SIZES, intermediate_size=3584, num_key_value_heads=4),
    "Qwen3-MoE": Qwen3MoeConfig(
        **SIZES, num_key_value_heads=4, head_dim=128, num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768
    ),
    "DeepSeek-V3": DeepseekV3Config(
        **SIZES,
        **LATENT,
        **{"num_key_value_heads": 16, "intermediate_size": 2048, "moe_intermediate_size": 512},
        **{
            "n_routed_experts": 16,
            "num_experts_per_tok": 4,
            "n_group": 2,
            "topk_group": 1,
            "first_k_dense_replace": 1,
        },
    ),
    "Mamba": MambaConfig(vocab_size=32_000, hidden_size=768, num_hidden_layers=2),
}


def of_grouped(left, right, *_, **__) -> int:
    """FLOPs of a product of every token with its own expert, which torch's counter does not know."""
    return 2 * left[0] * left[1] * right[-1]


def formula_and_count(config) -> tuple[int, float]:
    """FLOPs per token by the formula, and in the products of a forward and a backward pass on tensors without data."""
    config._attn_implementation = "eager"
    length = 16 if config.model_type == "mamba" else LENGTH  # its reference code loops over positions
    mapping = {torch.ops.aten._grouped_mm: of_grouped}
    with fake_tensors():
        with default_dtype(torch.bfloat16):  # in which alone experts are grouped
            model = new_model(config)
        tokens = torch.zeros(1, length, dtype=torch.int64)
        with FlopCounterMode(display=False, custom_mapping=mapping) as counter:
            model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
    products = {str(name): count for name, count in counter.get_flop_counts()["Global"].items()}
    # torch takes the backward pass of a depthwise convolution for that of a dense one; it is twice the forward pass.
    products.pop("aten.convolution_backward", None)
    convolution = products.get("aten.convolution", 0)
    return flops_per_token(model, length), (sum(products.values()) + 2 * convolution) / length


@pytest.mark.thorough
@pytest.mark.parametrize("name", MODELS)
def test_the_formula_is_the_count_of_the_matrix_products(name):
    """Up to norms, biases and rotary angles."""
    formula, count = formula_and_count(MODELS[name])
    assert formula == pytest.approx(count, rel=3e-3)


if __name__ == "__main__":
    print("| model | formula | count | ratio |\n|---|---|---|---|")
    for label, one in MODELS.items():
        by_formula, counted = formula_and_count(one)
        print(f"| {label} | {by_formula:.4e} | {counted:.4e} | {by_formula / counted:.3f} |")
