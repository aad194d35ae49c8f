"""A task of CORE: its type, and what stands in its prompts."""

from dataclasses import dataclass

MULTIPLE_CHOICE, SCHEMA, LANGUAGE_MODELING = "multiple_choice", "schema", "language_modeling"


@dataclass(frozen=True)
class CoreTask:
    """A task of CORE.

    Attributes:
        label (`str`): name of the task.
        type (`str`): `multiple_choice`, `schema` or `language_modeling`.
        shots (`int`): number of solved examples before each question.
        delimiter (`str`): text between a question and its answer.
        file (`str`): name of its file of questions.
        baseline (`float`): accuracy of guessing in percent.
    """

    label: str
    type: str
    shots: int
    delimiter: str
    file: str
    baseline: float
