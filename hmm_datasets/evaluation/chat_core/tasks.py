"""The tasks of ChatCORE: their names, what they need, and their questions, which come from the Hub.

They are defined in `harness_tasks/` in the form of lm-evaluation-harness, which reads the folder by itself too
(`lm_eval run --include_path`), under the names `chat_core_TASK`.
"""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import InputError
from .sandbox import check_sandbox

if TYPE_CHECKING:
    from lm_eval.api.task import Task

CHAT_CORE_TASKS = ("gsm8k", "arc_easy", "arc_challenge", "mmlu", "ifeval", "humaneval")
"""All tasks, in the order of the table."""

DEFAULT_TASKS = CHAT_CORE_TASKS[:-1]
"""Those that run no code of the model."""

_FOLDER = Path(__file__).with_name("harness_tasks")
_SENTENCES = "tokenizers/punkt_tab"
_FOR_IFEVAL = ("langdetect", "immutabledict", "nltk")


def check_tasks(tasks: Sequence[str], run_code: bool) -> None:
    """Raise [`InputError`] if tasks are unknown, or would run code of the model without permission."""
    for name in tasks:
        if name not in CHAT_CORE_TASKS:
            raise InputError(f"chat_core_tasks has {name!r}; expected some of {', '.join(CHAT_CORE_TASKS)}")
    if not tasks or len(set(tasks)) < len(tasks):
        raise InputError(f"chat_core_tasks is {list(tasks)}; expected one or more tasks, each once")
    if "humaneval" in tasks and not run_code:
        raise InputError(
            "chat_core_tasks has humaneval, which runs Python that the model writes; allow it with "
            "--chat_core_run_code true, or leave it out"
        )


def check_requirements(tasks: Sequence[str]) -> None:
    """Raise [`InputError`] if a package or file that the tasks need is missing and cannot be downloaded."""
    needed = ("lm_eval", *(_FOR_IFEVAL if "ifeval" in tasks else ()))
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        instead = "" if "lm_eval" in missing else ", or leave ifeval out of --chat_core_tasks"
        raise InputError(
            f"task chat_core: {' and '.join(missing)} cannot be imported; install them with "
            f'pip install "hmm-datasets[lm-eval]"{instead}'
        )
    if "ifeval" in tasks:
        _check_sentences()
    if "humaneval" in tasks:
        check_sandbox()


def _check_sentences() -> None:
    """The harness downloads these rules when ifeval is loaded, but goes on without them until a prompt needs them."""
    import nltk

    for attempt in ("find", "download"):
        try:
            nltk.data.find(_SENTENCES)
            return
        except LookupError:
            if attempt == "find":
                nltk.download("punkt_tab", quiet=True)
    raise InputError(
        "task chat_core: ifeval needs nltk's punkt_tab, which is not here and cannot be downloaded; run "
        "python -m nltk.downloader punkt_tab where there is a network and copy ~/nltk_data, or leave ifeval out of "
        "--chat_core_tasks"
    )


def load_tasks(tasks: Sequence[str]) -> "dict[str, Task]":
    """The tasks with their questions, downloaded where they are not in the cache yet.

    Raises:
        `InputError`: questions cannot be loaded.
    """
    check_requirements(tasks)
    from lm_eval.tasks import TaskManager

    manager, found = TaskManager(include_path=str(_FOLDER), include_defaults=False), {}
    for name in (task for task in CHAT_CORE_TASKS if task in tasks):
        try:
            (found[name],) = manager.load([f"chat_core_{name}"])["tasks"].values()
        except Exception as error:  # datasets and the client of the Hub raise many types
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InputError(
                f"task chat_core: the questions of {name} cannot be loaded ({reason}); connect to the Hub, or leave "
                f"{name} out of --chat_core_tasks"
            ) from error
    return found
