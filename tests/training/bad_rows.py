"""A run on sequences of an HMM with a few rows of another distribution, which make its loss spike."""

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, set_seed
from transformers.data.data_collator import default_data_collator

from hmm_datasets.data.sequences import HMMSequences
from hmm_datasets.errors import RolledBack
from hmm_datasets.files import read_jsonl
from hmm_datasets.hmm import processes
from hmm_datasets.training.run import train_and_save
from hmm_datasets.training.settings import PretrainSettings
from hmm_datasets.training.trainer import Pretrainer

GLOBAL_BATCH, LENGTH, VOCABULARY = 8, 16, 64
FOREIGN = range(40, VOCABULARY)
"""Tokens that the HMM never emits."""


class WithBadRows(Dataset):
    """Sequences of a sticky HMM of four symbols, some of whose rows are of other tokens."""

    def __init__(self, bad=(), count=10_000):
        self.good, self.bad, self.count = (
            HMMSequences(processes.random(3, 4, alpha=0.2, seed=1), LENGTH),
            set(bad),
            count,
        )

    def __len__(self):
        return self.count

    def __getitems__(self, indices):
        return [self[index] for index in indices]

    def __getitem__(self, index):
        if not 0 <= index < self.count:
            raise IndexError(index)
        if index not in self.bad:
            return self.good[index]
        generator = torch.Generator().manual_seed(index)
        row = torch.randint(FOREIGN.start, FOREIGN.stop, (LENGTH + 1,), generator=generator)
        return {"input_ids": row, "labels": row.clone()}


class Without(Dataset):
    """The rows of a data set without some of them."""

    def __init__(self, rows, left_out):
        self.rows, self.kept = rows, [index for index in range(2000) if index not in left_out]

    def __len__(self):
        return len(self.kept)

    def __getitem__(self, index):
        return self.rows[self.kept[index]]


def settings(folder, **given) -> PretrainSettings:
    defaults = {
        **{"max_steps": 30, "global_batch_size": GLOBAL_BATCH, "per_device_train_batch_size": 2, "logging_steps": 1},
        **{"learning_rate": 1e-2, "save_steps": 5, "report_to": "none", "log_indices": True},
        **({"spike_margin": 1} if given.get("on_spike") == "rollback" else {}),
    }
    return PretrainSettings(str(folder), **defaults | given)


def model() -> LlamaForCausalLM:
    set_seed(0)
    config = LlamaConfig(
        **{"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2},
        **{"num_attention_heads": 2, "max_position_embeddings": LENGTH + 1, "use_cache": False},
    )
    return LlamaForCausalLM(config)


def trainer(folder, rows, *, kind=Pretrainer, **given) -> Pretrainer:
    return kind(model=model(), args=settings(folder, **given), train_dataset=rows, data_collator=default_data_collator)


def train(folder, rows, **given):
    """One start of a run."""
    return train_and_save(trainer(folder, rows, **given), settings={}, data={})


def train_through(folder, rows, starts=5, **given):
    """Start a run again, as a recipe does by itself, until it no longer goes back; returns its summary."""
    for _ in range(starts):
        try:
            return train(folder, rows, **given)
        except RolledBack:
            continue
    raise AssertionError(f"went back {starts} times")


def losses(folder) -> list[float]:
    """The loss of every step, from the history."""
    return [row["loss"] for row in read_jsonl(folder / "history.jsonl") if "loss" in row]


def rows_by_step(folder) -> dict[int, list[int]]:
    """What every step trained on, by all ranks."""
    steps = {}
    for path in sorted(folder.glob("indices-*.jsonl")):
        for row in read_jsonl(path):
            steps.setdefault(row["step"], []).extend(row["indices"])
    return {step: sorted(rows) for step, rows in sorted(steps.items())}
