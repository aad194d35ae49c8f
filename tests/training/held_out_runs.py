"""Evaluates seven held-out rows with every trainer, in batches of several sizes; run by launchers and in tests."""

import json
import sys
from pathlib import Path

import torch
from tiny_trainers import trainer_of
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.data.data_collator import default_data_collator

sys.path.append(str(Path(__file__).parents[2] / "recipes" / "common"))
from architectures import architecture_config

from hmm_datasets.data.sequences import FiniteSequences
from hmm_datasets.evaluation.baselines import BaselineComparison
from hmm_datasets.hmm import processes
from hmm_datasets.training.model_configs import new_model
from hmm_datasets.training.settings import PretrainSettings
from hmm_datasets.training.trainer import Pretrainer

ROWS = 7
MEASURED = ("runtime", "per_second", "num_tokens", "model_preparation")


def pretrainer(folder, batch):
    hmm = processes.mess3()
    rows = FiniteSequences(hmm, 16, num_sequences=ROWS)
    torch.manual_seed(0)
    config = architecture_config("llama", vocab_size=rows.vocab_size, length=17, width=32, layers=1, bos_token_id=3)
    baselines = BaselineComparison(hmm)
    return Pretrainer(
        model=new_model(config),
        args=PretrainSettings(
            str(folder), max_steps=1, per_device_eval_batch_size=batch, report_to="none", bf16=False
        ),
        train_dataset=rows,
        eval_dataset=rows,
        data_collator=default_data_collator,
        compute_metrics=baselines.summarize,
        preprocess_logits_for_metrics=baselines.reduce_logits,
    )


def trainers(folder, base, batch, names=("pretrain", "sft", "dpo")):
    """The trainers by name, each with weights that its reference does not have."""
    for name in names:
        if name == "pretrain":
            yield name, pretrainer(Path(folder) / name, batch)
            continue
        model, tokenizer = AutoModelForCausalLM.from_pretrained(base), AutoTokenizer.from_pretrained(base)
        given = {"per_device_eval_batch_size": batch, "held_out": ROWS, "per_device_train_batch_size": 4}
        given |= {"precompute_ref_log_probs": False} if name == "dpo" else {}
        trainer = trainer_of(name, Path(folder) / name, model, tokenizer, **given)
        torch.manual_seed(1)
        for weight in trainer.model.parameters():
            weight.data += 0.05 * torch.randn(weight.shape)
        yield name, trainer


def measures(trainer):
    trainer.evaluate()
    row = trainer.state.log_history[-1]
    return {k: v for k, v in row.items() if k.startswith("eval_") and not any(part in k for part in MEASURED)}


if __name__ == "__main__":
    found = {
        f"{name} {batch}": measures(trainer)
        for batch in (1, 2, 3)
        for name, trainer in trainers(sys.argv[1], sys.argv[2], batch)
    }
    Path(sys.argv[1], f"measures-{torch.distributed.get_rank()}.json").write_text(json.dumps(found))
