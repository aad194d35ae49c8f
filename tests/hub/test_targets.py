"""The targets of an evaluation, given by a name on the Hub."""

from pathlib import Path

import pytest

from hmm_datasets.cli import main


@pytest.mark.thorough
def test_what_a_model_is_measured_against_comes_by_the_name_of_either_kind_of_repository(local_hub, tmp_path):
    code = """
        import json, sys
        from huggingface_hub import HfApi
        from hmm_datasets.hmm import processes
        from hmm_datasets.hub.push import push_folder
        from hmm_datasets.evaluation.targets import open_target
        hmm, folder = processes.mess3(0.15, 0.6), sys.argv[1]
        hmm.save_pretrained(folder)
        for kind in ("model", "dataset"):
            push_folder(folder, f"tester/mess3-{kind}", repo_type=kind)
        texts = b"".join(json.dumps({"text": f"Story {n}."}).encode() + b"\\n" for n in range(3))
        HfApi().create_repo("tester/stories", repo_type="dataset")
        HfApi().upload_file(path_or_fileobj=texts, path_in_repo="test.jsonl", repo_id="tester/stories",
                            repo_type="dataset")
        distributions = [open_target(f"tester/mess3-{kind}") == hmm for kind in ("model", "dataset")]
        print(json.dumps([distributions, open_target("tester/stories", 2).texts]))
    """
    distributions, texts = local_hub.child(code, tmp_path / "home", tmp_path / "hmm")
    assert distributions == [True, True]
    assert texts == ["Story 0.", "Story 1."]


@pytest.mark.thorough
def test_without_a_hub_the_name_is_refused_in_one_line(local_hub, tmp_path):
    code = """
        import json, time
        time.sleep = lambda seconds: None  # between the attempts of the client
        from hmm_datasets import InputError, load_source
        from hmm_datasets.evaluation.targets import open_target
        found = []
        for read in (load_source, open_target):
            try:
                read("tester/mess3")
            except InputError as error:
                found.append(str(error))
        print(json.dumps(found))
    """
    found = local_hub.child(code, tmp_path / "home", HF_ENDPOINT="http://127.0.0.1:9")
    assert len(found) == 2
    assert all(line.startswith("tester/mess3: ") and "\n" not in line for line in found)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("describe", "me/process"), "neither a folder nor a process on the Hub"),
        (("chat", "me/model", "--prompt", "hi"), "AutoModelForCausalLM finds nothing to load"),
        (("evaluate", "me/model", "--targets", "mess3"), "AutoConfig finds nothing to load"),
        (("plan", "pretrain", "--hmm", "mess3", "--model", "me/model"), "no configuration found"),
        (("tokenize", "mybook.txt", "--tokenizer", "me/model"), "no tokenizer can be loaded from it"),
    ],
)
def test_an_address_that_cannot_be_resolved_is_not_tried_again_and_again(
    command, message, monkeypatch, tmp_path, capsys, caplog
):
    """No such address exists (RFC 2606); huggingface_hub waits for 23 seconds at each file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://hub.invalid")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    Path("mybook.txt").write_text("one two three\n" * 100)
    with pytest.raises(SystemExit) as ended:
        main(list(command))
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert message in said
    assert "the Hub's address cannot be resolved here" in said.splitlines()[-1]
    assert "Retrying" not in said + caplog.text
