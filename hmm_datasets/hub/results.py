"""Results in the form that the Hub shows on a model's page and on a benchmark's leaderboard: `.eval_results/*.yaml`.

The format is that of https://huggingface.co/docs/hub/eval-results, written with huggingface_hub's `EvalResultEntry`.
A file has a list of results; each names a benchmark (a data set repository with an `eval.yaml`) and one of its tasks.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError
from ..files import atomic_file

if TYPE_CHECKING:
    from huggingface_hub import EvalResultEntry

EVAL_RESULTS_NAME = ".eval_results"


def write_eval_results(folder: str | os.PathLike, name: str, entries: "Sequence[EvalResultEntry]") -> Path:
    """Write results as `.eval_results/NAME.yaml`, atomically; an existing file is replaced.

    Args:
        folder (path): the folder of the model, or one that is pushed to the model's repository.
        name (`str`): name of the file without `.yaml`, for example the name of the benchmark.
        entries (sequence of [`~huggingface_hub.EvalResultEntry`]): the results.

    Returns:
        `Path`: the file.

    Raises:
        `InputError`: no entries, or a name that is not one of a file.

    ```python
    >>> import tempfile
    >>> from huggingface_hub import EvalResultEntry
    >>> entry = EvalResultEntry(dataset_id="me/hmm-benchmark", task_id="ids", value=0.25)
    >>> print(write_eval_results(tempfile.mkdtemp(), "hmm-benchmark", [entry]).read_text(), end="")
    - dataset:
        id: me/hmm-benchmark
        task_id: ids
      value: 0.25

    ```
    """
    import yaml
    from huggingface_hub import eval_result_entries_to_yaml

    if not re.fullmatch(r"[\w-][\w.-]*", name) or not entries:
        raise InputError(f"{len(entries)} results for {name!r}.yaml; expected one or more, and a name such as hle")
    path = Path(folder) / EVAL_RESULTS_NAME / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as temporary:
        text = yaml.safe_dump(eval_result_entries_to_yaml(list(entries)), sort_keys=False, allow_unicode=True)
        temporary.write_text(text, encoding="utf-8")
    return path
