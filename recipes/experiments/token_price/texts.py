"""The texts of the experiment, the exact losses of predictors of their tokens, and those of models.

Losses are in nats, summed over the tokens of each row of the test text: differences of two predictors on the same
tokens vary much less than their losses.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int

from hmm_datasets.data.sequences import TEST_FIRST
from hmm_datasets.hmm.analysis.stationary import entropy
from hmm_datasets.hmm.model import HMM
from hmm_datasets.hmm.process import Rows
from hmm_datasets.hmm.structured.symbol_tokenizer import SymbolTokenizer, train_symbol_bpe
from hmm_datasets.hmm.structured.tokenized import TokenizedProcess
from hmm_datasets.hmm.structured.wrapped import WrappedProcess

ROWS, LENGTH = 32, 8192
"""Sequences of the test text, half of those of the text that tokenizers are trained on, and symbols of each."""
BEYOND = 256
"""Symbols after those of the test text that are cut with them, since the end of a text is cut as nothing else is."""
SKIPPED = 64
"""Tokens before the first window of a sequence, so that it begins within the text."""
WINDOWS = (1, 2, 3, 4, 5, 6, 8, 16, 32, 64, 128, 256, 512)
"""Tokens per window."""
_AT_ONCE, _MOST_PROBS = 1 << 16, 1 << 25
"""Symbols of windows that are read at once, and probabilities of tokens."""


class WindowsWithin(WrappedProcess):
    """Rows of tokens from within a text: those of a process without its first ones."""

    stored_name = "windows_within"

    @property
    def num_symbols(self) -> int:
        """`V`."""
        return self.process.num_symbols

    def settings(self) -> dict[str, Any]:
        """The number of tokens that are skipped."""
        return {"skipped": SKIPPED}

    def _draw(self, seed: np.uint64, first: np.uint64, step: np.uint64, out: Rows) -> None:
        whole = np.empty((len(out), SKIPPED + out.shape[1]), out.dtype)
        self.process._draw(seed, first, step, whole)
        out[:] = whole[:, SKIPPED:]


def train_text(hmm: HMM) -> Int[np.ndarray, "N L"]:
    """The symbols that clean tokenizers are trained on."""
    return hmm.sample(2 * ROWS, LENGTH)


class Texts(NamedTuple):
    """A tokenizer and the test text that it cuts.

    Attributes:
        process ([`TokenizedProcess`]): the tokens of the process.
        rows (list of `np.ndarray`): the tokens of each row of the test text.
    """

    process: TokenizedProcess
    rows: list[Int[np.ndarray, "T"]]

    @classmethod
    def of(cls, hmm: HMM, kind: str, vocab_size: int) -> "Texts":
        """The texts of a process with a tokenizer: `symbols`, `clean`, or `leaky`, which saw the test text."""
        train, test = train_text(hmm), hmm.sample(ROWS, LENGTH + BEYOND, first=TEST_FIRST)
        if kind == "symbols":
            tokenizer = SymbolTokenizer("BPE", [(symbol,) for symbol in range(hmm.num_symbols)])
        else:
            seen = train if kind == "clean" else np.concatenate([train[:ROWS], test[:, :LENGTH]])
            tokenizer = train_symbol_bpe(seen, hmm.num_symbols, vocab_size)
        rows = list(map(np.array, tokenizer.cut(test.tolist())))
        return cls(TokenizedProcess(hmm, tokenizer), [row[tokenizer.sizes[row].cumsum() <= LENGTH] for row in rows])

    def windows(self, size: int) -> tuple[Int[np.ndarray, "N"], Int[np.ndarray, "N W"]]:
        """The windows of `size` tokens of all rows, one after the other from token `SKIPPED` on, and their rows."""
        counts = [(len(row) - SKIPPED) // size for row in self.rows]
        parts = [row[SKIPPED : SKIPPED + n * size].reshape(n, size) for n, row in zip(counts, self.rows, strict=True)]
        return np.repeat(range(len(counts)), counts), np.concatenate(parts)


def by_row(rows: int, numbers: Int[np.ndarray, "N"], values: Float[np.ndarray, "N W"]) -> Float[np.ndarray, "R"]:
    """The sum of values of windows over those of each row, by the number of its row."""
    return np.bincount(numbers, values.sum(1), rows)


def unigram_losses(texts: Texts) -> dict[str, float]:
    """What unigram models of tokens lose, in nats per symbol.

    Returns:
        `dict`: `exact`, of the best one, on the process; `counted`, on the test text, of one whose frequencies are
        those of the text that the clean tokenizer was trained on, with one more of each token.
    """
    process, tokenizer = texts.process, texts.process.tokenizer
    test, exact = np.concatenate(texts.rows), float(entropy(process.frequencies)) / process.mean_length
    train = np.concatenate(tokenizer.cut(train_text(process.process).tolist()))
    counts = 1 + np.bincount(train, minlength=process.num_symbols)
    counted = -float(np.log(counts / counts.sum())[test].sum() / tokenizer.sizes[test].sum())
    return {"exact": exact, "counted": counted}


def losses_of_all(texts: Texts) -> list[Float[np.ndarray, "T"]]:
    """The loss of each token of each row given all tokens of the row before it, in nats."""
    longest, nats = max(map(len, texts.rows)), []
    # Rows are filled with token 0, which changes nothing before it.
    filled = np.array([np.pad(row, (0, longest - len(row))) for row in texts.rows])
    for part in np.array_split(filled, 1 + filled.size * texts.process.num_symbols // _MOST_PROBS):
        probs = texts.process.next_token_probs(part)[:, :-1]
        with np.errstate(divide="ignore"):  # after the end of a row
            nats += list(-np.log(np.take_along_axis(probs, part[:, :, None], 2)[:, :, 0]))
    return [losses[: len(row)] for losses, row in zip(nats, texts.rows, strict=True)]


def exact_losses(texts: Texts, order: int | None) -> dict[str, Any]:
    """What the best predictors of tokens lose on the test text.

    Args:
        texts ([`Texts`]): the tokens.
        order (`int`, *optional*): the number of symbols that decide what comes next, if there is one.

    Returns:
        `dict`: `symbols_per_token` of the process; `unigram`, from [`unigram_losses`]; `tokens`, of each row of the
        test text; `windows`, by their size the `nats` of the best predictor that reads windows, those of the one that
        reads all tokens (`full`), and the `symbols`, of the tokens of each row; `gaps`, by the number of tokens that
        are read in a window, how many nats per symbol more than with all are lost at the next one; `missing`,
        likewise, how many of the last `order` symbols those tokens lack on average.
    """
    process, sizes = texts.process, texts.process.tokenizer.sizes
    nats = Texts(process, losses_of_all(texts))
    windows, gaps, missing = {}, {}, {}
    for size in WINDOWS:
        numbers, tokens = texts.windows(size)
        parts = np.array_split(tokens, 1 + int(sizes[tokens].sum()) // _AT_ONCE)
        lost, same = np.concatenate(list(map(process.window_losses, parts))), nats.windows(size)[1]
        columns = {"nats": lost, "full": same, "symbols": sizes[tokens]}
        windows[str(size)] = {
            name: by_row(len(texts.rows), numbers, values).tolist() for name, values in columns.items()
        }
        gaps[str(size - 1)] = float((lost - same)[:, -1].mean() / process.mean_length)
        missing[str(size - 1)] = float(np.maximum(0, (order or 0) - sizes[tokens[:, :-1]].sum(1)).mean())
    exact = {"symbols_per_token": process.mean_length, "unigram": unigram_losses(texts)}
    exact |= {"tokens": list(map(len, texts.rows)), "windows": windows, "gaps": gaps}
    return exact | ({"missing": missing} if order else {})


def model_losses(model: Any, texts: Texts, window: int) -> dict[str, Any]:
    """The nats that a model loses in the windows of each row of the test text, and its FLOPs of training per token."""
    from hmm_datasets.training.plan.flops import flops_per_token

    numbers, rows = texts.windows(window)
    tokens = torch.from_numpy(np.insert(rows, 0, texts.process.num_symbols, axis=1))
    with torch.inference_mode():
        logits = (model(part[:, :-1]).logits.log_softmax(-1, dtype=torch.float32) for part in tokens.split(32))
        chosen = [log.gather(2, part[:, 1:, None]) for log, part in zip(logits, tokens.split(32), strict=True)]
    nats = -torch.cat(chosen).squeeze(2).double().numpy()
    return {
        "nats": by_row(len(texts.rows), numbers, nats).tolist(),
        "flops_per_token": flops_per_token(model, window + 1),
    }
