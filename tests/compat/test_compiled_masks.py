"""A compiled model has no mask for plain causal attention, and one where documents are packed."""

import contextlib

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, masking_utils

from hmm_datasets.compat.transformers_models import unpacked_rows


@pytest.mark.thorough
@pytest.mark.parametrize("is_packed", [False, True])
def test_the_mask_of_causal_attention_is_left_out(is_packed):
    functions = dict(vars(masking_utils))
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=11, use_cache=False, **sizes)).eval()
    calls = []

    def backend(graph, inputs):
        attention = torch.nn.functional.scaled_dot_product_attention
        calls.extend(node.kwargs for node in graph.graph.nodes if node.target is attention)
        return graph

    tokens = torch.randint(11, (2, 8))
    given = {"position_ids": torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3]] * 2)} if is_packed else {}
    torch.compiler.reset()
    with torch.no_grad(), contextlib.nullcontext() if is_packed else unpacked_rows():
        found = torch.compile(model, backend=backend)(input_ids=tokens, **given).logits
        expected = model(input_ids=tokens, **given).logits
    (call,) = calls
    assert (call["attn_mask"] is None, call["is_causal"]) == (not is_packed, not is_packed)
    torch.testing.assert_close(found, expected)
    assert functions == vars(masking_utils)
