"""Everything that the package makes is pushed by one command, and comes back equal with and without the package."""

import urllib.request

import kinds
import pytest
from tiny_runs import tiny_model

from hmm_datasets.errors import InputError
from hmm_datasets.files import write_digests, write_json
from hmm_datasets.hmm import processes
from hmm_datasets.hub.kinds.push import PushSettings, push_path
from hmm_datasets.hub.kinds.recognition import detect_kind


@pytest.fixture(scope="module")
def found(local_hub, tmp_path_factory):
    """What became of every kind: four children for all claims."""
    return kinds.outcomes(local_hub, tmp_path_factory.mktemp("kinds"))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_what_is_pushed_comes_back_equal_and_a_second_push_makes_no_commit(found, kind):
    row = found[kind]
    assert row["plain"], "loads without the package"
    assert row["ours"], "loads with it"
    assert row["equal"]
    assert row["unchanged"]


@pytest.mark.thorough
def test_the_output_says_what_goes_where_first(found):
    said = found["model with checkpoints"]["said"]
    assert ": model of the stage pretraining; " in said[0]
    assert said[1].startswith(
        "to the model repository tester/kinds-run (a new one: as the Hub makes it), the main branch"
    )
    assert said[2].endswith("to the branches step-1, step-20")
    assert "(public) at " in said[-1]
    assert "Parquet files of the documents and a card, made now" in found["token stream"]["said"][0]


@pytest.mark.thorough
@pytest.mark.parametrize("repo", ["tester/kinds-run", "datasets/tester/kinds-words"])
def test_the_licence_that_is_asked_for_stands_in_the_card(found, local_hub, repo):
    with urllib.request.urlopen(f"{local_hub.endpoint}/{repo}/resolve/main/README.md") as reply:
        assert b"\nlicense: cc0-1.0\n" in reply.read()


@pytest.mark.thorough
def test_a_branch_of_a_checkpoint_has_the_model_alone(found, local_hub):
    tree = local_hub.get("/api/models/tester/kinds-run/tree/step-1?recursive=true")
    assert {entry["path"] for entry in tree} == {
        *(".gitattributes", "config.json", "generation_config.json", "model.safetensors")
    }


def test_a_dry_run_names_every_file_and_pushes_nothing(tmp_path):
    processes.mess3(0.15, 0.6).save_pretrained(tmp_path / "hmm")
    said = []
    settings = PushSettings(dry_run=True, private=True, revision="try")
    assert push_path(tmp_path / "hmm", "me/mess3", settings, endpoint="http://127.0.0.1:9", say=said.append) == []
    assert said[0].startswith(f"{tmp_path / 'hmm'}: HMM; 6 files, ")
    assert said[1] == "to the model repository me/mess3 (a new one: private), branch try"
    assert "  model.safetensors" in said
    assert said[-1] == "nothing was pushed (dry run)"


def test_what_cannot_be_pushed_is_named(tmp_path):
    with pytest.raises(InputError, match="expected a folder to push, found nothing"):
        detect_kind(tmp_path / "missing")
    (tmp_path / "stories").mkdir()
    (tmp_path / "stories" / "train.jsonl").write_text("{}")
    for path in (tmp_path / "stories" / "train.jsonl", tmp_path / "stories"):
        with pytest.raises(InputError, match="expected a folder to push, of other files than documents"):
            detect_kind(path)
    assert detect_kind(tmp_path / "stories", "dataset").files.keys() == {"train.jsonl"}
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "words.json").write_text("{}")
    with pytest.raises(InputError, match="is a word corpus, whose repository is a dataset, not a model; leave out"):
        detect_kind(tmp_path / "words", "model")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no files to push"):
        push_path(tmp_path / "empty", "me/x")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "model.safetensors").touch()
    with pytest.raises(InputError, match="has no checkpoint-N folders; leave out --include_checkpoints"):
        push_path(tmp_path / "run", "me/x", PushSettings(include_checkpoints=True))
    (tmp_path / "run" / "checkpoint-5" / "global_step5").mkdir(parents=True)
    with pytest.raises(InputError, match="only shards of ranks"):
        push_path(tmp_path / "run", "me/x", PushSettings(include_checkpoints=True))


def test_a_model_without_a_file_that_its_digests_list_is_not_pushed_and_the_file_is_named(tmp_path):
    tiny_model().save_pretrained(tmp_path / "model")
    write_digests(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    for dry_run in (True, False):
        with pytest.raises(
            InputError, match=rf"^{tmp_path}/model/model.safetensors: no such file, though digests.json"
        ):
            push_path(tmp_path / "model", "me/model", PushSettings(dry_run=dry_run), say=lambda line: None)


def test_a_run_without_its_process_is_not_pushed_until_the_remedy_has_been_followed(tmp_path):
    tiny_model().save_pretrained(tmp_path / "run")
    write_json(tmp_path / "run" / "run.json", {"settings": {"hmm": "process:mess3(x=0.05,a=0.85)"}})
    with pytest.raises(
        InputError, match=rf"^{tmp_path}/run/process/: no such folder, though run.json names "
    ) as error:
        push_path(tmp_path / "run", "me/run", PushSettings(dry_run=True), say=lambda line: None)
    exec(str(error.value).partition("write it in Python: ")[2])
    said = []
    assert push_path(tmp_path / "run", "me/run", PushSettings(dry_run=True), say=said.append) == []
    assert "  process/model.safetensors" in said
