"""What a new user reads of what was pushed: licences, the optimal loss, titles, decoding, and runs that stopped."""

import json
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import DatasetCard, ModelCard
from transformers import AutoTokenizer

from hmm_datasets import HMM, processes
from hmm_datasets.errors import InputError
from hmm_datasets.evaluation.comparison import compare_reports
from hmm_datasets.evaluation.evaluation import evaluate_model
from hmm_datasets.evaluation.settings import EvaluationSettings
from hmm_datasets.hub.kinds.process import write_process_card
from hmm_datasets.hub.kinds.push import PushSettings, _made, push_path
from hmm_datasets.hub.kinds.recognition import detect_kind
from hmm_datasets.runtime.shipped import shipped
from hmm_datasets.text.corpora.presets import SAMPLES
from hmm_datasets.text.stream import write_tokens
from hmm_datasets.text.tokenizers.bpe import train_bpe

REPOSITORY = "me/published"


def made(path: Path, scratch: Path, repo_type=None, **settings) -> Path:
    """The folder of files that `push` makes for a path."""
    scratch.mkdir()
    _made(detect_kind(path, repo_type), scratch, REPOSITORY, PushSettings(**settings))
    return scratch / "made"


def stream(folder: Path, *corpora: str) -> Path:
    for corpus in corpora:
        write_tokens(
            *([np.array([1, 2, 3])], folder / Path(corpus).name / "train"),
            **{"vocab_size": 9, "eos_id": 0, "tokenizer_hash": "x", "corpus": corpus},
        )
    return folder


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("make", "licence", "row"),
    [
        (
            lambda place: stream(place, "tinystories-sample"),
            "cdla-sharing-1.0",
            "tinystories-sample | CDLA-Sharing-1.0",
        ),
        (lambda place: stream(place, "roneneldan/TinyStories"), "cdla-sharing-1.0", "TinyStories | CDLA-Sharing-1.0"),
        (lambda place: stream(place, "fineweb-edu"), "odc-by", "fineweb-edu | ODC-By-1.0"),
        (lambda place: stream(place, "smoltalk"), "other", "smoltalk | Apache-2.0 for its new parts"),
        (lambda place: stream(place, "tinystories", "gsm8k"), "other", "gsm8k | MIT"),
        (lambda place: stream(place, "tinystories", "mine.txt"), "other", "tinystories | CDLA-Sharing-1.0"),
        (
            lambda place: stream(place, str(SAMPLES / "instructions.jsonl.gz")),
            "apache-2.0",
            "instructions.jsonl.gz | Apache-2.0",
        ),
    ],
    ids=["sample", "hub", "odc", "several-terms", "two", "one-unknown", "bundled"],
)
def test_the_card_of_a_named_corpus_has_its_licence(tmp_path, make, licence, row):
    card = DatasetCard.load(made(make(tmp_path / "data"), tmp_path / "scratch") / "README.md")
    assert card.data.license == licence
    assert f"| Licence of {row}" in card.text


def test_a_stated_licence_is_kept_beside_that_of_the_corpus(tmp_path):
    folder = made(stream(tmp_path / "data", "tinystories"), tmp_path / "scratch", license="cc0-1.0")
    card = DatasetCard.load(folder / "README.md")
    assert card.data.license == "cc0-1.0"
    assert "| Licence of tinystories | CDLA-Sharing-1.0 |" in card.text


def test_an_unknown_licence_is_named_as_unknown(tmp_path):
    card = DatasetCard.load(made(stream(tmp_path / "data", "mine.txt"), tmp_path / "scratch") / "README.md")
    assert card.data.license is None
    assert "The licence of the text is not known" in card.text


def test_the_command_in_a_card_of_tokens_decodes_them(tmp_path, monkeypatch):
    import huggingface_hub

    tokenizer = train_bpe(["Once upon a time there was a cat."] * 9, 270, show_progress=False)
    tokens = [np.array([*tokenizer.encode("a cat"), tokenizer.eos_token_id])]
    where = {"vocab_size": 270, "eos_id": tokenizer.eos_token_id, "tokenizer_hash": "x", "corpus": "tinystories"}
    write_tokens(tokens, tmp_path / "data" / "train", **where)
    tokenizer.save_pretrained(tmp_path / "data" / "tokenizer")
    card = DatasetCard.load(made(tmp_path / "data", tmp_path / "scratch") / "README.md").text
    program = card.partition("```python\n")[2].partition("```")[0]
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(tmp_path / "data"))
    monkeypatch.setattr("datasets.load_dataset", lambda *_, **__: [{"input_ids": tokens[0].tolist()}])
    names: dict = {}
    exec(program, names)
    assert "a cat" in names["text"]


def test_the_tokenizer_of_an_hmm_with_words_asks_for_no_code(tmp_path, monkeypatch):
    hmm = HMM(start=[1.0], transition=[[1.0]], emission=[[0.5, 0.5]], vocabulary=("the", "cat"))
    hmm.save_pretrained(tmp_path)
    write_process_card(hmm, tmp_path, name="words")
    text = ModelCard.load(tmp_path / "README.md").text
    line = next(line for line in text.splitlines() if line.startswith("tokenizer = AutoTokenizer"))
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked a question"))
    tokenizer = eval(line.partition("= ")[2].replace("USER/NAME", str(tmp_path)), {"AutoTokenizer": AutoTokenizer})
    assert tokenizer.decode([1]).strip() == "cat"
    assert "hmm.vocabulary[token]" in text


def test_a_fit_becomes_a_data_set_as_the_guide_promises(tmp_path):
    fit = tmp_path / "fit"
    processes.mess3().save_pretrained(fit / "hmm")
    (fit / "run.json").write_text(json.dumps({"settings": {}}))
    assert detect_kind(fit).kind == "fit of an HMM"
    as_data = detect_kind(fit, "dataset")
    assert (as_data.kind, as_data.repo_type, as_data.folder) == ("data set of an HMM", "dataset", fit / "hmm")


def test_a_card_has_the_name_of_its_repository_as_title(tmp_path):
    write_process_card(processes.coin(), tmp_path, name="hmm-in-a-folder")
    processes.coin().save_pretrained(tmp_path)
    text = (made(tmp_path, tmp_path.parent / "scratch") / "README.md").read_text()
    assert "\n# published\n" in text
    assert "hmm-in-a-folder" not in text


def test_no_card_advises_a_package_that_no_index_has():
    for path in [*shipped("model_cards").glob("*.md"), *Path("hmm_datasets/skills").rglob("*.md")]:
        assert "pip install hmm-datasets" not in path.read_text(), path


@pytest.fixture
def stopped(tmp_path) -> Path:
    folder = tmp_path / "run"
    for step in (20, 100):
        (folder / f"checkpoint-{step}").mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"settings": {}}))
    return folder


def test_a_stopped_run_is_named_as_one_with_its_step(stopped):
    there = r"run: is a run that stopped before its end, with its newest checkpoint at step 100.*checkpoint-100$"
    with pytest.raises(InputError, match=there):
        push_path(stopped, REPOSITORY)
    with pytest.raises(InputError, match=there):
        evaluate_model(EvaluationSettings(str(stopped), targets=["process:mess3"]))
    with pytest.raises(InputError, match=there):
        compare_reports([stopped, stopped.parent])
