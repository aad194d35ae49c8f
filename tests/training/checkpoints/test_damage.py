"""A run ends if the background check finds that its token stream has changed."""

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from hmm_datasets.data.windows import TokenWindows
from hmm_datasets.errors import InputError
from hmm_datasets.text.stream import TokenStream, verification, write_tokens
from hmm_datasets.training.model_configs import model_config
from hmm_datasets.training.run import train_and_save
from hmm_datasets.training.settings import PretrainSettings
from hmm_datasets.training.trainer import Pretrainer


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [0, 1])
def test_a_changed_shard_ends_the_run_in_one_line_that_names_it(tmp_path, monkeypatch, workers):
    documents = np.random.default_rng(0).integers(1, 30, (400, 15))
    write_tokens(documents, tmp_path / "tokens", vocab_size=30, eos_id=0, tokenizer_hash="", corpus="t")
    shard = tmp_path / "tokens" / "00000.ds"
    data = bytearray(shard.read_bytes())
    data[100] ^= 4
    shard.write_bytes(data)
    monkeypatch.setattr(verification, "AT_ONCE", 0)
    monkeypatch.setattr(verification, "_running", [])
    rows = TokenWindows(TokenStream(tmp_path / "tokens"), 16, seed=0, epochs=400)
    args = PretrainSettings(
        str(tmp_path / "run"),
        max_steps=2000,
        global_batch_size=4,
        per_device_train_batch_size=4,
        dataloader_num_workers=workers,
        report_to="none",
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(model_config("1m", vocab_size=30, max_length=16))
    trainer = Pretrainer(model=model, args=args, train_dataset=rows)
    with pytest.raises(InputError) as caught:
        train_and_save(trainer, settings={}, data={})
    assert str(caught.value).startswith(f"{shard}: SHA-256 is ")
    assert "\n" not in str(caught.value)
