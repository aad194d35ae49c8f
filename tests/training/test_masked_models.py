"""A model that sees the token it should predict is not evaluated or trained as a causal one."""

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertForMaskedLM,
    ElectraConfig,
    ElectraForMaskedLM,
    RobertaConfig,
    RobertaForCausalLM,
    RobertaForMaskedLM,
)

from hmm_datasets.errors import InputError
from hmm_datasets.training.pretrained import load_pretrained

SIZES = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}


@pytest.mark.outside(
    "https://github.com/huggingface/transformers/issues/13818",
    "score texts with BERT or RoBERTa as causal language models",
    "refused: a model that sees the tokens after a position too, so that the loss of its next token means nothing",
)
@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (BertConfig(**SIZES), BertForMaskedLM),
        (RobertaConfig(**SIZES, max_position_embeddings=40), RobertaForMaskedLM),
        (ElectraConfig(**SIZES), ElectraForMaskedLM),
    ],
    ids=["bert", "roberta", "electra"],
)
def test_a_masked_language_model_is_refused(config, kind, tmp_path):
    torch.manual_seed(0)
    kind(config).save_pretrained(tmp_path)
    with pytest.raises(InputError, match=f"{tmp_path}: a .* that sees the tokens after a position too"):
        load_pretrained(AutoModelForCausalLM, str(tmp_path))


@pytest.mark.outside(
    "https://github.com/huggingface/transformers/issues/12704",
    "causal language modeling with a BERT whose configuration has `is_decoder`",
    "loaded as the causal model that it is",
)
def test_the_same_type_as_a_decoder_is_loaded(tmp_path):
    torch.manual_seed(0)
    model = RobertaForCausalLM(RobertaConfig(**SIZES, max_position_embeddings=40, is_decoder=True)).eval()
    model.save_pretrained(tmp_path)
    tokens = torch.tensor([[3, 5, 7]])
    loaded = load_pretrained(AutoModelForCausalLM, str(tmp_path)).eval()
    torch.testing.assert_close(loaded(tokens).logits, model(tokens).logits)
