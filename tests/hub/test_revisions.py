"""A run's checkpoints on branches: the learning curve from the Hub alone, and a base that is pinned to its commit."""

import pytest

CODE = """
    import json, sys
    from pathlib import Path
    import torch
    from huggingface_hub import HfApi, hf_hub_download
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, default_data_collator
    from hmm_datasets import HMMSequences, processes
    from hmm_datasets.errors import InputError
    from hmm_datasets import EvaluationSettings, evaluate_model
    from hmm_datasets.files import read_json
    from hmm_datasets.hub import PushSettings, push_path
    from hmm_datasets.training.pretrained import load_pretrained
    from hmm_datasets.training.run import train_and_save
    from hmm_datasets.training.settings import PretrainSettings
    from hmm_datasets.training.trainer import Pretrainer

    root, found = Path(sys.argv[1]), {}
    hmm = processes.mess3(0.15, 0.6)
    hmm.save_pretrained(root / "mess3")

    def train(name, model, steps, base=None):
        args = PretrainSettings(str(root / name), max_steps=steps, save_steps=2, global_batch_size=4, use_cpu=True,
                                per_device_train_batch_size=4, report_to="none", disable_tqdm=True)
        rows = HMMSequences(hmm, 8)
        trainer = Pretrainer(model=model, args=args, train_dataset=rows, data_collator=default_data_collator)
        return train_and_save(trainer, settings={"hmm": str(root / "mess3")}, data={"length": 8, "seed": 0}, base=base)

    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=4, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
                         num_attention_heads=2, max_position_embeddings=16)
    train("run", LlamaForCausalLM(config), 4)
    pushed = push_path(root / "run", "tester/curve", PushSettings(include_checkpoints=True), say=lambda line: None)

    def curve(model, **settings):
        report = evaluate_model(EvaluationSettings(model, targets=[str(root / "mess3")], tasks=["optimum", "training"],
                                                   output_dir=str(root / "evaluation"), num_sequences=8, **settings))
        return report["training"]["from"], [
            (row["step"], row["tokens"], row["cross_entropy"]) for row in report["training"]["rows"]
        ]

    found["here"] = curve(str(root / "run"), checkpoints=True)
    found["there"] = curve("tester/curve", revisions=["all"])
    found["some"] = curve("tester/curve", revisions=["step-4"])

    base = "tester/curve@step-2"
    train("tuned", load_pretrained(AutoModelForCausalLM, base), 4, base)
    record = read_json(root / "tuned" / "run.json")
    found["base"] = [record["lineage"]["base"], record["data"]["base"], pushed[0].commit]
    found["before"] = record["lineage"]["before"]
    found["card"] = (root / "tuned" / "README.md").read_text()
    (root / "tuned" / "summary.json").unlink()
    HfApi().upload_file(path_or_fileobj=b"new", path_in_repo="new.txt", repo_id="tester/curve", revision="step-2")
    try:
        train("tuned", load_pretrained(AutoModelForCausalLM, base), 6, base)
    except InputError as error:
        found["refused"] = str(error)
    pinned = f"tester/curve@{pushed[0].commit}"
    found["resumed"] = train("tuned", load_pretrained(AutoModelForCausalLM, pinned), 6, pinned)["resumed_from"]

    content = Path(hf_hub_download("tester/curve", "model.safetensors")).resolve()
    whole = content.read_bytes()
    for kind, changed in (("changed", whole[:-1] + bytes([whole[-1] ^ 1])), ("truncated", whole[:-1])):
        content.chmod(0o600)
        content.write_bytes(changed)
        try:
            load_pretrained(AutoModelForCausalLM, "tester/curve")
        except InputError as error:
            found[kind] = str(error)
    content.unlink()
    load_pretrained(AutoModelForCausalLM, "tester/curve")
    found["content"], found["again"] = str(content), content.read_bytes() == whole

    for kind, name in (("missing", "tester/curve@step-9"), ("pickle", "tester/pickled")):
        if kind == "pickle":
            HfApi().create_repo(name)
            torch.save(LlamaForCausalLM(config).state_dict(), root / "run" / "pytorch_model.bin")
            for file in ("config.json", "pytorch_model.bin"):
                HfApi().upload_file(path_or_fileobj=root / "run" / file, path_in_repo=file, repo_id=name)
        try:
            load_pretrained(AutoModelForCausalLM, name)
        except InputError as error:
            found[kind] = str(error)
    print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(local_hub, tmp_path_factory):
    folder = tmp_path_factory.mktemp("revisions")
    return local_hub.child(CODE, folder / "home", folder)


pytestmark = pytest.mark.thorough


@pytest.mark.outside(
    "https://github.com/huggingface/huggingface_hub/issues/3643",
    "notice that a large file was downloaded with the right size and another content",
    "a model whose file has not the hash that the Hub gave is refused, with what to delete",
)
@pytest.mark.parametrize("kind", ["changed", "truncated"])
def test_a_downloaded_file_that_has_changed_is_not_loaded(found, kind):
    assert "model.safetensors: the Hub's file has the hash " in found[kind]
    assert f"delete {found['content']}, and it is downloaded again" in found[kind]
    assert found["again"]


def test_the_learning_curve_comes_from_the_hub_alone(found):
    assert found["here"][0] == "checkpoints"
    assert found["there"][0] == "revisions"
    assert [row[0] for row in found["there"][1]] == [2, 4]
    assert found["there"][1] == found["here"][1]
    assert found["some"][1] == found["there"][1][1:]


def test_a_base_from_the_hub_is_recorded_with_its_commit_and_stages(found):
    base, identity, commit = found["base"]
    assert base["model"] == "tester/curve@step-2"
    assert base["commit"] == commit
    assert identity == f"tester/curve@{commit}"
    assert found["before"] == [{"stage": "training of tester/curve@step-2", "data": None, "tokens": None}]
    assert f"| Parent | tester/curve@step-2 at commit `{commit}` |" in found["card"]


def test_a_base_that_changed_meanwhile_is_refused_and_the_commit_is_the_remedy(found):
    _, identity, _ = found["base"]
    assert f"data.base was '{identity}' and is 'tester/curve@" in found["refused"]
    assert found["resumed"] == "checkpoint-4"


def test_a_missing_revision_and_pickled_weights_are_refused_in_one_line(found):
    for kind in ("missing", "pickle"):
        assert "AutoModelForCausalLM finds nothing to load, neither in a folder nor on the Hub" in found[kind]
        assert "\n" not in found[kind]
