# /// script
# requires-python = ">=3.11"
# dependencies = ["hmm-datasets[pomegranate]"]
# ///

"""Fit an HMM by Baum-Welch to the words of a corpus, or to sequences of symbols in a file.

    hmm-datasets fit --config demo/fit_hmm.yaml [--launch cpu2] [--num_states 200 ...]
    hmm-datasets fit tokens.npy --num_states 50 --output_dir outputs/fit [--test held_out.npy]
    hmm-datasets fit tokens.npy --initial outputs/hmm --fixed start transition --output_dir outputs/fit

From a text corpus it keeps the sentences that use only the `vocabulary_size` most frequent words, and concatenates
them into windows. A `.npy` file of integers, of shape (N, L), is fitted as it is. In `output_dir` it writes `words/`
(the sentences), `hmm/` (the model), `fit/` (checkpoints and `history.jsonl`), `plots/` and `summary.json`. SIGTERM, a
file named `stop` in it, and `--time_limit` save the fit and stop it. The same command continues a stopped fit, on any
number of processes.
"""

import contextlib
from dataclasses import MISSING, asdict, dataclass, fields

from hmm_datasets.errors import InputError
from hmm_datasets.hmm.fitting.settings import FitSettings
from hmm_datasets.runtime.program import run
from hmm_datasets.runtime.settings import setting


@dataclass
class CorpusSettings:
    """The data to fit to; `FitSettings` has the settings of the fit."""

    output_dir: str = setting(MISSING, "Output folder.")
    corpus: str = setting(
        "tinystories-sample", "A named corpus, a local file, a data set on the Hub; or symbols, in a .npy file."
    )
    test: str | None = setting(None, "Held-out symbols in another .npy file, for early stopping.")
    states: str | None = setting(None, "Known states in another .npy file of the same shape, -1 where not known.")
    weights: str | None = setting(None, "Weights of the sequences in a .npy file of shape (N,).")
    num_symbols: int | None = setting(None, "Number of symbols in the .npy file; by default the largest plus one.")
    max_documents: int | None = setting(None, "Maximum number of documents to read.")
    vocabulary_size: int = setting(100, "Number of words in the vocabulary, including the full stop.")
    marks: str = setting("", "Marks besides the full stop that are words, as ',;'; sentences with others are dropped.")
    segmenter: str | None = setting(
        None,
        "MODULE:FUNCTION that cuts text of scripts without spaces into words, as jieba:lcut; by default each of its "
        "characters is a word.",
    )
    sentences: str = setting("train", "Sentences to fit to: train, or unique (each distinct one once).")
    length: int = setting(64, "Symbols per window.")
    time_limit: str | None = setting(
        None, "Save and stop before this time is up, written as in Slurm: 3:55:00 or 2-00:00:00."
    )
    assumed_tokens: int | None = setting(
        None, "Tokens per epoch that a plan assumes; without it there is no plan of a fit."
    )
    assumed_flops: float | None = setting(None, "FLOP/s of the device in float32 that a plan assumes, for hours.")
    device: str | None = setting(None, "Device to compute on, such as cuda:1; by default one per process.")

    def __post_init__(self):
        if self.corpus.endswith((".npz", ".csv", ".tsv", ".pt", ".pkl")):
            raise InputError(
                f"{self.corpus}: symbols are read from .npy (by numpy.save, integers of shape (N, L)), text from "
                ".txt, .jsonl, .json and .parquet; numpy.loadtxt and numpy.load read other tables"
            )
        for name in ("test", "states", "weights", "num_symbols"):
            if not self.is_array and getattr(self, name) is not None:
                raise InputError(f"{name} needs a .npy file, but corpus is {self.corpus}; leave it out")

    @property
    def is_array(self) -> bool:
        """Whether the corpus is a file of symbols."""
        return self.corpus.endswith(".npy")


@dataclass(frozen=True)
class HMMSettings(FitSettings):
    """Settings of the fit, whose number of states may be that of the HMM it starts from."""

    num_states: int | None = setting(None, "Number of hidden states; by default that of initial.")
    initial: str | None = setting(
        None, "Folder or name of an HMM to start from, of which zeros and fixed tables are kept."
    )

    def __post_init__(self):
        if self.num_states is None and self.initial is None:
            raise InputError("the following arguments are required: --num_states, or --initial FOLDER")
        if self.num_states is not None:
            super().__post_init__()

    def of_size(self, num_states: int | None) -> FitSettings:
        """The settings of the fit of an HMM of some states."""
        if num_states is None:
            raise InputError("num_states is that of initial, which is not read here; give --num_states")
        values = {field.name: getattr(self, field.name) for field in fields(FitSettings)}
        return FitSettings(**values | {"num_states": num_states})


def main(settings: CorpusSettings, hmm_settings: HMMSettings) -> None:
    """Read sequences, fit, save."""
    import time
    from pathlib import Path

    import torch
    from accelerate import PartialState

    from hmm_datasets import fit_hmm
    from hmm_datasets.files import read_log, write_json
    from hmm_datasets.foreign.arrays import load_array
    from hmm_datasets.hmm.analysis.losses import mean_losses, num_observed
    from hmm_datasets.hmm.arrays import read_tokens
    from hmm_datasets.hmm.fitting.state import HISTORY_NAME
    from hmm_datasets.hub.kinds.process import write_hmm_card
    from hmm_datasets.report.overview import draw_fit
    from hmm_datasets.runtime import heartbeats
    from hmm_datasets.runtime.stop_requests import Stopped, StopRequests, parse_time
    from hmm_datasets.training.record import write_record

    initial = None if hmm_settings.initial is None else _initial(hmm_settings.initial)
    fit_settings = hmm_settings.of_size(hmm_settings.num_states or initial.num_states)
    state = PartialState(cpu=not torch.accelerator.is_available())
    output = Path(settings.output_dir)
    data, vocabulary, known = {"corpus": settings.corpus}, None, {}
    if settings.is_array:
        files = {"states": settings.states, "weights": settings.weights}
        known = {name: load_array(path) for name, path in files.items() if path is not None}
        train = read_tokens(settings.corpus)
        test = None if settings.test is None else read_tokens(settings.test)
        num_symbols, scored = settings.num_symbols, {} if test is None else {"test": test}
    else:
        words = _words(settings)
        train, test = (
            words.as_windows(split, settings.length, seed=fit_settings.seed) for split in (settings.sentences, "test")
        )
        num_symbols = data["vocabulary_size"] = settings.vocabulary_size
        vocabulary, scored = words.vocabulary, {"test": test}
        if initial is not None and initial.vocabulary != vocabulary:
            raise InputError(
                f"initial {hmm_settings.initial}: has other words than the {settings.vocabulary_size} most frequent "
                f"of {settings.corpus}; give the corpus and vocabulary_size that it was fitted to"
            )
        if len(words.unique_test.tokens) >= settings.length:
            scored["unique_test"] = words.as_windows("unique_test", settings.length, seed=fit_settings.seed)
    write_record(output, asdict(settings) | asdict(hmm_settings), data, None, made=["fit/epoch-*", "hmm"])
    if state.is_main_process and vocabulary is not None:
        words.save(output / "words", overwrite=True)
        print(
            f"{len(words.train):,} of {words.num_sentences:,} sentences use only the {settings.vocabulary_size} most "
            f"frequent words ({len(words.unique):,} distinct), {len(words.test):,} held out; {train.size:,} tokens in "
            f"windows of {settings.length}"
        )
        reasons = [f"{count:,} with {reason}" for reason, count in words.dropped.items()]
        print(f"dropped sentences: {', '.join(reasons[:8]) or 'none'}{', ...' * (len(reasons) > 8)}")
    began = time.monotonic()
    limit = None if settings.time_limit is None else parse_time(settings.time_limit)
    # pomegranate keeps no checkpoints, so there is nothing to save
    listening = contextlib.nullcontext() if fit_settings.backend != "torch" else StopRequests(output, limit)
    try:
        with listening as requests, _errors_of_files(settings):
            result = fit_hmm(
                train,
                fit_settings,
                num_symbols=num_symbols,
                test_tokens=test,
                **known,
                initial=initial,
                vocabulary=vocabulary,
                checkpoint_dir=output / "fit" if fit_settings.backend == "torch" else None,
                device=settings.device or state.device,
                requests=requests,
            )
    except Stopped as reason:
        heartbeats.end("stopped", str(reason))
        if state.is_main_process:
            print(f"{output}: saved and stopped ({reason}); the same command continues")
            draw_fit(read_log(output / "fit" / HISTORY_NAME), int(num_observed(train).sum()), output)
        return
    if state.is_main_process:
        result.hmm.save_pretrained(output / "hmm")
        rate = result.hmm.entropy_rate()
        summary = {
            "epochs": result.history[-1]["epoch"] + 1 if result.history else 0,
            "best_epoch": result.epoch,
            "converged": result.converged,
            "reason": result.reason,
            "train_log_likelihood": result.train_log_likelihood,
            "test_log_likelihood": result.test_log_likelihood,
            "entropy_rate": rate.value,
            "entropy_rate_error": rate.standard_error,
            "train_tokens": int(num_observed(train).sum()),
            "test_tokens": 0 if test is None else int(num_observed(test).sum()),
            "seconds": round(time.monotonic() - began, 1),
        } | {
            name: mean_losses(result.hmm, windows, device=settings.device or state.device)
            for name, windows in scored.items()
        }
        write_json(output / "summary.json", summary)
        write_hmm_card(output)
        draw_fit(result.history, int(num_observed(train).sum()), output)
        held_out = "" if test is None else f", {result.test_log_likelihood:.4f} held out"
        print(
            f"{result.hmm} of epoch {result.epoch}: log-likelihood {result.train_log_likelihood:.4f} nats per token "
            f"on train{held_out}; entropy rate {rate.value:.4f} +- {rate.standard_error:.4f}"
        )
        print(f"{'converged' if result.converged else 'not converged'}: {result.reason}")


@contextlib.contextmanager
def _errors_of_files(settings: CorpusSettings):
    """Errors about symbols begin with the file that has them."""
    try:
        yield
    except InputError as error:
        message = str(error)
        of_test, name = "(test_tokens)" in message, message.partition(" ")[0].partition("[")[0]
        if settings.is_array and name in ("states", "weights"):
            raise InputError(f"{getattr(settings, name)}: {error}") from None
        if settings.is_array and (of_test or "token" in message.partition(" is ")[0]):
            raise InputError(f"{settings.test if of_test else settings.corpus}: {error}") from None
        raise


def _initial(name: str):
    """The HMM that the fit starts from."""
    from hmm_datasets import HMM, load_source

    process = load_source(name)
    if not isinstance(process, HMM):
        raise InputError(f"initial {name}: is {process.describe()}; expected an HMM")
    return process


def _words(settings: CorpusSettings):
    """The sentences of the corpus that use only its most frequent words."""
    import itertools

    from hmm_datasets.runtime.user_functions import imported_function
    from hmm_datasets.text.corpora.loading import load_corpus
    from hmm_datasets.text.tokenizers.words import build_word_corpus

    documents = (row["text"] for row in load_corpus(settings.corpus, kind="text", test_fraction=0.0))
    segmenter = None if settings.segmenter is None else imported_function("segmenter", settings.segmenter)
    return build_word_corpus(
        itertools.islice(documents, settings.max_documents),
        k=settings.vocabulary_size,
        marks=settings.marks,
        segmenter=segmenter,
    )


if __name__ == "__main__":
    run(main)
