"""Labels are scored as from all logits, and no evaluation of text holds these."""

import pytest
import torch
from accelerate import Accelerator
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Gemma2Config, Gemma2ForCausalLM, LlamaConfig, LlamaForCausalLM

from hmm_datasets.evaluation.continuations import Row, score_rows
from hmm_datasets.evaluation.label_scores import score_labels
from hmm_datasets.training import linear_cross_entropy

VOCABULARY = 101
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}


def plain():
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, **SIZES, initializer_range=0.2)).eval()


def capped():
    """Its logits change after the output layer."""
    torch.manual_seed(0)
    more = {"num_key_value_heads": 2, "head_dim": 16, "final_logit_softcapping": 0.5, "attn_implementation": "eager"}
    return Gemma2ForCausalLM(Gemma2Config(vocab_size=VOCABULARY, **SIZES, **more)).eval()


@pytest.mark.thorough
@pytest.mark.parametrize("rows_per_chunk", [7, 1000])
@pytest.mark.parametrize("make", [plain, capped])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_the_scores_are_those_of_all_logits(make, kind, rows_per_chunk, monkeypatch):
    monkeypatch.setattr(linear_cross_entropy, "CHUNK_BYTES", rows_per_chunk * 4 * VOCABULARY)
    model = make().to(kind)
    layer = model.get_output_embeddings()
    tokens = torch.randint(0, VOCABULARY, (5, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = model(input_ids=tokens).logits
    labels = torch.where(torch.arange(12) % 3 == 0, logits.argmax(-1), tokens)
    labels[:, :2] = -100
    labels[4] = -100
    found = score_labels(model, labels, input_ids=tokens, use_cache=False)
    expected = cross_entropy(logits.double().transpose(1, 2), labels, reduction="none")
    assert found.nats.dtype == torch.float64
    torch.testing.assert_close(found.nats, expected, rtol=1e-6 if kind == torch.float32 else 1e-12, atol=1e-6)
    assert torch.equal(found.likeliest, (logits.argmax(-1) == labels) | (labels == -100))
    assert found.likeliest.any()
    assert not found.likeliest.all()
    assert model.get_output_embeddings() is layer


def test_of_equal_logits_the_first_token_is_the_likeliest():
    model = plain()
    torch.nn.init.zeros_(model.lm_head.weight)
    found = score_labels(model, torch.tensor([[0, 1]]), input_ids=torch.tensor([[5, 6]]))
    assert found.likeliest.tolist() == [[True, False]]


class LargestTensor(TorchDispatchMode):
    """Remembers the number of elements of the largest tensor that an operation returned."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **kwargs or {})
        if torch.is_tensor(found):
            self.elements = max(self.elements, found.numel())
        return found


@pytest.mark.thorough
@pytest.mark.parametrize("first", [1, 150])
def test_scoring_rows_holds_no_logits_of_all_tokens(first):
    """Which would have 40 times as many elements as the weight of the output layer, or still 4 times as many."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=20_000, **SIZES)).eval()
    tokens = torch.randint(0, 20_000, (8, 160), generator=torch.Generator().manual_seed(0)).tolist()
    with LargestTensor() as largest, pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear_cross_entropy, "CHUNK_BYTES", 32 * 4 * 20_000)
        score_rows(model, [[Row(row, first)] for row in tokens], Accelerator(cpu=True), batch_size=8)
    assert largest.elements <= model.lm_head.weight.numel()
