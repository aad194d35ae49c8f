"""Small models of every architecture."""

import pytest
import torch
from architectures import ARCHITECTURES, architecture_config

from hmm_datasets.errors import InputError
from hmm_datasets.training.model_configs import new_model


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_every_architecture_reads_rows_of_the_given_length(kind):
    config = architecture_config(kind, vocab_size=9, length=12, width=32, layers=2, bos_token_id=8)
    logits = new_model(config)(torch.arange(12)[None] % 9).logits
    assert logits.shape == (1, 12, 9)


def test_unknown_architectures_and_odd_widths_are_refused():
    with pytest.raises(InputError, match="expected one of llama, lstm, gru, mamba"):
        architecture_config("elman", vocab_size=9, length=12, width=32, layers=2)
    with pytest.raises(InputError, match="architecture 'llama' of width 33"):
        architecture_config("llama", vocab_size=9, length=12, width=33, layers=2)
    with pytest.raises(InputError, match="width 30 with 4 heads"):
        architecture_config("llama", vocab_size=9, length=12, width=30, layers=2, heads=4)
