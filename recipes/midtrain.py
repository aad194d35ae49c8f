"""Midtrain: go on training a model on a mixture of token streams, text and conversations for instance.

    accelerate launch --config_file accelerate_configs/cpu2.yaml recipes/midtrain.py \
        --config recipes/demo/midtrain.yaml [--weights 0.5 0.5 ...]

Rows come from the streams in the given proportions, by index alone, so that the order is the same on any number of
processes and after a resume.
"""

from dataclasses import asdict, dataclass, field

from hmm_datasets.errors import InputError
from hmm_datasets.recipe import run


@dataclass
class MixtureSettings:
    """What to train, on what."""

    model: str = field(metadata={"help": "Folder or Hub name of the pretrained model."})
    streams: list[str] = field(metadata={"help": "Folders with token streams train/ and test/."})
    weights: list[float] = field(metadata={"help": "Share each stream gets."})
    weigh_by: str = field(default="examples", metadata={"help": "What shares are of: examples (rows) or tokens."})
    length: int = field(default=256, metadata={"help": "Tokens a window."})
    stream_seed: int = field(default=0, metadata={"help": "Of the shuffle of the windows."})

    def __post_init__(self):
        if len(self.streams) != len(self.weights):
            raise InputError(f"{len(self.streams)} streams and {len(self.weights)} weights; expected as many")


def main(mixture: MixtureSettings, settings) -> None:
    """Load the model, mix the streams, train, save."""
    from torch.utils.data import ConcatDataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, default_data_collator, set_seed

    from hmm_datasets.data.mixtures import Mixture
    from hmm_datasets.text.shards import TokenStream, tokenizer_hash
    from hmm_datasets.text.windows import TokenWindows, repeated_windows
    from hmm_datasets.training.models import load_pretrained
    from hmm_datasets.training.run import train_and_save
    from hmm_datasets.training.trainers import Pretrainer

    set_seed(settings.seed)
    num_rows = settings.plan(mixture.length)
    tokenizer = load_pretrained(AutoTokenizer, mixture.model)
    streams = [TokenStream(f"{folder}/train") for folder in mixture.streams]
    for folder, stream in zip(mixture.streams, streams, strict=True):
        if stream.index.tokenizer_hash != tokenizer_hash(tokenizer):
            raise InputError(f"{folder}: made with another tokenizer than {mixture.model}; tokenize it again")
    sources = [repeated_windows(stream, mixture.length, num_rows, seed=mixture.stream_seed) for stream in streams]
    rows = Mixture(sources, mixture.weights, by=mixture.weigh_by, exhausted="error", num_rows=num_rows)
    held_out = [TokenWindows(TokenStream(f"{folder}/test"), mixture.length) for folder in mixture.streams]

    trainer = Pretrainer(
        model=load_pretrained(AutoModelForCausalLM, mixture.model),
        args=settings,
        train_dataset=rows,
        eval_dataset=ConcatDataset(held_out),
        processing_class=tokenizer,
        data_collator=default_data_collator,  # the Trainer's choice for a tokenizer pads row by row
    )
    train_and_save(
        trainer,
        row_length=mixture.length,
        settings={**asdict(mixture), "realized": rows.realized()},
        data={
            "tokens": [stream.index.sha256 for stream in streams],
            "counts": rows.counts,
            "length": mixture.length,
            "seed": mixture.stream_seed,
            "global_batch_size": settings.global_batch_size,
        },
    )


if __name__ == "__main__":
    run(main, MixtureSettings, "PretrainSettings")
