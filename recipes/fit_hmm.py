# /// script
# requires-python = ">=3.11"
# dependencies = ["hmm-datasets"]
# ///

"""Fit an HMM to a corpus or to sequences, by Baum-Welch.

    hmm-datasets fit --config demo/fit_hmm.yaml [--launch cpu2] [--num_states 200 ...]
    hmm-datasets fit tokens.npy --num_states 50 --output_dir outputs/fit [--test held_out.npy]
    hmm-datasets fit tokens.npy --num_states 2 4 8 --test held_out.npy --output_dir outputs/sizes
    hmm-datasets fit tokens.npy --initial outputs/hmm --fixed start transition --output_dir outputs/fit
    hmm-datasets fit --initial outputs/hmm --block_size 16 64 --rank 256 --output_dir outputs/blocks

From a text corpus it keeps the sentences that use only the `vocabulary_size` most frequent words, and concatenates
them into windows. A `.npy` file of integers, of shape (N, L), is fitted as it is. In `output_dir` it writes `words/`
(the sentences), `hmm/` (the model), `fit/` (checkpoints and `history.jsonl`), `plots/` and `summary.json`. Of several
numbers of states each has a folder `states-H/` of its own, and a table compares them. SIGTERM, a file named `stop` in
it, and `--time_limit` save the fit and stop it. The same command continues a stopped fit, on any number of processes.
"""

import contextlib
from dataclasses import MISSING, asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from hmm_datasets.errors import InputError
from hmm_datasets.hmm.fitting.settings import FitSettings
from hmm_datasets.runtime.program import run
from hmm_datasets.runtime.setting_rules import Void
from hmm_datasets.runtime.settings import setting

_RESTARTS_OF_SIZES = 10  # that none finds what one in five does has a probability of 0.1


@dataclass
class CorpusSettings:
    """The data to fit to; `FitSettings` has the settings of the fit."""

    output_dir: str = setting(MISSING, "Output folder.")
    corpus: str = setting(
        "tinystories-sample",
        "A named corpus, a local file, a data set on the Hub; or symbols: .npy, .npz, a text or .jsonl of integers.",
    )
    lengths: str | None = setting(
        None, "Lengths of the sequences in another .npy file, of rows that end early or of one column as in hmmlearn."
    )
    test: str | None = setting(None, "Held-out symbols in another file, for early stopping.")
    states: str | None = setting(None, "Known states in another file of the same form, -1 where not known.")
    weights: str | None = setting(None, "Weights of the sequences in a .npy file of shape (N,).")
    num_symbols: int | None = setting(
        None, "Number of symbols in the .npy file; by default the largest plus one.", least=1
    )
    max_documents: int | None = setting(None, "Maximum number of documents to read.", least=1)
    vocabulary_size: int = setting(100, "Number of words in the vocabulary, including the full stop.", least=1)
    marks: str = setting("", "Marks besides the full stop that are words, as ',;'; sentences with others are dropped.")
    segmenter: str | None = setting(
        None,
        "MODULE:FUNCTION that cuts text of scripts without spaces into words, as jieba:lcut; by default each of its "
        "characters is a word.",
    )
    sentences: str = setting("train", "Sentences or lines of integers to fit to: train, or unique (each once).")
    length: int = setting(64, "Symbols per window.", least=1)
    time_limit: str | None = setting(
        None, "Save and stop before this time is up, written as in Slurm: 3:55:00 or 2-00:00:00."
    )
    device: str | None = setting(
        None, "Device to compute on, such as cuda:1, of blocks cpu; by default one per process."
    )

    voids = (
        Void("lengths test states weights num_symbols", "unless corpus is a file of symbols"),
        Void("max_documents vocabulary_size marks segmenter length", "if corpus is a file of symbols"),
        Void("patience", "if corpus is a file of symbols and there is no test"),
    )
    void_facts: ClassVar = {
        "corpus is a file of symbols": lambda get: _has_symbols(get("corpus")),
        "corpus is a file of symbols and there is no test": lambda get: (
            not get("test") and _has_symbols(get("corpus"))
        ),
    }

    def __post_init__(self):
        if not self.is_array and self.corpus.endswith((".csv", ".tsv", ".pt", ".pkl")):
            raise InputError(
                f"{self.corpus}: symbols are read from .npy (by numpy.save, integers of shape (N, L)), .npz, and "
                "lines of integers in .txt, .csv, .tsv and .jsonl; text from .txt, .jsonl, .json and .parquet"
            )

    @cached_property
    def is_array(self) -> bool:
        """Whether the corpus is a file of symbols."""
        return _has_symbols(self.corpus)


def _has_symbols(corpus: str) -> bool:
    from hmm_datasets.hmm.token_files import is_token_file

    return is_token_file(corpus)


@dataclass(frozen=True)
class HMMSettings(FitSettings):
    """Settings of the fits, one for each number of states."""

    num_states: list[int] = setting(
        [], "Numbers of hidden states, of which each is fitted; by default that of initial.", least=1
    )
    initial: str | None = setting(
        None, "Folder or name of an HMM to start from, of which zeros and fixed tables are kept."
    )
    block_size: list[int] = setting(
        [], "Numbers of states in the block of a symbol: each is fitted, from the fit before it or initial.", least=1
    )
    rank: int | None = setting(None, "The rank of transitions; by default that of initial.", least=1)
    num_restarts: int | None = setting(
        None,
        "Number of first guesses of each fit; the most likely after restart_epochs is kept. By default 1, or 10 where "
        "several num_states are compared.",
    )

    voids = (
        Void("rank", "without block_size"),
        Void("num_states", "with block_size", "states of initial become its blocks"),
    )

    def __post_init__(self):
        if self.block_size and self.initial is None:
            raise InputError("block_size needs initial, a fit whose states become the blocks; give --initial FOLDER")
        if not self.num_states and self.initial is None:
            raise InputError("the following arguments are required: --num_states, or --initial FOLDER")
        if len(set(self.num_states)) < len(self.num_states):
            raise InputError(f"num_states has a number twice: {' '.join(map(str, self.num_states))}; give each once")
        if self.initial is not None and len(self.num_states) > 1:
            raise InputError(f"initial {self.initial}: has one number of states; give one num_states, or none")
        for num_states in self.num_states:
            self._of_size(num_states)

    def read_initial(self) -> Any:
        """The HMM that the fit starts from, if there is one."""
        from hmm_datasets import HMM, load_source
        from hmm_datasets.hmm.structured.blocked import BlockedHMM

        process = None if self.initial is None else load_source(self.initial)
        if process is not None and not isinstance(process, HMM | BlockedHMM):
            raise InputError(f"initial {self.initial}: is {process.describe()}; expected an HMM")
        return process

    def sizes(self, initial: Any) -> list[FitSettings]:
        """The settings of the fit of each number of states, of which the default is that of the first guess."""
        return [self._of_size(size) for size in self.num_states or [initial.num_states]]

    def of_blocks(self, block_size: int, before: Any) -> tuple[FitSettings, Any]:
        """The settings of the fit with blocks of this size, and its first guess, given the fit before it."""
        from hmm_datasets.hmm.fitting.growth import blocks_of, grown
        from hmm_datasets.hmm.structured.blocked import BlockedHMM

        blocked = before if isinstance(before, BlockedHMM) else blocks_of(before, seed=self.seed)
        guess = grown(blocked, block_size=block_size, rank=self.rank, seed=self.seed)
        return self._of_size(guess.num_states), guess

    def _of_size(self, num_states: int) -> FitSettings:
        values = {field.name: getattr(self, field.name) for field in fields(FitSettings)}
        if self.num_restarts is None:
            # Of one guess each, the table would compare local maxima. All guesses of one state have the same maximum.
            is_compared = len(self.num_states) > 1
            values["num_restarts"] = _RESTARTS_OF_SIZES if is_compared and num_states > 1 else 1
            if is_compared and num_states == 1:
                del values["restart_epochs"]  # given for the other sizes
        return FitSettings(**values | {"num_states": num_states})


def main(settings: CorpusSettings, hmm_settings: HMMSettings) -> None:
    """Read sequences, fit, save."""
    import torch
    from accelerate import PartialState
    from fit_sizes import size_row

    from hmm_datasets.files import read_log
    from hmm_datasets.hmm.fitting.state import HISTORY_NAME
    from hmm_datasets.hmm.structured.blocked import BlockedHMM
    from hmm_datasets.report.overview import draw_fit
    from hmm_datasets.runtime import heartbeats
    from hmm_datasets.runtime.stop_requests import Stopped, StopRequests, parse_time
    from hmm_datasets.training.record import write_record

    initial = hmm_settings.read_initial()
    sizes = hmm_settings.sizes(initial)
    count = len(hmm_settings.block_size or sizes)
    state = PartialState(cpu=not torch.accelerator.is_available())
    output = Path(settings.output_dir)
    data = _read_data(settings, hmm_settings, initial)
    record = asdict(settings) | asdict(hmm_settings), data.identity
    write_record(output, *record, None, made=["fit/epoch-*", "states-*", "hmm"])
    if state.is_main_process and data.words is not None:
        data.words.save(output / "words", overwrite=True)
        print(data.words_text)
    limit = None if settings.time_limit is None else parse_time(settings.time_limit)
    rows = []
    try:
        with StopRequests(output, limit) as requests, _errors_of_files(settings):
            for size in hmm_settings.block_size or sizes:
                if hmm_settings.block_size:
                    size, initial = hmm_settings.of_blocks(size, initial)
                folder = output if count == 1 else output / f"states-{size.num_states}"
                if folder != output:
                    write_record(folder, *record, None)
                device = settings.device or ("cpu" if isinstance(initial, BlockedHMM) else state.device)
                observer = _Observer(data, device) if state.is_main_process else None
                result = _fit(data, size, folder, initial, device, requests, observer)
                initial = result.hmm if hmm_settings.block_size else initial
                if state.is_main_process and count > 1:
                    row = size_row(result, *(data.test or (None, None)), device=device)
                    rows.append(row | {"folder": str(folder)})
    except Stopped as reason:
        heartbeats.end("stopped", str(reason))
        if state.is_main_process:
            print(f"{output}: saved and stopped ({reason}); the same command continues")
            draw_fit(read_log(folder / "fit" / HISTORY_NAME), data.train.num_tokens, folder)
        return
    if rows:
        _report_sizes(rows, output)


@dataclass
class _Data:
    """The sequences of a fit and what belongs to them."""

    train: Any
    test: Any
    num_symbols: int | None
    identity: dict[str, Any]
    scored: dict[str, Any]
    known: dict[str, Any]
    words: Any = None
    words_text: str = ""

    @property
    def vocabulary(self):
        return None if self.words is None else self.words.vocabulary


def _read_data(settings: CorpusSettings, hmm_settings: HMMSettings, initial) -> _Data:
    """The sequences in the files, or windows of the sentences of a corpus."""
    import numpy as np

    from hmm_datasets.foreign.arrays import load_array
    from hmm_datasets.hmm.token_files import TokenRows, read_token_rows

    identity = {"corpus": settings.corpus}
    if settings.is_array:
        train = read_token_rows(settings.corpus, settings.lengths)
        known = {} if settings.weights is None else {"weights": load_array(settings.weights)}
        if settings.states is not None:
            states = read_token_rows(settings.states, settings.lengths)
            if states.lengths is not None and not np.array_equal(states.lengths, train.lengths):
                raise InputError(
                    f"{settings.states}: its sequences have other lengths than those of {settings.corpus}"
                )
            known["states"] = states.tokens
        test = None if settings.test is None else read_token_rows(settings.test)
        scored = {} if test is None else {"test": test}
        unique_test = None if test is None else test.distinct(train)
        if unique_test is not None and len(unique_test.ends):
            scored["unique_test"] = unique_test
        if settings.sentences == "unique":
            if known:
                raise InputError(
                    f"sentences is unique, but {' and '.join(known)} are given for every sequence; leave them out, or "
                    "fit to all sequences"
                )
            train = train.distinct()
        return _Data(train, test, settings.num_symbols, identity, scored, known)
    words, seed, length = _words(settings), hmm_settings.seed, settings.length
    if initial is not None and initial.vocabulary != words.vocabulary:
        raise InputError(
            f"initial {hmm_settings.initial}: has other words than the {settings.vocabulary_size} most frequent "
            f"of {settings.corpus}; give the corpus and vocabulary_size that it was fitted to"
        )
    splits = (settings.sentences, "test")
    train, test = (TokenRows(words.as_windows(split, length, seed=seed)) for split in splits)
    scored = {"test": test}
    if len(words.unique_test.tokens) >= length:
        scored["unique_test"] = TokenRows(words.as_windows("unique_test", length, seed=seed))
    reasons = [f"{count:,} with {reason}" for reason, count in words.dropped.items()]
    text = (
        f"{len(words.train):,} of {words.num_sentences:,} sentences use only the {settings.vocabulary_size} most "
        f"frequent words ({len(words.unique):,} distinct), {len(words.test):,} held out; {train.num_tokens:,} tokens "
        f"in windows of {length}\n"
        f"dropped sentences: {', '.join(reasons[:8]) or 'none'}{', ...' * (len(reasons) > 8)}"
    )
    identity["vocabulary_size"] = settings.vocabulary_size
    return _Data(train, test, settings.vocabulary_size, identity, scored, {}, words, text)


def _fit(data: _Data, settings: FitSettings, output: Path, initial, device, requests, observer):
    """Fit an HMM and, on the process that observes it, write it into a folder; returns the result."""
    import time

    from hmm_datasets import fit_hmm

    began = time.monotonic()
    test, test_lengths = data.test or (None, None)
    result = fit_hmm(
        data.train.tokens,
        settings,
        num_symbols=data.num_symbols,
        lengths=data.train.lengths,
        test_tokens=test,
        test_lengths=test_lengths,
        **data.known,
        initial=initial,
        vocabulary=data.vocabulary,
        checkpoint_dir=output / "fit",
        device=device,
        requests=requests,
        on_epoch=observer,
    )
    if observer is not None:
        _save(result, data, output, device, round(time.monotonic() - began, 1))
    return result


class _Observer:
    """Adds losses and divergences to the row of each epoch."""

    def __init__(self, data: _Data, device):
        from hmm_datasets.hmm.analysis.fit_metrics import FitMetrics

        self._metrics = FitMetrics(data.train, data.scored, device=device)

    def __call__(self, row: dict[str, Any], hmm) -> None:
        row.update(self._metrics(hmm))


def _save(result, data: _Data, output: Path, device, seconds: float) -> None:
    """Write the HMM, its card, `summary.json` and plots, and print what the fit reached."""
    from hmm_datasets.files import atomic_file, write_json
    from hmm_datasets.hmm.analysis.losses import mean_losses
    from hmm_datasets.hub.kinds.process import write_hmm_card
    from hmm_datasets.report.overview import draw_fit, fit_table
    from hmm_datasets.report.tables import csv_text

    result.hmm.save_pretrained(output / "hmm")
    rate = result.hmm.entropy_rate()
    summary = {
        "epochs": result.history[-1]["epoch"] + 1 if result.history else 0,
        "best_epoch": result.epoch,
        "converged": result.converged,
        "reason": result.reason,
        "train_log_likelihood": result.train_log_likelihood,
        "test_log_likelihood": result.test_log_likelihood,
        "parameters": result.num_parameters,
        "aic": result.aic,
        "bic": result.bic,
        "entropy_rate": rate.value,
        "entropy_rate_error": rate.standard_error,
        "train_tokens": data.train.num_tokens,
        "test_tokens": 0 if data.test is None else data.test.num_tokens,
        "seconds": seconds,
    }
    scores = {name: mean_losses(result.hmm, *rows, device=device) for name, rows in data.scored.items()}
    write_json(output / "summary.json", summary | scores)
    write_hmm_card(output)
    if result.history:
        table = fit_table(result.history)
        print(table.text(), end="\n\n")
        with atomic_file(output / "epochs.csv") as temporary:
            names = list({name: None for row in result.history for name in row})
            rows = ([row.get(name, "") for name in names] for row in result.history)
            temporary.write_text(csv_text([names, *rows]), encoding="utf-8")
    draw_fit(result.history, data.train.num_tokens, output)
    held_out = "" if data.test is None else f", {result.test_log_likelihood:.4f} held out"
    print(
        f"{result.hmm} of epoch {result.epoch}: log-likelihood {result.train_log_likelihood:z.4f} nats per token "
        f"on train{held_out}; entropy rate {rate.value:.4f} +- {rate.standard_error:.4f}"
    )
    print(f"{'converged' if result.converged else 'not converged'}: {result.reason}")


def _report_sizes(rows: list[dict[str, Any]], output: Path) -> None:
    """Print the table of the sizes, and write it with its curve."""
    from fit_sizes import best_size, plot_sizes, sizes_table

    from hmm_datasets.files import atomic_file, write_json
    from hmm_datasets.report.tables import csv_text

    best = best_size(rows)
    write_json(output / "summary.json", {"best": best["folder"], "sizes": rows})
    with atomic_file(output / "sizes.csv") as temporary:
        temporary.write_text(csv_text([list(rows[0]), *(row.values() for row in rows)]), encoding="utf-8")
    plot_sizes(rows, output / "plots" / "sizes.png", title=output.resolve().name)
    print(f"\n{sizes_table(rows).text()}\n{output}/: sizes.csv, summary.json, plots/sizes.png")
    print(f"best: {best['folder']}/hmm")


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


def _words(settings: CorpusSettings):
    """The sentences of the corpus that use only its most frequent words."""
    import itertools

    from hmm_datasets.runtime.credentials import masked
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
        corpus=masked(settings.corpus, secrets=()),
    )


if __name__ == "__main__":
    run(main)
