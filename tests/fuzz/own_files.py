"""Files that this package wrote, damaged: the folder of a run, checkpoints, processes, streams, fits, sweeps.

    python tests/fuzz/own_files.py --cases 10000

prints a table of what came of them, see `harness.py`. What has digests must be refused or read as it was; in a log or
a record without one, a value that is still of its type is read as it is.
"""

import dataclasses
import io
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
from fuzz.harness import Kind, main
from rich.console import Console
from safetensors.numpy import save_file

from hmm_datasets.evaluation.paired_runs import ReportFolder
from hmm_datasets.evaluation.run_checkpoints import progress_of
from hmm_datasets.evaluation.trained_on import trained_on
from hmm_datasets.files import append_jsonl, read_json, write_digests, write_json, write_jsonl, written_together
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.families import RandomChains
from hmm_datasets.hmm.families.mixture import ProcessMixture
from hmm_datasets.hmm.fitting.fit import fit_hmm
from hmm_datasets.hmm.fitting.settings import FitSettings
from hmm_datasets.hmm.fitting.state import load_state
from hmm_datasets.hmm.loading import load_source
from hmm_datasets.hmm.model import HMM
from hmm_datasets.hub.kinds.recognition import detect_kind
from hmm_datasets.operations import live_view
from hmm_datasets.operations.checkpoints.listing import list_run
from hmm_datasets.operations.checkpoints.slim import checkpoints_to_prune
from hmm_datasets.operations.run_state import RunObserver, format_state
from hmm_datasets.operations.sweeps.cells import CellState
from hmm_datasets.operations.sweeps.report import _numbers_of_run
from hmm_datasets.operations.verification import verify
from hmm_datasets.report.curves import panels_of
from hmm_datasets.report.evaluation_tables import read_report
from hmm_datasets.runtime.rank_heartbeats import heartbeat_path
from hmm_datasets.runtime.run_identity import check_folder_identity
from hmm_datasets.runtime.run_records import read_history
from hmm_datasets.text.stream import TokenStream, write_tokens
from hmm_datasets.text.tokenizers.words import WordCorpus, build_word_corpus
from hmm_datasets.training.checkpoints.resuming import possible_starts
from hmm_datasets.training.checkpoints.skipped_rows import rollbacks_in
from hmm_datasets.training.lineage import stages_of
from hmm_datasets.training.run_card import write_run_card

RUN = {
    "data": {"hmm": "abc", "length": 16, "seed": 3, "tokens": ["x"]},
    "settings": {"hmm": "mess3", "length": 16, "bf16": False, "streams": [], "test_fraction": 0.1},
    "versions": {"torch": "2.13.0", "transformers": "5.24.0"},
    "command": "hmm-datasets pretrain",
    "world_size": 2,
    "device": "CPU",
    "commit": "0123abc",
    "types": {"weights": "float32"},
    "lineage": {
        "stage": "sft",
        "data": "conversations",
        "base": {"model": "me/base", "commit": "a" * 40, "weights": {"model.safetensors": "b" * 64}},
        "before": [{"stage": "pretraining", "data": "text", "tokens": 1000}],
    },
}
SUMMARY = {
    "steps": 4,
    "budget": {"max_steps": 4},
    "tokens": 512,
    "parameters": {"total": 1000, "body": 900},
    "global_batch_size": 8,
    "learning_rate": 0.001,
    "seconds": 3.5,
    "flops": 1e9,
    "evaluation": {"loss": 1.5, "cross_entropy": 1.4},
}
IDENTITY = {
    "data": {"seed": 3, "length": 16},
    "model": {"model_type": "llama"},
    "settings": {"learning_rate": 0.001},
    "rows": {"passed_over": [{"step": 3, "checkpoint": 2, "first": 8, "end": 16}]},
    "written_by": {"framework": "plain data parallelism", "processes": 1},
}


def write_run(folder: Path) -> None:
    """The records of a run, without a model."""
    write_json(folder / "run.json", RUN)
    write_json(folder / "summary.json", SUMMARY)
    write_json(folder / "identity.json", IDENTITY)


def records(folder: Path) -> str:
    """Read the records of a run in every way in which the package does."""
    stages_of(str(folder))
    readers = (
        lambda: trained_on(str(folder)),
        lambda: rollbacks_in(folder),
        lambda: check_folder_identity(folder, {"data": {"seed": 3, "length": 16}}),
        lambda: write_run_card(folder),
        lambda: list(_numbers_of_run(folder).items()),
        lambda: detect_kind(folder),
        lambda: list(verify(folder)),
    )
    return _all_of(readers)


def _all_of(readers: Any) -> str:
    """Call all readers, and raise the last error of one line, as a command would print it."""
    from hmm_datasets.errors import InputError, is_path_error, path_error

    refusal = None
    for read in readers:
        try:
            read()
        except InputError as error:
            refusal = error
        except OSError as error:
            if not is_path_error(error) or error.filename is None:
                raise
            refusal = path_error(error.filename, error)
    if refusal is not None:
        raise refusal
    return "read"


def write_watched(folder: Path) -> None:
    """A run that is watched: its history, events, and the heartbeats of two ranks."""
    now = time.time()
    for step in range(1, 13):
        row = {
            "step": step,
            "max_steps": 40,
            "tokens": step * 64,
            "time": now - 60 + step,
            "host": "h",
            "loss": 2.0 / step,
        }
        append_jsonl(folder / "history.jsonl", row | {"grad_norm": 1.0, "fraction": step / 40})
    for kind in ("start", "spike", "restart"):
        append_jsonl(
            folder / "events.jsonl",
            {"time": now - 50, "kind": kind, "host": "h", "rank": 1, "step": 3, "delay": 1.0, "message": "a word"},
        )
    for rank in range(2):
        beat = {
            "host": "h", "process": 12345 + rank, "machine": "m", "process_started": 1.5, "rank": rank,
            "world_size": 2, "device": "CPU", "started": now - 60, "beat": 50,
            "phase": "data", "phase_seconds": 1.0, "step": 4, "visits": 3, "longest": 2.0, "seconds": {"data": 0.1},
            "tokens_per_second": 10.0, "job": None, "start": 1, "compiling": 0.0,
        }  # fmt: skip
        write_json(heartbeat_path(folder, "h", 12345 + rank), beat)


def watched(folder: Path) -> str:
    """Look at a run as `watch` and `supervise` do."""
    state = RunObserver(folder).look()
    json.dumps(dataclasses.asdict(state), default=str)
    format_state(state)
    Console(file=io.StringIO(), width=100).print(live_view.render(state, 100, 40))
    panels_of(read_history(folder / "history.jsonl"))
    return "read"


def write_checkpoints(folder: Path) -> None:
    """Two checkpoints of a run."""
    write_run(folder)
    for step in (2, 4):
        checkpoint = folder / f"checkpoint-{step}"
        checkpoint.mkdir()
        save_file({"weight": np.full((4, 4), step, np.float32)}, checkpoint / "model.safetensors")
        torch.save({"state": {}}, checkpoint / "optimizer.pt")
        torch.save({}, checkpoint / "scheduler.pt")
        torch.save({}, checkpoint / "rng_state.pth")
        write_json(checkpoint / "config.json", {"model_type": "llama"})
        write_json(checkpoint / "identity.json", IDENTITY | {"rows": {}})
        write_json(
            checkpoint / "trainer_state.json",
            {
                "global_step": step,
                "max_steps": 4,
                "num_input_tokens_seen": 128 * step,
                "best_global_step": 2,
                "stateful_callbacks": {"RunTotals": {"args": {}, "attributes": {"rows": 8 * step, "seconds": 1.0}}},
                "log_history": [{"loss": 1.0, "step": step}],
            },
        )
        append_jsonl(folder / "history.jsonl", {"step": step, "loss": 1.0 / step, "time": 1e9 + step, "tokens": 128})


def checkpoints(folder: Path) -> str:
    """Where the run would continue, which must never fail, and what the tools make of its checkpoints."""
    starts = [start.step for start in possible_starts(str(folder))]
    assert starts in ([4, 2], [4], [2], []), starts
    return _all_of((
        lambda: list_run(folder),
        lambda: checkpoints_to_prune(folder, 1),
        lambda: progress_of(str(folder / "checkpoint-4")),
        lambda: list(verify(folder)),
    ))  # fmt: skip


def process(make: Any) -> Kind:
    """A folder of a process."""
    hmm = make()

    def read(folder: Path) -> Any:
        found = load_source(str(folder))
        return found.fingerprint(), getattr(found, "vocabulary", None)

    return Kind(f"folder of {type(hmm).__name__}", lambda folder: hmm.save_pretrained(folder), read)


def write_stream(folder: Path) -> None:
    settings = {"vocab_size": 9, "eos_id": 0, "tokenizer_hash": "x", "corpus": "c", "shard_tokens": 100}
    shutil.rmtree(folder)
    write_tokens([[number % 7 + 1] * (number % 9 + 2) for number in range(40)], folder, **settings)


def stream(folder: Path) -> Any:
    from hmm_datasets.errors import InputError

    found = TokenStream(folder, verify=False)
    for problem in found.problems():
        raise InputError(problem)
    return found.index, found.read(0, found.index.num_tokens).tolist()


def write_words(folder: Path) -> None:
    texts = ["The cat sat. The dog ran. A cat ran. The dog sat on a mat."] * 3 + ["The mat sat. A dog sat."]
    build_word_corpus(texts, k=8, test_fraction=0.3).save(folder)


def words(folder: Path) -> Any:
    found = WordCorpus.load(folder)
    return found.vocabulary, found.word_counts, found.num_words, found.test_fraction, repr(found.train)


FIT: dict[str, Any] = {}  # the identity of the fit


def write_fit(folder: Path) -> None:
    tokens = processes.random(3, 4, alpha=0.4, seed=7).sample(20, 10, seed=1).astype(int)
    settings = FitSettings(num_states=2, max_epochs=1, batch_size=7, update_every=2, save_every=1)
    fit_hmm(tokens, settings, checkpoint_dir=folder.parent / "fit", show_progress=False, vocabulary="abcd")
    shutil.rmtree(folder)
    (folder.parent / "fit" / "epoch-1").rename(folder)
    FIT.update(read_json(folder / "identity.json"))


def fit(folder: Path) -> Any:
    found = load_state(folder, FIT)
    return found.hmm.fingerprint(), found.hmm.vocabulary, found.epoch, found.updates, found.history


def write_evaluation(folder: Path) -> None:
    with written_together(folder) as temporary:
        (temporary / "items").mkdir()
        write_jsonl(temporary / "items" / "text.jsonl", [{"document": n, "nats": n + 0.5} for n in range(9)])
        write_json(temporary / "report.json", {"model": {"name": "m"}, "text": {"bits_per_byte": 1.25}})
        write_digests(temporary, into=folder)


def evaluation(folder: Path) -> Any:
    report = read_report(folder)
    return report, ReportFolder("a", folder, report).items("text")


def write_cell(folder: Path) -> None:
    CellState([["hmm-datasets", "fit"]], "finished", 1, 1, []).write(folder)


KINDS = (
    Kind("records of a run", write_run, records),
    Kind("run that is watched", write_watched, watched),
    Kind("checkpoints of a run", write_checkpoints, checkpoints),
    process(lambda: HMM(**processes.random(3, 8, seed=1).tables(), vocabulary=[f"word{n}" for n in range(8)])),
    process(lambda: ProcessMixture([processes.mess3(), processes.mess3(x=0.2)])),
    process(lambda: RandomChains(4, alpha=1.0)),
    Kind("token stream", write_stream, stream),
    Kind("word corpus", write_words, words),
    Kind("checkpoint of a fit", write_fit, fit),
    Kind("evaluation", write_evaluation, evaluation),
    Kind("cell of a sweep", write_cell, lambda folder: dataclasses.astuple(CellState.read(folder))),
)

if __name__ == "__main__":
    sys.exit(main("fuzz.own_files", KINDS))
