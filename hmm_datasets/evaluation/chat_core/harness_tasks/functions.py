"""What the tasks of ChatCORE ask, and how answers are judged: the functions that the YAML files beside this one name.

Each `judge_` function returns for one question whether the answer is `correct`; whether it is so by generation
(`exact`); whether it is `in_format`, the form that the question asks for, if it asks for one; and `chance`, the
probability that a guess is right.
"""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hmm_datasets.evaluation.chat_core.sandbox import passes
from hmm_datasets.training.post_training.rewards import final_number, gsm8k

if TYPE_CHECKING:
    from datasets import Dataset

_CODE = re.compile(r"```(?:[Pp]ython|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
_SEED = 42

Question = Mapping[str, Any]
Judged = dict[str, float]


def shuffled(rows: "Dataset") -> "Dataset":
    """The questions in an order of their own, which is always the same, so that the first few are of all kinds."""
    return rows.shuffle(seed=_SEED)


def judge_number(row: Question, answers: Sequence[str]) -> Judged:
    """Whether the final number is right, and stands after the mark `####`."""
    (said,) = answers
    correct = gsm8k([said], answer=[row["answer"]])[0]
    _, mark, after = said.rpartition("####")
    return _generated(correct, in_format=bool(mark) and final_number(mark + after) is not None)


def judge_instructions(row: Question, answers: Sequence[str]) -> Judged:
    """Whether all instructions of a prompt were followed to the letter (`prompt_level_strict_acc`)."""
    from lm_eval.tasks.ifeval.utils import process_results

    return _generated(process_results(row, answers)["prompt_level_strict_acc"])


def judge_program(row: Question, answers: Sequence[str]) -> Judged:
    """Whether the function passes its tests, run in a sandbox, and is in a block of code."""
    (said,) = answers
    passed = passes(*programs(row, said), row["entry_point"])
    return _generated(passed, in_format=_CODE.search(said) is not None)


def programs(row: Question, said: str) -> tuple[str, str]:
    """The programs of the answer and of its tests, each with what stands before the function.

    The answer is the first block of code, or all of it without one; without a definition of the function it is taken
    for the function's body.
    """
    found = _CODE.search(said)
    code = found.group(1) if found else said
    head = f"def {row['entry_point']}("
    before = row["prompt"].partition(head)[0]
    return f"{before if head in code else row['prompt']}{code}\n", f"{before}\n{row['test']}\n"


def _generated(correct: float, in_format: bool | None = None) -> Judged:
    judged = {"correct": float(correct), "exact": float(correct), "chance": 0.0}
    return judged if in_format is None else judged | {"in_format": float(in_format)}


def arc_question(row: Question) -> str:
    """A question of ARC with its choices; their letters are the data set's, which are digits in some questions."""
    return _asked(row["question"], row["choices"]["text"], row["choices"]["label"])


def arc_letters(row: Question) -> list[str]:
    """The letters of the choices."""
    return list(row["choices"]["label"])


def arc_answer(row: Question) -> int:
    """The index of the right choice."""
    return arc_letters(row).index(row["answerKey"])


def judge_arc(row: Question, scores: Sequence[tuple[float, bool]]) -> Judged:
    """Judge the log-likelihoods of the letters, each with whether it is the most likely token of all."""
    return _chosen(scores, arc_answer(row))


def mmlu_question(row: Question) -> str:
    """A question of MMLU with its choices."""
    return _asked(row["question"], row["choices"], "ABCD")


def judge_mmlu(row: Question, scores: Sequence[tuple[float, bool]]) -> Judged:
    """Judge the log-likelihoods of the letters, each with whether it is the most likely token of all."""
    return _chosen(scores, row["answer"])


def _asked(question: str, choices: Sequence[str], letters: Sequence[str]) -> str:
    lines = [f"{letter}. {choice.strip()}" for letter, choice in zip(letters, choices, strict=True)]
    asked = "Answer with the letter of the right choice alone."
    return "\n".join([f"Question: {question.strip()}", *lines, "", asked])


def _chosen(scores: Sequence[tuple[float, bool]], right: int) -> Judged:
    """The likeliest letter is the choice, the first on ties; a question that was not asked has none."""
    likelihoods = [likelihood for likelihood, _ in scores]
    best = likelihoods.index(max(likelihoods)) if max(likelihoods) > float("-inf") else None
    return {
        "correct": float(best == right),
        "exact": float(scores[right][1]),
        "in_format": float(any(greedy for _, greedy in scores)),
        "chance": 1 / len(scores),
    }
