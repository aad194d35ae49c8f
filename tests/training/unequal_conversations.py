"""Fine-tune on conversations of unequal lengths, with samples and one step whose gradient is infinite on one rank.

python unequal_conversations.py FOLDER MICRO_BATCH [SETTINGS]

SETTINGS is JSON, for packing and LoRA; with LoRA no gradient reaches the embeddings, and none is infinite.
"""

import json
import sys

import torch
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM

from hmm_datasets.compat.accelerate import shard_on_cpu
from hmm_datasets.text.tokenizers.bpe import train_bpe
from hmm_datasets.training.post_training.trainers import FineTuner
from hmm_datasets.training.run import train_and_save
from hmm_datasets.training.settings import SFTSettings

BAD_STEP = 2
WORDS = ["Once", "upon", "a", "time", "there", "was", "a", "cat", "that", "ran", "to", "the", "big", "red", "house"]


class Overflowing(FineTuner):
    """The gradient that reaches the embeddings is infinite at a step, on the last rank; the loss stays finite."""

    def training_step(self, *args, **kwargs):
        if self.state.global_step + 1 != BAD_STEP or self.args.process_index != self.args.world_size - 1:
            return super().training_step(*args, **kwargs)
        handle = self.model.get_input_embeddings().register_forward_hook(_spoil)
        try:
            return super().training_step(*args, **kwargs)
        finally:
            handle.remove()


def _spoil(module, inputs, output) -> None:
    output.register_hook(lambda gradient: gradient * float("inf"))


def conversation(number: int) -> list[dict[str, str]]:
    answer = " ".join(WORDS[: 1 + number * 5 % 14])
    return [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": answer}]


def main(folder: str, micro_batch: int, **given) -> FineTuner:
    shard_on_cpu()
    tokenizer = train_bpe([" ".join(WORDS)] * 8, 280, show_progress=False)
    rows = Dataset.from_list([{"messages": conversation(number)} for number in range(32)])
    settings = SFTSettings(
        folder,
        max_steps=3,
        global_batch_size=8,
        per_device_train_batch_size=micro_batch,
        per_device_eval_batch_size=2 if micro_batch == 2 else 7,
        logging_steps=1,
        save_strategy="no",
        sample_prompts=["Who?"],
        train_sampling_strategy="sequential",
        lr_scheduler_type="constant",
        learning_rate=1e-3,
        **given,
    )
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        eos_token_id=tokenizer.eos_token_id,
    )
    kind = FineTuner if settings.use_peft else Overflowing
    trainer = kind(
        model=LlamaForCausalLM(config),
        args=settings,
        train_dataset=rows,
        eval_dataset=rows.select(range(20, 27)),
        processing_class=tokenizer,
    )
    train_and_save(trainer, settings={}, data={})
    return trainer


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), **json.loads("".join(sys.argv[3:]) or "{}"))
