"""The two models that are trained: a causal one, and one that fills in masked tokens."""

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    BertConfig,
    BertForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Trainer,
    TrainingArguments,
    set_seed,
)
from unmasking import Marginals, partly_filled

from hmm_datasets import HMM, HMMSequences

_SIZES = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
_BATCH = 128  # sequences of each step


def causal_model(hmm: HMM, length: int, steps: int, seed: int, folder: Path) -> PreTrainedModel:
    """A small Llama trained on sequences of an HMM, with a beginning token."""
    rows = HMMSequences(hmm, length=length, seed=seed)
    set_seed(seed)
    tokens = {"bos_token_id": rows.bos_token_id, "eos_token_id": None, "pad_token_id": None}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=rows.vocab_size, **_SIZES, **tokens))
    Trainer(model, _arguments(steps, seed, folder), train_dataset=rows).train()
    return model.eval()


def denoiser(hmm: HMM, length: int, steps: int, seed: int, folder: Path) -> PreTrainedModel:
    """A small BERT that predicts masked tokens, trained with every share of masks (arXiv 2406.07524)."""
    rows = HMMSequences(hmm, length=length, seed=seed, bos=False)
    set_seed(seed)
    mask = hmm.num_symbols
    model = BertForMaskedLM(BertConfig(vocab_size=mask + 1, max_position_embeddings=length, **_SIZES))

    def masked(batch: list[dict[str, Any]]) -> dict[str, Tensor]:
        tokens = torch.stack([torch.as_tensor(row["input_ids"]) for row in batch])
        hidden = torch.rand(tokens.shape) < torch.rand(len(tokens), 1)
        # One at least in every sequence.
        hidden[torch.arange(len(tokens)), torch.randint(length, (len(tokens),))] = True
        return {"input_ids": tokens.masked_fill(hidden, mask), "labels": tokens.masked_fill(~hidden, -100)}

    Trainer(model, _arguments(steps, seed, folder), train_dataset=rows, data_collator=masked).train()
    return model.eval()


def marginals_of(model: PreTrainedModel, num_symbols: int, length: int) -> Marginals:
    """What a denoiser predicts for all partly filled sequences, zeros at tokens that are known."""
    rows = torch.from_numpy(partly_filled(num_symbols, length))
    with torch.no_grad():
        logits = torch.cat([model(part).logits.double()[..., :num_symbols] for part in rows.split(8192)])
    return (logits.softmax(-1) * (rows == num_symbols)[..., None]).numpy()


def _arguments(steps: int, seed: int, folder: Path) -> TrainingArguments:
    return TrainingArguments(
        str(folder),
        max_steps=steps,
        per_device_train_batch_size=_BATCH,
        learning_rate=3e-3,
        lr_scheduler_type="cosine",
        warmup_steps=math.ceil(steps / 20),
        seed=seed,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
