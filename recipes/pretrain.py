"""Pretrain a Llama-style model: on sequences of an HMM or a family, drawn as they are needed, or on tokenized text.

    accelerate launch --config_file accelerate_configs/cpu2.yaml recipes/pretrain.py \
        --config recipes/demo/pretrain_hmm.yaml [--learning_rate 3e-3 ...]

Optimizer step t trains on rows [t G, (t + 1) G), G the global batch, on any number of processes. The same command
goes on where a stopped run was. Beside the model in `output_dir`: `run.json` (settings, versions, command, commit),
`history.jsonl` (a row a log step), `checkpoint-N/`.
"""

from dataclasses import asdict, dataclass, field

from hmm_datasets.errors import InputError
from hmm_datasets.recipe import run


@dataclass
class DataSettings:
    """What to train on: exactly one of `hmm` and `tokens`."""

    hmm: str | None = field(default=None, metadata={"help": "Folder or Hub name of an HMM, or of a family of them."})
    tokens: str | None = field(default=None, metadata={"help": "Folder with token streams train/ and test/."})
    tokenizer: str | None = field(default=None, metadata={"help": "Folder of the tokenizer that made the tokens."})
    length: int = field(default=64, metadata={"help": "Symbols a sequence (HMM), tokens a window (text)."})
    stream_seed: int = field(default=0, metadata={"help": "Which stream of the HMM; which shuffle of the windows."})
    num_test_sequences: int = field(default=256, metadata={"help": "Held-out sequences or windows, at most."})

    def __post_init__(self):
        if (self.hmm is None) == (self.tokens is None):
            raise InputError(f"hmm is {self.hmm!r} and tokens {self.tokens!r}; expected exactly one of the two")
        if self.tokens is not None and self.tokenizer is None:
            raise InputError("tokens is set and tokenizer is not; the model is saved with it")


@dataclass
class ModelSettings:
    """What to train."""

    model: str = field(default="10m", metadata={"help": "A preset of hmm_datasets.training.models, or a depth: d12."})
    tie_embeddings: bool = field(default=False, metadata={"help": "Share input and output embeddings."})


def main(data: DataSettings, model_settings: ModelSettings, settings) -> None:
    """Build data and model, train, save."""
    from transformers import AutoTokenizer, LlamaForCausalLM, default_data_collator, set_seed

    from hmm_datasets import HMMSequences
    from hmm_datasets.data.views import TEST_FIRST
    from hmm_datasets.hmm.families import load_source
    from hmm_datasets.metrics.ladder import Ladder
    from hmm_datasets.text.shards import TokenStream
    from hmm_datasets.text.windows import TokenWindows, repeated_windows
    from hmm_datasets.training.models import llama_config, load_pretrained
    from hmm_datasets.training.run import train_and_save
    from hmm_datasets.training.trainers import Pretrainer

    set_seed(settings.seed)
    evaluation = {}
    tokenizer = None
    if data.hmm is not None:
        drawn_from = load_source(data.hmm)
        rows = HMMSequences(drawn_from, data.length, seed=data.stream_seed)
        test_rows = HMMSequences(
            drawn_from, data.length, seed=data.stream_seed, first=TEST_FIRST, num_sequences=data.num_test_sequences
        )
        ladder = Ladder(drawn_from)
        evaluation = {"compute_metrics": ladder.summarize, "preprocess_logits_for_metrics": ladder.reduce_logits}
        source = {"hmm": drawn_from.fingerprint()}
        special = {"vocab_size": rows.vocab_size, "bos_token_id": rows.bos_token_id}
        row_length = data.length + 1
        settings.plan(row_length)
    else:
        row_length = data.length
        stream = TokenStream(f"{data.tokens}/train")
        rows = repeated_windows(stream, data.length, settings.plan(row_length), seed=data.stream_seed)
        test_rows = TokenWindows(TokenStream(f"{data.tokens}/test"), data.length)
        tokenizer = load_pretrained(AutoTokenizer, data.tokenizer)
        source = {"tokens": stream.index.sha256}
        special = {
            "vocab_size": stream.index.vocab_size,
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
        }

    config = llama_config(
        model_settings.model, max_length=row_length, tie_embeddings=model_settings.tie_embeddings, **special
    )
    trainer = Pretrainer(
        model=LlamaForCausalLM(config),
        args=settings,
        train_dataset=rows,
        eval_dataset=test_rows,
        processing_class=tokenizer,
        data_collator=default_data_collator,  # the Trainer's choice for a tokenizer pads row by row
        **evaluation,
    )
    train_and_save(
        trainer,
        row_length=row_length,
        settings={**asdict(data), **asdict(model_settings)},
        data={
            **source,
            "length": data.length,
            "seed": data.stream_seed,
            "global_batch_size": settings.global_batch_size,
        },
    )


if __name__ == "__main__":
    run(main, DataSettings, ModelSettings, "PretrainSettings")
