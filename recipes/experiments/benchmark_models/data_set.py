"""The data set repository of the benchmark: Parquet files, the processes, `eval.yaml` and a card.

`eval.yaml` has the fields of https://huggingface.co/docs/hub/eval-results, by which the Hub registers a benchmark, and
those that inspect-ai reads (https://inspect.aisi.org.uk/tasks.html#hugging-face, `inspect_ai._eval.task.hf.HFTask`).
There a task may name only scorers that are built into inspect-ai, and none of these reads log-probabilities. So what
`inspect eval hf/USER/NAME` computes is how often a model guesses the last letter. The scores above the optimum come
from `hmm-datasets benchmark`.

The same version of the package writes the same bytes each time:

    python recipes/experiments/benchmark_models/data_set.py FOLDER
"""

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hmm_datasets.evaluation.benchmark import SCORED, TRACKS, Track
from hmm_datasets.evaluation.benchmark.held_out import (
    BASELINES,
    DATA_NAME,
    EVAL_NAME,
    FIRST,
    LENGTH,
    NUM_SEQUENCES,
    PROCESSES_NAME,
    HeldOut,
    open_benchmark,
    parquet_path,
)
from hmm_datasets.evaluation.benchmark.processes import KINDS, LETTERS, mixture
from hmm_datasets.evaluation.benchmark.scoring import excess_of_baselines, mean_of
from hmm_datasets.evaluation.benchmark.tracks import first_scored
from hmm_datasets.files import atomic_folder, write_digests
from hmm_datasets.hmm.analysis.stationary import entropy
from hmm_datasets.hmm.storage import FORMAT_VERSION
from hmm_datasets.runtime.one_line_errors import one_line_errors
from hmm_datasets.runtime.shipped import shipped
from hmm_datasets.statistics import clustered_mean
from hmm_datasets.text.stream.unfinished import check_replaceable

MIXTURE_NAME, CARD_NAME = "mixture", "README.md"


def write_benchmark(folder: str | os.PathLike) -> None:
    """Write the folder of the data set repository; one that was written before is replaced.

    It has `data/NAME/` (a Parquet file for each process), `processes/NAME/` (the HMM), `mixture/` (all processes as
    one family, to train a model of all), `eval.yaml` and `README.md`.

    Raises:
        `InputError`: the folder contains something else.
    """
    check_replaceable(folder, EVAL_NAME, overwrite=True)
    benchmark = open_benchmark()
    with atomic_folder(folder) as temporary:
        for held_out in benchmark.processes:
            _write_parquet(held_out, temporary)
            held_out.hmm.save_pretrained(temporary / PROCESSES_NAME / held_out.name)
        mixture().save_pretrained(temporary / MIXTURE_NAME)
        shutil.copyfile(shipped("model_cards/benchmark_eval.yaml"), temporary / EVAL_NAME)
        scores = {
            track: {held_out.name: _scores_of_baselines(held_out, track) for held_out in benchmark.processes}
            for track in TRACKS
        }
        (temporary / CARD_NAME).write_text(_card(benchmark.processes, scores), encoding="utf-8")
        write_digests(temporary, [parquet_path(held_out.name) for held_out in benchmark.processes])
        check_replaceable(folder, EVAL_NAME, overwrite=True)  # something else may have been put there meanwhile


def _write_parquet(held_out: HeldOut, folder: Path) -> None:
    """Write the sequences with their optimal predictions."""
    import datasets
    import pyarrow as pa

    from hmm_datasets.hub.parquet import write_split

    lists = pa.list_(pa.float32())
    entropies = entropy(held_out.probs)
    texts = held_out.texts()
    columns = {
        "process": pa.array([held_out.name] * held_out.num_sequences),
        "input_ids": pa.array(held_out.tokens.tolist(), pa.list_(pa.uint8())),
        "text": pa.array(texts),
        "log_probs": pa.array(held_out.log_probs.astype(np.float32).tolist(), lists),
        "entropies": pa.array(entropies.astype(np.float32).tolist(), lists),
        "context": pa.array([text[:-2] for text in texts]),
        "next": pa.array([text[-1] for text in texts]),
    }
    table = pa.table(columns)
    features = datasets.Features.from_arrow_schema(table.schema)
    write_split(folder, "test", [table], features, prefix=f"{DATA_NAME}/{held_out.name}")


def _scores_of_baselines(whole: HeldOut, track: Track) -> dict[str, Any]:
    """The optimum of a process with its standard error, and the excess of each baseline."""
    held_out = replace(whole, num_sequences=SCORED[track])
    optimum = clustered_mean(-held_out.log_probs[:, first_scored(track) :])
    return {
        "optimum": optimum.mean,
        "error": optimum.standard_error,
        "baselines": excess_of_baselines(held_out, track),
    }


def _card(processes: list[HeldOut], scores: Mapping[str, Mapping[str, Any]]) -> str:
    from jinja2 import Environment, StrictUndefined

    template = shipped("model_cards/benchmark.md").read_text(encoding="utf-8")
    guesses = [held_out.hmm.next_token_probs(held_out.tokens[:, :-1])[:, -1].max(axis=-1) for held_out in processes]
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True)
    environment.filters["fixed"] = "{:z.4f}".format
    return environment.from_string(template).render(
        kinds=KINDS,
        hmms={held_out.name: held_out.hmm for held_out in processes},
        scores=scores,
        means={track: mean_of(scores[track]) for track in TRACKS},
        baselines=BASELINES,
        first_seed=processes[0].seed,
        first=FIRST,
        length=LENGTH,
        num_sequences=NUM_SEQUENCES,
        scored=SCORED,
        format_version=FORMAT_VERSION,
        letters=LETTERS,
        accuracy=float(np.mean(guesses)),
    )


if __name__ == "__main__":
    with one_line_errors():
        write_benchmark(sys.argv[1])
