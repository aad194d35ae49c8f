"""A model and a trainer so small that a run of a few steps takes a second."""

import torch
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, set_seed
from transformers.data.data_collator import default_data_collator

from hmm_datasets.text.corpora.loading import load_corpus
from hmm_datasets.training.settings import PretrainSettings
from hmm_datasets.training.trainer import Pretrainer

VOCABULARY, LENGTH = 101, 16
CONVERSATIONS = 22


def tiny_model(*, tied=False, layers=1, seed=0, **settings) -> LlamaForCausalLM:
    set_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=2,
        max_position_embeddings=LENGTH,
        tie_word_embeddings=tied,
        initializer_range=0.2,
        use_cache=False,
        **settings,
    )
    return LlamaForCausalLM(config)


def random_rows(count: int, *, ignored: bool = False) -> list[dict[str, torch.Tensor]]:
    """Rows of random tokens; with `ignored` rows have different numbers of labels."""
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(0, VOCABULARY, (count, LENGTH), generator=generator)
    labels = tokens.clone()
    if ignored:
        for row in range(count):
            labels[row, : row * 5 % LENGTH] = -100
    return [{"input_ids": row, "labels": label} for row, label in zip(tokens, labels, strict=True)]


def settings(folder, **given) -> PretrainSettings:
    defaults = {
        "max_steps": 6,
        "global_batch_size": 8,
        "per_device_train_batch_size": 4,
        "logging_steps": 1,
        "report_to": "none",
        "bf16": False,  # also on a GPU, where it is the default
        "save_strategy": "no",
    }
    return PretrainSettings(str(folder), **defaults | given)


def trainer(folder, *, model=None, rows=None, kind=Pretrainer, **given) -> Pretrainer:
    return kind(
        model=tiny_model() if model is None else model,
        args=settings(folder, **given),
        train_dataset=random_rows(200) if rows is None else rows,
        data_collator=default_data_collator,
    )


def history(run: Pretrainer) -> list[dict]:
    """Rows of a run's log that have a loss."""
    return [row for row in run.state.log_history if "loss" in row]


def losses(run: Pretrainer) -> list[float]:
    """Train, and return the loss of every step."""
    run.train()
    return [row["loss"] for row in history(run)]


def conversations() -> Dataset:
    return load_corpus("instructions-sample", split="train", streaming=False).select(range(CONVERSATIONS))
