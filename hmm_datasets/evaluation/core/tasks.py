"""The 22 tasks of CORE, the benchmark score of DCLM (Li et al., 2024, arXiv:2406.11794).

Types, shots, delimiters and files are taken from `eval/mmlu_and_lowvar.yaml` of mlfoundations/dclm (revision
361714bd). Random baselines, in percent, are those of its `eval/eval_meta_data_v1.csv`, as in published scores such as
0.2565 for GPT-2 with 1.6 billion parameters. Its newer table, v2, has others for three of these tasks.
"""

from collections.abc import Iterable, Sequence

from ...errors import InputError
from .task import LANGUAGE_MODELING, MULTIPLE_CHOICE, SCHEMA, CoreTask

BASELINES = "v1"
"""The table of random baselines."""

_SPACE, _ANSWER = " ", "\nAnswer: "
CORE_TASKS = {
    task.label: task
    for task in (
        CoreTask("hellaswag_zeroshot", MULTIPLE_CHOICE, 0, _SPACE, "hellaswag.jsonl", 25),
        CoreTask("jeopardy", LANGUAGE_MODELING, 10, _ANSWER, "jeopardy_all.jsonl", 0),
        CoreTask("bigbench_qa_wikidata", LANGUAGE_MODELING, 10, _SPACE, "bigbench_qa_wikidata.jsonl", 0),
        CoreTask("arc_easy", MULTIPLE_CHOICE, 10, _ANSWER, "arc_easy.jsonl", 25),
        CoreTask("arc_challenge", MULTIPLE_CHOICE, 10, _ANSWER, "arc_challenge.jsonl", 25),
        CoreTask("copa", MULTIPLE_CHOICE, 0, _SPACE, "copa.jsonl", 50),
        CoreTask("commonsense_qa", MULTIPLE_CHOICE, 10, _SPACE, "commonsense_qa.jsonl", 20),
        CoreTask("piqa", MULTIPLE_CHOICE, 10, _ANSWER, "piqa.jsonl", 50),
        CoreTask("openbook_qa", MULTIPLE_CHOICE, 0, _SPACE, "openbook_qa.jsonl", 25),
        CoreTask("lambada_openai", LANGUAGE_MODELING, 0, _SPACE, "lambada_openai.jsonl", 0),
        CoreTask("hellaswag", MULTIPLE_CHOICE, 10, _SPACE, "hellaswag.jsonl", 25),
        CoreTask("winograd", SCHEMA, 0, _SPACE, "winograd_wsc.jsonl", 50),
        CoreTask("winogrande", SCHEMA, 0, _SPACE, "winogrande.jsonl", 50),
        CoreTask("bigbench_dyck_languages", LANGUAGE_MODELING, 10, _SPACE, "bigbench_dyck_languages.jsonl", 0),
        CoreTask("agi_eval_lsat_ar", MULTIPLE_CHOICE, 3, _SPACE, "agi_eval_lsat_ar.jsonl", 20),
        CoreTask("bigbench_cs_algorithms", LANGUAGE_MODELING, 10, _SPACE, "bigbench_cs_algorithms.jsonl", 0),
        CoreTask("bigbench_operators", LANGUAGE_MODELING, 10, _SPACE, "bigbench_operators.jsonl", 0),
        CoreTask("bigbench_repeat_copy_logic", LANGUAGE_MODELING, 10, _SPACE, "bigbench_repeat_copy_logic.jsonl", 0),
        CoreTask("squad", LANGUAGE_MODELING, 10, _SPACE, "squad.jsonl", 0),
        CoreTask("coqa", LANGUAGE_MODELING, 0, _SPACE, "coqa.jsonl", 0),
        CoreTask("boolq", MULTIPLE_CHOICE, 10, _ANSWER, "boolq.jsonl", 62),
        CoreTask(
            "bigbench_language_identification",
            *(MULTIPLE_CHOICE, 10, _SPACE, "bigbench_language_identification.jsonl", 9.1),
        ),
    )
}
"""The tasks by label, in DCLM's order. Hellaswag counts twice, without and with examples."""


def core_tasks(labels: Sequence[str] | None = None) -> list[CoreTask]:
    """The tasks with the given labels; all tasks for None.

    Raises:
        `InputError`: a label that CORE does not have.

    ```python
    >>> [(task.file, task.shots) for task in core_tasks(["copa"])]
    [('copa.jsonl', 0)]

    ```
    """
    for label in labels or ():
        if label not in CORE_TASKS:
            raise InputError(f"task {label!r} is not in CORE; expected some of {', '.join(CORE_TASKS)}")
    return [CORE_TASKS[label] for label in dict.fromkeys(CORE_TASKS if labels is None else labels)]


def core_name(labels: Iterable[str]) -> str:
    """The name of a score over these tasks, which is CORE only if no task is missing.

    ```python
    >>> core_name(["copa", "squad"])
    'CORE subset (2 of 22 tasks)'

    ```
    """
    known = len(set(labels))
    return "CORE" if known == len(CORE_TASKS) else f"CORE subset ({known} of {len(CORE_TASKS)} tasks)"
