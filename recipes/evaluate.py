"""Measure a model: against the exact optimum of an HMM, in bits per byte on held-out text, or both.

    accelerate launch --config_file accelerate_configs/cpu2.yaml recipes/evaluate.py \
        --model outputs/demo/pretrain_hmm --hmm outputs/demo/hmm/hmm --output_dir outputs/demo/evaluate_hmm

The numbers come from the modules in hmm_datasets/metrics, through `evaluate.load`. In `output_dir`: `evaluation.json`.
"""

from dataclasses import asdict, dataclass, field

from hmm_datasets.errors import InputError
from hmm_datasets.recipe import run


@dataclass
class EvaluationSettings:
    """What to measure, against what."""

    model: str = field(metadata={"help": "Folder or Hub name of a causal language model."})
    output_dir: str = field(metadata={"help": "Where evaluation.json goes."})
    hmm: str | None = field(default=None, metadata={"help": "Folder or Hub name of the HMM or family of the data."})
    length: int = field(default=64, metadata={"help": "Symbols a sequence."})
    num_sequences: int = field(default=512, metadata={"help": "Held-out sequences."})
    stream_seed: int = field(default=0, metadata={"help": "The stream it was trained on; others' indices are used."})
    bos: bool = field(default=True, metadata={"help": "Rows begin with a beginning token."})
    tokens: str | None = field(default=None, metadata={"help": "A held-out token stream, for bits per byte."})
    window: int = field(default=256, metadata={"help": "Tokens a window of text."})
    stride: int | None = field(
        default=None, metadata={"help": "Tokens a window scores, the others being context; default half a window."}
    )
    by_document: bool = field(default=False, metadata={"help": "No document is context of another."})
    batch_size: int = field(default=32, metadata={"help": "Rows a rank runs at once."})

    def __post_init__(self):
        if self.hmm is None and self.tokens is None:
            raise InputError("nothing to measure against; set hmm, tokens, or both")
        for name in ("length", "num_sequences", "window", "batch_size"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; expected 1 or more")
        if self.stride is None:
            self.stride = max(1, self.window // 2)


def main(settings: EvaluationSettings) -> None:
    """Load the model, measure, write, print a table."""
    from pathlib import Path

    import torch
    from accelerate import Accelerator
    from transformers import AutoModelForCausalLM

    from hmm_datasets.files import write_json
    from hmm_datasets.metrics.law import measure_law
    from hmm_datasets.metrics.text import measure_text
    from hmm_datasets.report.tables import hmm_table
    from hmm_datasets.training.models import load_pretrained
    from hmm_datasets.training.record import git_commit, versions

    accelerator = Accelerator(cpu=not torch.accelerator.is_available())
    model = load_pretrained(AutoModelForCausalLM, settings.model).to(accelerator.device).eval()
    result = {"settings": asdict(settings), "versions": versions(), "commit": git_commit()}
    if settings.hmm is not None:
        from hmm_datasets import HMMSequences
        from hmm_datasets.data.views import TEST_FIRST
        from hmm_datasets.hmm.families import load_source

        source = load_source(settings.hmm)
        # Beyond those the training curves were measured on.
        rows = HMMSequences(
            source,
            settings.length,
            seed=settings.stream_seed,
            first=TEST_FIRST + (1 << 32),
            num_sequences=settings.num_sequences,
            bos=settings.bos,
        )
        result["hmm"] = measure_law(model, source, rows, accelerator, batch_size=settings.batch_size)
    if settings.tokens is not None:
        from transformers import AutoTokenizer

        from hmm_datasets.text.shards import TokenStream
        from hmm_datasets.text.windows import StridedWindows

        stream = TokenStream(settings.tokens)
        windows = StridedWindows(stream, settings.window, settings.stride, settings.by_document)
        tokenizer = load_pretrained(AutoTokenizer, settings.model)
        result["text"] = measure_text(model, tokenizer, windows, accelerator, batch_size=settings.batch_size)
    if accelerator.is_main_process:
        write_json(Path(settings.output_dir) / "evaluation.json", result)
        if "hmm" in result:
            print(hmm_table(result["hmm"]))
        if "text" in result:
            text = result["text"]
            print(f"{text['bits_per_byte']:.4f} +- {text['standard_error']:.4f} bits a byte ({text['bytes']:,} bytes)")


if __name__ == "__main__":
    run(main, EvaluationSettings)
