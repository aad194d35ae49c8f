"""Grammars: the exact distribution of every token of a sentence, beside the published programme in plain Python.

    python benchmarks/grammar.py [--sentences 3] [--rows 32] [--published FOLDER]

Draws sentences of `cfg3f` and computes the law of their tokens with `PCFG.next_token_probs` and with the dynamic
programme that Allen-Zhu and Li describe (arXiv 2305.13673) as their program does it: in Python, over spans and rules,
with lists of where symbols begin. The one here computes with floats, which do not underflow for these sentences, and
leaves out what is zero; theirs computes with decimal numbers of 100 digits, and is slower. `--published` runs theirs
too: the folder is `data-synthetic-pretrain/Lano-cfg` of a clone of github.com/facebookresearch/PhysicsLM4, whose
requirements must be installed. Then comes how many tokens per second are drawn, and how many have their law computed,
for every published grammar.
"""

import argparse
import importlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from machine import against_goal, print_heading

from hmm_datasets.hmm.grammar import physics_of_language_models
from hmm_datasets.hmm.grammar.hierarchical import FOLDER
from hmm_datasets.hmm.grammar.rules import parse_rules
from hmm_datasets.report.tables import text_table

GOAL = 100  # times as fast as the plain programme
NAMES = ("cfg3b", "cfg3i", "cfg3h", "cfg3g", "cfg3f", "cfg3j", "cfg3k")
ROUNDS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sentences", type=int, default=3, help="sentences for the comparison")
    parser.add_argument("--rows", type=int, default=32, help="rows of 512 tokens for the rates")
    parser.add_argument("--published", type=Path, help="folder with the published program, to run it too")
    settings = parser.parse_args()
    print_heading(["numpy", "numba"])
    _comparison("cfg3f", settings.sentences, settings.published)
    _rates(settings.rows)


def _comparison(name: str, count: int, published: Path | None) -> None:
    grammar = physics_of_language_models(name)
    rules = parse_rules((FOLDER / f"{name}.txt").read_text(encoding="utf-8"))
    sides = {left: [side.split() for side in right] for left, right in rules.items()}
    rows, ours, plain, difference = [], 0.0, 0.0, 0.0
    for index in range(count):
        tokens = grammar.sample(1, 1024, seed=1, first=index)[0]
        sentence = tokens[: int(np.argmax(tokens == grammar.end))]
        law, seconds = _best(lambda sentence=sentence: grammar.next_token_probs(sentence[None], num_threads=1)[0])
        begin = time.perf_counter()
        expected = plain_law(sides, [grammar.vocabulary[x] for x in sentence], grammar.vocabulary)
        slow = time.perf_counter() - begin
        found = float(np.abs(law - expected).max())
        ours, plain, difference = ours + seconds, plain + slow, max(difference, found)
        rows.append([f"{len(sentence)}", f"{seconds:.5f}", f"{slow:.2f}", f"{slow / seconds:,.0f}", f"{found:.1e}"])
        if published is not None:
            begin = time.perf_counter()
            theirs = _published_law(published, name, sentence)
            slow = time.perf_counter() - begin
            rows[-1] += [f"{slow:.2f}", f"{slow / seconds:,.0f}", f"{np.abs(law - theirs).max():.1e}"]
    print(f"\nThe law of every token of sentences of {name}, one thread\n")
    heading = ["words", "ours, s", "plain Python, s", "times", "largest difference"]
    print(text_table(heading + ["published, s", "times", "difference"] * (published is not None), rows))
    print(f"\nin all {plain / ours:,.0f} times as fast; {against_goal(plain / ours, GOAL, f'goal {GOAL}')}")
    print(against_goal(difference, 1e-9, f"probabilities agree to {difference:.1e}, goal 1e-9", at_most=True))


def _published_law(folder: Path, name: str, sentence: np.ndarray) -> np.ndarray:
    """The law by the published program, in which word `x` is `x + 1` and the end of a sentence comes first."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    configuration = importlib.import_module("data_cfg").CFG_Config.from_graph(str(folder / f"configs/{name}.json"))
    law, _ = configuration.solve_dp_prob_highprecision([int(x) + 1 for x in sentence], debug=False)
    return np.roll(np.array(law), -1, axis=1)


def plain_law(rules: dict[str, list[list[str]]], words: list[str], vocabulary: tuple[str, ...]) -> np.ndarray:
    """The law of every token of a sentence and of the one after it, `(T + 1, E)`; right sides have 2 or 3 parts.

    `inside[i][j]` has the probabilities that symbols derive `words[i:j]`, and that pairs of symbols do; `starts[k]`
    the probability that the sentence begins with `words[:k]` and that a symbol starts there.
    """
    inside, begins = _inside(rules, words)
    ends: list[dict[Any, list[int]]] = [{} for _ in range(len(words) + 1)]
    for end, by_symbol in enumerate(begins):
        for symbol, places in by_symbol.items():
            for begin in places:
                ends[begin].setdefault(symbol, []).append(end)
    starts: list[dict[str, float]] = [{} for _ in range(len(words) + 1)]
    top = next(iter(rules))
    starts[0][top] = 1.0
    law = np.zeros((len(words) + 1, len(vocabulary)))
    for k in range(len(words) + 1):
        for symbol, sides in rules.items():  # from the top down, so that a symbol is complete before its parts
            weight = starts[k].get(symbol, 0.0) / len(sides)
            if weight == 0:
                continue
            for side in sides:
                starts[k][side[0]] = starts[k].get(side[0], 0.0) + weight
                for part in range(1, len(side)):
                    before = side[0] if part == 1 else (side[0], side[1])
                    for end in ends[k].get(before, ()):
                        chance = weight * inside[k][end][before]
                        starts[end][side[part]] = starts[end].get(side[part], 0.0) + chance
        total = starts[k - 1][words[k - 1]] if k > 0 else 1.0
        law[k, :-1] = [starts[k].get(word, 0.0) / total for word in vocabulary[:-1]]
        law[k, -1] = inside[0][k].get(top, 0.0) / total
    return law


def _inside(
    rules: dict[str, list[list[str]]], words: list[str]
) -> tuple[list[list[dict[Any, float]]], list[dict[Any, list[int]]]]:
    length = len(words)
    inside: list[list[dict[Any, float]]] = [[{} for _ in range(length + 1)] for _ in range(length + 1)]
    # Where symbols begin that end here, from the last place to the first.
    begins: list[dict[Any, list[int]]] = [{} for _ in range(length + 1)]
    for i, word in enumerate(words):
        inside[i][i + 1][word] = 1.0
        begins[i + 1][word] = [i]
    for size in range(2, length + 1):
        for i in range(length - size + 1):
            j = i + size
            for symbol, sides in reversed(rules.items()):
                total = 0.0
                for side in sides:
                    left = side[0]
                    if len(side) == 3:
                        left = (side[0], side[1])
                        if left not in inside[i][j]:
                            pair = _joined(inside, begins, i, j, side[0], side[1])
                            if pair > 0:
                                inside[i][j][left] = pair
                                begins[j].setdefault(left, []).append(i)
                    total += _joined(inside, begins, i, j, left, side[-1]) / len(sides)
                if total > 0:
                    inside[i][j][symbol] = total
                    begins[j].setdefault(symbol, []).append(i)
    return inside, begins


def _joined(
    inside: list[list[dict[Any, float]]], begins: list[dict[Any, list[int]]], i: int, j: int, left: Any, right: str
) -> float:
    total = 0.0
    for middle in begins[j].get(right, ()):
        if middle <= i:
            break
        chance = inside[i][middle].get(left)
        if chance is not None:
            total += chance * inside[middle][j][right]
    return total


def _rates(count: int) -> None:
    rows = []
    for name in NAMES:
        grammar = physics_of_language_models(name)
        tokens = grammar.sample(count, 512, seed=2)
        _, drawing = _best(lambda grammar=grammar: grammar.sample(100 * count, 512, seed=2, num_threads=1))
        _, law = _best(lambda grammar=grammar, tokens=tokens: grammar.next_token_probs(tokens, num_threads=1))
        length = f"{grammar.mean_sentence_length:.1f}"
        rows.append([name, length, f"{100 * tokens.size / drawing:,.0f}", f"{tokens.size / law:,.0f}"])
    print("\nTokens per second of rows of 512 tokens, one thread\n")
    print(text_table(["grammar", "words per sentence", "drawn", "with their law"], rows))


def _best(work: Callable[[], Any]) -> tuple[Any, float]:
    """What `work` returns, and its shortest time after a first call that compiles."""
    result, times = work(), []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        result = work()
        times.append(time.perf_counter() - begin)
    return result, min(times)


if __name__ == "__main__":
    main()
