"""Fit an HMM to the words of a corpus by Baum-Welch.

    accelerate launch --config_file accelerate_configs/cpu2.yaml recipes/fit_hmm.py \
        --config recipes/demo/fit_hmm.yaml [--num_states 200 ...]

Keeps the sentences made only of the `vocabulary_size` commonest words, lays them end to end in windows, and fits. In
`output_dir`: `words/` (the sentences), `hmm/` (the model), `fit/` (checkpoints and `history.jsonl`), `summary.json`.
The same command goes on where a stopped fit was, on any number of processes.
"""

from dataclasses import asdict, dataclass, field

from hmm_datasets.hmm.fitting.settings import FitSettings
from hmm_datasets.launch import run


@dataclass
class CorpusSettings:
    """What to fit to; how is said by `FitSettings`."""

    output_dir: str = field(metadata={"help": "Where everything goes."})
    corpus: str = field(
        default="tinystories-sample", metadata={"help": "A named corpus, a local file, or a data set on the Hub."}
    )
    max_documents: int | None = field(default=None, metadata={"help": "Read no more documents than this."})
    vocabulary_size: int = field(default=100, metadata={"help": "Words kept, the full stop among them."})
    sentences: str = field(default="train", metadata={"help": "Fit to `train`, or to its `unique` sentences."})
    length: int = field(default=64, metadata={"help": "Symbols a window."})


def main(settings: CorpusSettings, fit_settings: FitSettings) -> None:
    """Read words, fit, save."""
    import itertools
    import time
    from pathlib import Path

    import torch
    from accelerate import PartialState

    from hmm_datasets import fit_hmm
    from hmm_datasets.files import write_json
    from hmm_datasets.hub.run_cards import write_hmm_card
    from hmm_datasets.text.corpora.loading import load_corpus
    from hmm_datasets.text.tokenizers.words import build_word_corpus
    from hmm_datasets.training.record import write_record

    state = PartialState(cpu=not torch.accelerator.is_available())
    output = Path(settings.output_dir)
    documents = (row["text"] for row in load_corpus(settings.corpus, kind="text", test_fraction=0.0))
    words = build_word_corpus(itertools.islice(documents, settings.max_documents), k=settings.vocabulary_size)
    train = words.as_windows(settings.sentences, settings.length, seed=fit_settings.seed)
    test = words.as_windows("test", settings.length, seed=fit_settings.seed)
    chosen = asdict(settings) | asdict(fit_settings)
    write_record(output, chosen, {"corpus": settings.corpus, "vocabulary_size": settings.vocabulary_size}, None)
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
        checkpoint_dir=output / "fit" if fit_settings.backend == "torch" else None,
        device=state.device,
    )
    if state.is_main_process:
        result.hmm.save_pretrained(output / "hmm")
        rate = result.hmm.entropy_rate()
        summary = {
            "epochs": result.history[-1]["epoch"] + 1 if result.history else 0,
            "best_epoch": result.epoch,
            "train_log_likelihood": result.train_log_likelihood,
            "test_log_likelihood": result.test_log_likelihood,
            "entropy_rate": rate.value,
            "entropy_rate_error": rate.standard_error,
            "train_tokens": int(train.size),
            "test_tokens": int(test.size),
            "seconds": round(time.time() - began, 1),
        }
        write_json(output / "summary.json", summary)
        write_hmm_card(output)
        print(
            f"{result.hmm} of epoch {result.epoch}: {result.train_log_likelihood:.4f} nats a token on train, "
            f"{result.test_log_likelihood:.4f} held out; entropy rate {rate.value:.4f} +- {rate.standard_error:.4f}"
        )


if __name__ == "__main__":
    run(main, CorpusSettings, FitSettings)
