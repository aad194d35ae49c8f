"""Folders that an older version wrote load afterwards: processes, streams, fits, runs and the files around them.

`tests/old_folders/write.py` wrote the archives with the package of the commits that they are named after, and says how
another is added.
"""

import json
import shutil
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).with_name("old_folders")))
import write

from hmm_datasets import load_source
from hmm_datasets.cli import main
from hmm_datasets.errors import InputError
from hmm_datasets.hmm.tilted import TiltedHMM
from hmm_datasets.operations.run_state import RunObserver
from hmm_datasets.operations.sweeps.cells import prepare
from hmm_datasets.operations.sweeps.file import read_sweep
from hmm_datasets.operations.sweeps.report import collect
from hmm_datasets.runtime import lock as exclusive_lock
from hmm_datasets.runtime.rank_heartbeats import read_heartbeats
from hmm_datasets.text.stream import tokenize_corpus

REMOVED = {"factorial": "factorial", "semi_markov": "semi_markov", "input_output": "input_output"}
REMOVED |= {"factored_tree": "input_output"}  # the kind of its driven factor
ARCHIVES = sorted(Path(write.__file__).parent.glob("*.tar.xz"))


@pytest.fixture(scope="module", params=ARCHIVES, ids=lambda path: path.name.split(".")[0])
def old(request, tmp_path_factory) -> Path:
    """The folders of an archive."""
    folder = tmp_path_factory.mktemp("old")
    with tarfile.open(request.param) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def expected(old) -> dict:
    """What the folders hold, as the version that wrote them computed it."""
    return json.loads((old / "expected.json").read_text())


def assert_same(found, expected, where=""):
    """Integers, strings and names are equal, floats to a rounding error."""
    if isinstance(expected, dict):
        assert found.keys() >= expected.keys(), where
        for name, value in expected.items():
            assert_same(found[name], value, f"{where} {name}")
    elif isinstance(expected, list) and np.asarray(expected).dtype.kind == "f":
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14, err_msg=where)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-12), where
    else:
        assert found == expected, where


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_processes_of_every_kind_load_and_are_saved_again_as_they_were(old, expected, tmp_path):
    assert {path.name for path in (old / "processes").iterdir()} == expected["processes"].keys()
    for name, then in expected["processes"].items():
        if name in REMOVED:
            continue
        process = load_source(old / "processes" / name)
        found = write.described(process)
        if "entropy_rate" in then:
            found["entropy_rate"] = float(process.entropy_rate().value)
        if "vocabulary" in then:
            found["vocabulary"] = list(process.vocabulary)
        assert_same(found, then, name)
        process.save_pretrained(tmp_path / name)
        assert files_of(tmp_path / name) == files_of(old / "processes" / name), name


@pytest.mark.parametrize("name", REMOVED)
def test_a_kind_that_was_removed_is_refused_with_the_commit_that_has_it(old, name):
    with pytest.raises(InputError, match=rf"'{REMOVED[name]}' is a kind that .* commit a02991b"):
        load_source(old / "processes" / name)


def test_every_kind_of_process_is_among_the_old_folders(old):
    from hmm_datasets.hmm.process_storage import KINDS

    files = [*(old / "processes").rglob("process.json"), *(old / "processes").rglob("family.json")]
    kept = [json.loads(path.read_text()) for path in files]
    newer = {"blocked", "context_trees", "delimited", "ended", "HigherOrderChains", "tokenized"}  # than the archives
    assert {one.get("process", one.get("family")) for one in kept} >= KINDS.keys() - newer


def test_tilted_hmms_load_and_are_saved_again_as_they_were(old, expected, tmp_path):
    for name, then in expected["tilted"].items():
        tilted = TiltedHMM.from_pretrained(old / "tilted" / name)
        assert_same(write.described_tilted(tilted), then, name)
        tilted.save_pretrained(tmp_path / name)
        assert files_of(tmp_path / name) == files_of(old / "tilted" / name), name


def test_transformers_loads_models_that_are_hmms(old, expected):
    for name, then in expected["models"].items():
        assert_same(write.described_model(old / "models" / name), then, name)


def test_tokenizers_streams_and_words_load(old, expected):
    from transformers import AutoTokenizer

    text, then = old / "text", expected["text"]
    for name, ids in then["tokenizers"].items():
        assert AutoTokenizer.from_pretrained(text / "tokenizers" / name)(write.SENTENCES[0])["input_ids"] == ids
    for name, stream in then["streams"].items():
        assert write.described_stream(text / name) == stream, name
    assert write.described_words(text / "words") == then["words"]


def test_an_unfinished_stream_is_continued(old, expected, tmp_path):
    from transformers import AutoTokenizer

    folder = tmp_path / "later"
    shutil.copytree(old / "text" / "later.unfinished", tmp_path / "later.unfinished")
    read = []
    documents = lambda first: read.append(first) or iter(write.SENTENCES[first:])  # noqa: E731
    tokenizer = AutoTokenizer.from_pretrained(old / "text" / "tokenizers" / "characters")
    tokenize_corpus(documents, tokenizer, folder, "sentences", **write.TOKENS)
    assert read[0] > 0
    assert write.described_stream(folder) == expected["text"]["finished"]


def test_fits_are_continued_as_if_they_had_not_been_interrupted(old, expected):
    for name, then in expected["fits"].items():
        before = {path.name for path in (old / "fits" / name).glob("epoch-*")}
        assert "epoch-3" in before
        assert_same(write.described_fit(write.fitted(name, old / "fits" / name)), then, name)
        assert "epoch-6" not in before


@pytest.mark.thorough
def test_every_folder_is_as_it_was_written(old, tmp_path, monkeypatch):
    shutil.copytree(old, tmp_path / "finished", ignore=shutil.ignore_patterns("*.unfinished", *REMOVED))
    monkeypatch.chdir(tmp_path / "finished")
    assert main(["verify", "."]) == 0


@pytest.mark.thorough
@pytest.mark.parametrize("name", write.RUNS)
def test_stopped_runs_are_continued_as_if_they_had_not_been_interrupted(name, old, expected, monkeypatch):
    monkeypatch.chdir(old)
    write.train(*write.RUNS[name], f"runs/{name}")
    summary = json.loads(Path("runs", name, "summary.json").read_text())
    assert summary["resumed_from"] == "checkpoint-4"
    found = write.losses(Path("runs", name))
    assert found == pytest.approx(expected["runs"][name], abs=2e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("name", write.SHARDED)
def test_checkpoints_of_two_processes_are_continued_by_one(name, old, expected, monkeypatch):
    monkeypatch.chdir(old)
    checkpoint = f"sharded/{name}/checkpoint-4"
    assert main(["checkpoint", "convert", checkpoint, f"converted/{name}", "--to", "plain"]) == 0
    write.train("pretrain", {**write.ON_HMM, "save_steps": 4}, f"converted/{name}")
    assert write.losses(Path("converted", name)) == pytest.approx(expected["sharded"][name], abs=2e-5)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("name", write.SHARDED)
def test_checkpoints_of_two_processes_are_continued_by_two(name, old, expected, launch, monkeypatch):
    monkeypatch.chdir(old)
    shutil.copytree(f"sharded/{name}", f"two/{name}")
    words = write.words_of("pretrain", {**write.ON_HMM, "per_device_train_batch_size": 2}, f"two/{name}")
    result = launch("hmm_datasets.cli", *words, "--launch", name, timeout=500)
    assert result.returncode == 0, result.stderr[-3000:]
    assert json.loads(Path("two", name, "summary.json").read_text())["resumed_from"] == "checkpoint-4"
    assert write.losses(Path("two", name)) == pytest.approx(expected["sharded"][name], abs=2e-5)


@pytest.mark.thorough
def test_a_run_that_went_back_is_continued_without_the_rows_that_it_left_out(old, expected, monkeypatch):
    monkeypatch.chdir(old)
    write.train_on_bad_rows("runs/rolled_back")
    summary = json.loads(Path("runs/rolled_back/summary.json").read_text())
    assert (summary["resumed_from"], len(summary["passed_over"])) == ("checkpoint-31", 1)
    assert write.losses(Path("runs/rolled_back")) == pytest.approx(expected["tidied"]["rolled_back"], abs=2e-5)


@pytest.mark.thorough
def test_a_run_whose_checkpoints_were_slimmed_is_continued(old, expected, monkeypatch, capsys):
    monkeypatch.chdir(old)
    assert main(["verify", "runs/slimmed"]) == 0
    assert main(["checkpoint", "list", "runs/slimmed", "--json"]) == 0
    write.train("pretrain", write.ON_HMM, "runs/slimmed")
    assert write.losses(Path("runs/slimmed")) == pytest.approx(expected["runs"]["adamw"], abs=2e-5)


def test_what_a_new_start_has_archived_is_brought_back(old, expected, monkeypatch):
    monkeypatch.chdir(old)
    folder = Path("runs/anew")
    assert write.described_llama(folder) == pytest.approx(expected["tidied"]["after"], rel=1e-5)
    (archived,) = (folder / "set_aside").iterdir()
    for path in [folder / one.name for one in archived.iterdir() if (folder / one.name).exists()]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert main(["checkpoint", "restore", "runs/anew"]) == 0
    assert main(["watch", "runs/anew"]) == 0
    assert write.described_llama(folder) == pytest.approx(expected["tidied"]["before"], rel=1e-5)


def test_a_finished_run_and_its_report_are_read(old, expected, monkeypatch, capsys):
    monkeypatch.chdir(old)
    then = expected["finished"]
    assert write.described_llama(Path("finished")) == pytest.approx(then["logits"], rel=1e-5)
    write.train("pretrain", {**write.ON_HMM, "save_strategy": "no"}, "finished")
    assert "already finished, at step 8" in capsys.readouterr().out
    assert main(["watch", "finished", "--json"]) == 0
    state = json.loads(capsys.readouterr().out)
    assert state["state"] == "finished"
    shutil.copytree("finished/evaluation", "again")
    assert main(["compare", "finished/evaluation", "again"]) == 0
    gap = then["report"]["optimum"]["bayes_gap"]["bayes_gap"]
    assert f"{gap:.4f}" in capsys.readouterr().out
    assert main(["verify", "finished"]) == 0


@pytest.mark.thorough
def test_heartbeats_are_read_and_a_lock_is_taken_over(old, expected, monkeypatch):
    live = old / "live"
    (heartbeat,) = read_heartbeats(live)
    assert {name: getattr(heartbeat, name) for name in expected["live"]} == expected["live"]
    state = RunObserver(live).look()
    assert (state.state, state.progress.step) == ("dead", 2)

    # The lock of a process on another machine, or of a dead one on this machine, is taken over.
    monkeypatch.setattr(exclusive_lock, "SILENCE", 0.3)
    with exclusive_lock.exclusive_lock(live):
        assert json.loads((live / ".lock").read_bytes())["host"] != expected["live"]["host"]


def test_the_cells_of_a_sweep_are_finished_and_have_their_results(old, expected, monkeypatch):
    monkeypatch.chdir(old)
    sweep = read_sweep("sweep.yaml")
    states = prepare(sweep)
    assert [(state.state, state.attempts) for state in states.values()] == [("finished", 1)] * 2
    for cell in collect(sweep)["cells"]:
        then = expected["sweep"][cell["name"]]
        assert cell["values"] == {"test_log_likelihood": then["test_log_likelihood"]}
