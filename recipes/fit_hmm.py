"""Fit an HMM to the words of a corpus by Baum-Welch.

    accelerate launch --config_file accelerate_configs/cpu2.yaml recipes/fit_hmm.py \
        --config recipes/demo/fit_hmm.yaml [--num_states 200 ...]

Keeps the sentences made only of the `vocabulary_size` commonest words, lays them end to end in windows, and fits. In
`output_dir`: `words/` (the sentences), `hmm/` (the model), `fit/` (checkpoints and `history.jsonl`), `summary.json`.
The same command goes on where a stopped fit was.
"""

from dataclasses import asdict, dataclass, field

from hmm_datasets.recipe import run


@dataclass
class FitHMMSettings:
    """What to fit, to what."""

    output_dir: str = field(metadata={"help": "Where everything goes."})
    corpus: str = field(
        default="tinystories-sample", metadata={"help": "A named corpus, a local file, or a data set on the Hub."}
    )
    max_documents: int | None = field(default=None, metadata={"help": "Read no more documents than this."})
    vocabulary_size: int = field(default=100, metadata={"help": "Words kept, the full stop among them."})
    sentences: str = field(default="train", metadata={"help": "Fit to `train`, or to its `unique` sentences."})
    length: int = field(default=64, metadata={"help": "Symbols a window."})
    num_states: int = field(default=100, metadata={"help": "Hidden states."})
    max_steps: int = field(default=100, metadata={"help": "Baum-Welch steps at most."})
    patience: int = field(default=5, metadata={"help": "Steps without a gain on held-out sentences before stopping."})
    pseudocount: float = field(default=1e-2, metadata={"help": "Added to every expected count."})
    batch_size: int = field(default=512, metadata={"help": "Windows in memory at once."})
    seed: int = field(default=0, metadata={"help": "Of the first guess and the order of the sentences."})


def main(settings: FitHMMSettings) -> None:
    """Read words, fit, save."""
    import itertools
    import time
    from pathlib import Path

    import torch
    from accelerate import PartialState

    from hmm_datasets import fit_hmm
    from hmm_datasets.files import write_json
    from hmm_datasets.hmm.fitting import FitSettings
    from hmm_datasets.text.corpora import load_corpus
    from hmm_datasets.text.words import build_word_corpus
    from hmm_datasets.training.record import write_record

    fit_settings = FitSettings(
        num_states=settings.num_states,
        max_steps=settings.max_steps,
        patience=settings.patience,
        pseudocount=settings.pseudocount,
        batch_size=settings.batch_size,
        seed=settings.seed,
    )
    state = PartialState(cpu=not torch.accelerator.is_available())
    output = Path(settings.output_dir)
    documents = (row["text"] for row in load_corpus(settings.corpus, test_fraction=0.0))
    words = build_word_corpus(itertools.islice(documents, settings.max_documents), k=settings.vocabulary_size)
    train = words.as_windows(settings.sentences, settings.length, seed=settings.seed)
    test = words.as_windows("test", settings.length, seed=settings.seed)
    write_record(output, asdict(settings), {"corpus": settings.corpus, "vocabulary_size": settings.vocabulary_size})
    if state.is_main_process:
        words.save(output / "words", overwrite=True)
        state.print(
            f"{len(words.train):,} sentences of {words.num_sentences:,} are made of the {settings.vocabulary_size} "
            f"commonest words ({len(words.unique):,} of them distinct), {len(words.test):,} held out; {train.size:,} "
            f"tokens in windows of {settings.length}"
        )
    began = time.time()
    result = fit_hmm(
        train,
        fit_settings,
        num_symbols=settings.vocabulary_size,
        test_tokens=test,
        vocabulary=words.vocabulary,
        checkpoint_dir=output / "fit",
        device=state.device,
    )
    if state.is_main_process:
        result.hmm.save_pretrained(output / "hmm")
        rate = result.hmm.entropy_rate()
        summary = {
            "steps": len(result.history),
            "best_step": result.step,
            "train_log_likelihood": result.train_log_likelihood,
            "test_log_likelihood": result.test_log_likelihood,
            "entropy_rate": rate.value,
            "entropy_rate_error": rate.standard_error,
            "train_tokens": int(train.size),
            "test_tokens": int(test.size),
            "seconds": round(time.time() - began, 1),
        }
        write_json(output / "summary.json", summary)
        print(
            f"{result.hmm} from step {result.step}: {result.train_log_likelihood:.4f} nats a token on train, "
            f"{result.test_log_likelihood:.4f} held out; entropy rate {rate.value:.4f} +- {rate.standard_error:.4f}"
        )


if __name__ == "__main__":
    run(main, FitHMMSettings)
