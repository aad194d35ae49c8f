"""A trainer of every stage for the tiny chat model, eight steps of which take a tenth of a second."""

from functools import partial

from datasets import Dataset
from tiny_chat import WORDS, message
from tiny_runs import random_rows
from transformers.data.data_collator import default_data_collator

from hmm_datasets.training.post_training.trainers import FineTuner, PolicyTuner, PreferenceTuner
from hmm_datasets.training.settings import DPOSettings, GRPOSettings, PretrainSettings, SFTSettings
from hmm_datasets.training.trainer import Pretrainer

ASKED = [(message("user", f"Say {one} and {two}."), one, two) for one in WORDS for two in WORDS if one != two]


def rows_of(name, swapped=False):
    """The rows of a stage: every pair of words is asked for, and answered in one order or the other."""
    asked = ASKED if not swapped else [(prompt, two, one) for prompt, one, two in ASKED]
    if name == "sft":
        rows = [{"messages": prompt + message("assistant", f"{one} {two}")} for prompt, one, two in asked]
    elif name == "dpo":
        rows = [
            {"prompt": prompt, "chosen": message("assistant", one), "rejected": message("assistant", two)}
            for prompt, one, two in asked
        ]
    else:
        rows = [{"prompt": prompt, "answer": one} for prompt, one, _ in asked]
    return Dataset.from_list(rows)


def trainer_of(name, folder, model, tokenizer, *, swapped=False, held_out=None, **given):
    """A trainer; `held_out` is the number of rows that it evaluates."""
    defaults = {
        "max_steps": 8,
        "global_batch_size": 8,
        "per_device_train_batch_size": 8,
        "learning_rate": 1e-5 if name in ("sft", "midtrain") else 1e-6,
        "bf16": False,
        "save_strategy": "no",
        "report_to": "none",
        "logging_steps": 8,
    }
    given = defaults | given
    if name == "midtrain":
        settings = PretrainSettings(str(folder), warmup_steps=0, **given)
        return Pretrainer(
            model=model, args=settings, train_dataset=random_rows(64), data_collator=default_data_collator
        )
    if name == "sft":
        kind, settings = FineTuner, SFTSettings(str(folder), max_length=48, **given)
    elif name == "dpo":
        kind, settings = PreferenceTuner, DPOSettings(str(folder), max_length=48, **given)
    else:
        kind = partial(PolicyTuner, reward_funcs=[lambda completions, **_: [len(str(one)) for one in completions]])
        settings = GRPOSettings(str(folder), num_generations=4, max_completion_length=8, **given)
    rows = rows_of(name, swapped)
    test = None if held_out is None else rows.select(range(held_out))
    return kind(model=model, args=settings, train_dataset=rows, eval_dataset=test, processing_class=tokenizer)
