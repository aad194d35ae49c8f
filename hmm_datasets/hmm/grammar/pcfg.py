"""Probabilistic context-free grammars as processes: sentences one after the other.

How rules of any form are brought into Chomsky normal form is in `rules`.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float, Int, UInt

from ...errors import InputError
from ..arrays import as_given, checked_names, token_array
from ..kernels.grammar import (
    ExpansionTables,
    LawTables,
    draw_sentences,
    expansion_tables,
    fill_next_token_probs,
    law_tables,
)
from ..process import Process
from ..sampling import fill_in_parallel
from .rules import Alternatives, as_rules, as_words, check_sums, expected_lengths, normal_form, parse_rules


class PCFG(Process):
    """A probabilistic context-free grammar in Chomsky normal form; nonterminal 0 is the start symbol.

    A row of `L` tokens holds sentences, drawn one after the other from the grammar. Each is followed by the end symbol
    `E - 1`, and the row is cut off after `L` tokens. So position 0 begins a sentence, as does every position after an
    end symbol, and what is before it says nothing about it. The process is not stationary.

    Grammars are usually made by [`PCFG.from_rules`] or by the functions of `hmm_datasets.hmm.grammar`.

    Args:
        rules (`np.ndarray` of shape `(R, 3)`): rows `A, B, C` for the rule `A -> B C`.
        rule_probs (`np.ndarray` of shape `(R,)`): their probabilities.
        words (`np.ndarray` of shape `(M, 2)`): rows `A, x` for the rule `A -> x`, where `x` is a symbol below `E - 1`.
        word_probs (`np.ndarray` of shape `(M,)`): their probabilities. Rules and words of a nonterminal sum to one.
        num_symbols (`int`, *optional*): `E`, with the end symbol; by default the symbols that `words` has, and it.
        vocabulary (sequence of `str`, *optional*): a name for every symbol, with that of the end symbol last.
        nonterminals (sequence of `str`, *optional*): a name for every nonterminal.

    Raises:
        `InputError`: probabilities do not sum to one, or the expected length of a sentence is infinite.

    ```python
    >>> grammar = PCFG.from_rules({"S": {"a S b": 0.4, "a b": 0.6}})
    >>> grammar.next_token_probs([[0, 0]])[0, :, 0].round(3).tolist()
    [1.0, 0.4, 0.4]
    >>> grammar.vocabulary
    ('a', 'b', 'end')

    ```
    """

    stored_name: ClassVar[str] = "pcfg"

    def __init__(
        self,
        rules: Int[Any, "R 3"],
        rule_probs: Float[Any, "R"],
        words: Int[Any, "M 2"],
        word_probs: Float[Any, "M"],
        *,
        num_symbols: int | None = None,
        vocabulary: Sequence[str] | None = None,
        nonterminals: Sequence[str] | None = None,
    ):
        self.rules, rule_probs = as_rules(rules, rule_probs)
        self.words, word_probs, self._num_symbols = as_words(words, word_probs, num_symbols)
        self.rule_probs, self.word_probs = check_sums(self.rules, rule_probs, self.words, word_probs, nonterminals)
        self.num_nonterminals = int(max(self.rules.max(initial=0), self.words[:, 0].max())) + 1
        self.nonterminals = None if nonterminals is None else tuple(map(str, nonterminals))
        self.vocabulary = checked_names(vocabulary, self._num_symbols, ", that of the end symbol last")
        self._expected_lengths = expected_lengths(
            self.rules, self.rule_probs, self.words, self.word_probs, self.nonterminals
        )
        self._make_read_only()

    @classmethod
    def from_rules(
        cls,
        rules: str | Mapping[str, Alternatives],
        *,
        start: str | None = None,
        terminals: Sequence[str] | None = None,
        end: str = "end",
    ) -> "PCFG":
        """The grammar with these rules, whose right sides may have any length of 1 or more.

        They are brought into Chomsky normal form, which changes the probability of no sentence; see `rules`. What has
        rules is a nonterminal; everything else, and what is in quotes, is a word.

        Args:
            rules (`str` or mapping): lines such as `"S -> NP VP [0.9] | VP [0.1]"`; or for every nonterminal a mapping
                from right sides to probabilities, or a sequence of equally likely right sides.
            start (`str`, *optional*): the start symbol; by default the first nonterminal.
            terminals (sequence of `str`, *optional*): the words in the order of their symbols; by default the order in
                which rules name them.
            end (`str`, *optional*, defaults to `"end"`): name of the end symbol.

        Raises:
            `InputError`: a right side is empty, probabilities do not sum to one, or sentences have infinite expected
                length.

        ```python
        >>> round(PCFG.from_rules("S -> S S [0.3] | x [0.7]").mean_sentence_length, 6)
        1.75

        ```
        """
        form = normal_form(parse_rules(rules) if isinstance(rules, str) else rules, start, terminals)
        if end in form.terminals:
            raise InputError(f"the grammar has a word {end!r}; give the end symbol another name with end=")
        return cls(
            *form[:4],
            num_symbols=len(form.terminals) + 1,
            vocabulary=(*form.terminals, end),
            nonterminals=form.nonterminals,
        )

    @property
    def num_symbols(self) -> int:
        """`E`: the words of the grammar, and the end symbol."""
        return self._num_symbols

    @property
    def end(self) -> int:
        """The symbol after every sentence, `E - 1`."""
        return self._num_symbols - 1

    @property
    def mean_sentence_length(self) -> float:
        """The expected number of words of a sentence, without the end symbol; a closed form."""
        return float(self._expected_lengths[0])

    def settings(self) -> dict[str, Any]:
        return {
            "num_symbols": self._num_symbols,
            "vocabulary": None if self.vocabulary is None else list(self.vocabulary),
            "nonterminals": None if self.nonterminals is None else list(self.nonterminals),
        }

    def arrays(self) -> dict[str, np.ndarray]:
        return {
            "rules": self.rules,
            "rule_probs": self.rule_probs,
            "words": self.words,
            "word_probs": self.word_probs,
        }

    def describe(self) -> str:
        return (
            f"a context-free grammar of {self.num_nonterminals:,} nonterminals and {len(self.rules):,} binary rules "
            f"over {self.end:,} words, with sentences of {self.mean_sentence_length:,.4g} words on average"
        )

    @cached_property
    def _law_tables(self) -> LawTables:
        lexical = np.zeros((self.num_nonterminals, self.end))
        lexical[self.words[:, 0], self.words[:, 1]] = self.word_probs
        return law_tables(self.rules, self.rule_probs, lexical)

    @cached_property
    def _expansion_tables(self) -> ExpansionTables:
        return expansion_tables(self.num_nonterminals, self.rules, self.rule_probs, self.words, self.word_probs)

    def _draw(self, seed: np.uint64, first: np.uint64, step: np.uint64, out: UInt[np.ndarray, "N L"]) -> None:
        # Rules are drawn by integer weights, so that the tokens are the same on every machine.
        draw_sentences(self._expansion_tables, self.end, seed, first, step, out)

    def next_token_probs(self, tokens: Int[Any, "B T"], *, num_threads: int | None = None) -> Float[Any, "B T+1 E"]:
        """The exact distribution of token `t` given those before it, for `t = 0 .. T`.

        Every row must begin with a sentence, as those of `sample` do. Distributions are zeros after a token that the
        grammar cannot emit there, and after prefixes with a probability below about `1e-280` of that of others.

        Args:
            tokens (array of shape `(B, T)`): symbols. The result for a tensor is a tensor, else a NumPy array.
            num_threads (`int`, *optional*): defaults to the number of usable cores when there is work for them.
        """
        rows = token_array(tokens, self.num_symbols)
        probs = np.empty((*rows.shape[:1], rows.shape[1] + 1, self.num_symbols))
        tables = self._law_tables

        def fill(_: int, part: slice) -> None:
            fill_next_token_probs(tables, rows[part], probs[part])

        fill_in_parallel(fill, 0, 1, probs, num_threads)
        return as_given(tokens, probs)

    def __repr__(self) -> str:
        return f"PCFG({self.num_nonterminals} nonterminals, {self.num_symbols} symbols)"
