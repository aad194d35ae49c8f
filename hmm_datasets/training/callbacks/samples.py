"""Continuations of chosen prompts during training, generated at every evaluation.

They are written to `samples.jsonl`, one row per prompt, and shown above the progress bar. Training is not affected:
the state of the random numbers and the mode of the model are restored. If every rank has the whole model, only rank 0
generates, and the others wait for it at their next collective. Under ZeRO-3 and FSDP2 all ranks take part, since each
has a part of the weights. A prompt costs 48 forward passes of one row.
"""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from transformers import TrainerCallback
from transformers.integrations import is_deepspeed_zero3_enabled
from trl import DPOConfig, GRPOConfig, SFTConfig

from ...compat.transformers_caches import generate
from ...errors import InputError
from ...files import append_jsonl
from ...hmm.tokenizer import check_symbols
from ...text.corpora.local_files import read_rows
from ...text.tokenizers.chat_encoding import encode_conversation
from ..record import truncate_after_step

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ..run_context import RunContext

SAMPLES_NAME = "samples.jsonl"
_NEW_TOKENS = 48


def read_sample_prompts(prompts: list[str]) -> list[str]:
    """The prompts of the settings: as they are, or those in the file that the only one names.

    Raises:
        `InputError`: a prompt is empty, or the file has none.
    """
    if not all(prompts):
        raise InputError(f"sample_prompts: prompt {prompts.index('') + 1} is empty; write some words there")
    if len(prompts) != 1 or not os.path.isfile(prompts[0]):
        return prompts
    texts = [row.get("prompt", row.get("text")) for _, row in read_rows(Path(prompts[0]))]
    is_text = all(isinstance(text, str) for text in texts)
    lines = [line for text in texts for line in text.splitlines() if line.strip()] if is_text else []
    if not lines:
        raise InputError(f"sample_prompts: {prompts[0]}: expected a prompt on each line, or rows with prompt")
    return lines


class Samples(TrainerCallback):
    """Continues the prompts of the settings (`sample_prompts`).

    A trainer for conversations gives them to the model as a user's messages.

    Args:
        run ([`~hmm_datasets.training.run_context.RunContext`]): the run.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`], *optional*): that of the model.

    Raises:
        `InputError`: there is no tokenizer, or it is one of symbols, which cannot read a prompt.
    """

    def __init__(self, run: "RunContext", tokenizer: "PreTrainedTokenizerBase | None"):
        if tokenizer is None:
            raise InputError(
                "sample_prompts is set, but there is no tokenizer to read them; leave it out, or give the trainer a "
                "tokenizer as processing_class"
            )
        for number, prompt in enumerate(run.args.sample_prompts, start=1):
            check_symbols(tokenizer, prompt, f"sample_prompts: prompt {number}: ")
        self._run, self._tokenizer = run, tokenizer
        self.path = Path(run.args.output_dir) / SAMPLES_NAME
        self._done_at: int | None = None

    def on_train_begin(self, args, state, control, **kwargs):
        """Drop the rows after the checkpoint that the run continues from."""
        if state.is_world_process_zero:
            truncate_after_step(self.path, state.global_step)

    def on_evaluate(self, args, state, control, **kwargs):
        """Continue every prompt, once per step even if several data sets are evaluated."""
        if self._done_at == state.global_step:
            return
        self._done_at = state.global_step
        is_sharded = self._run.is_fsdp_enabled or is_deepspeed_zero3_enabled()
        if not (state.is_world_process_zero or is_sharded):
            return
        for prompt, text in zip(args.sample_prompts, self._write(args), strict=True):
            if not state.is_world_process_zero:
                continue
            row = {"step": state.global_step, "tokens": state.num_input_tokens_seen, "time": time.time()}
            append_jsonl(self.path, row | {"prompt": prompt, "text": text})
            self._run.say(f"step {state.global_step:>6,}  {prompt!r} -> {text!r}")

    def _write(self, args) -> list[str]:
        model = self._run.accelerator.unwrap_model(self._run.model)
        was_training = model.training
        model.eval()
        devices = [args.device] if args.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(args.seed)  # all ranks of a sharded model must draw the same tokens
            texts = [self._continue(model, prompt, args) for prompt in args.sample_prompts]
        model.train(was_training)
        return texts

    def _continue(self, model, prompt: str, args) -> str:
        tokenizer = self._tokenizer
        if isinstance(args, SFTConfig | DPOConfig | GRPOConfig) and tokenizer.chat_template is not None:
            question = [{"role": "user", "content": prompt}]
            asked = encode_conversation(tokenizer, question, add_generation_prompt=True)
        else:
            asked = tokenizer(prompt, split_special_tokens=True)["input_ids"]
        tokens = torch.tensor([asked], device=args.device)
        output = generate(
            model,
            input_ids=tokens,
            attention_mask=torch.ones_like(tokens),
            pad_token_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id,
            max_new_tokens=_NEW_TOKENS,
        )
        return tokenizer.decode(output[0, len(asked) :], skip_special_tokens=True)
