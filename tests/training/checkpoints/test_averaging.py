"""`hmm-datasets checkpoint average` against the mean of whole state dicts, and what it refuses."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_runs import tiny_model
from transformers import LlamaForCausalLM

from hmm_datasets.cli import main
from hmm_datasets.errors import InputError
from hmm_datasets.files import digest_problems, read_json, write_json
from hmm_datasets.operations.checkpoints.average import average
from hmm_datasets.training.checkpoints.verifying import read_safetensors_sizes


def brute_force(models, shares):
    states = [model.state_dict() for model in models]
    return {
        name: sum(share * state[name].double() for state, share in zip(states, shares, strict=True))
        for name in states[0]
    }


@pytest.fixture
def models(tmp_path):
    made = [tiny_model(seed=seed, tied=True) for seed in range(3)]
    for number, model in enumerate(made):
        model.save_pretrained(tmp_path / f"model-{number}")
    return made, [tmp_path / f"model-{number}" for number in range(3)]


@pytest.mark.parametrize("weights", [None, [1.0, 2.0, 5.0]])
def test_the_average_is_that_of_the_state_dicts_and_loads(models, tmp_path, weights):
    made, folders = models
    average(folders, tmp_path / "average", weights)
    shares = [1 / 3] * 3 if weights is None else [1 / 8, 2 / 8, 5 / 8]
    loaded = LlamaForCausalLM.from_pretrained(tmp_path / "average").state_dict()
    for name, expected in brute_force(made, shares).items():
        torch.testing.assert_close(loaded[name], expected.float(), rtol=2e-7, atol=0)  # one rounding
    assert digest_problems(tmp_path / "average") == []
    assert [one["weight"] for one in read_json(tmp_path / "average" / "average.json")["of"]] == shares


def test_models_in_several_files_of_half_precision_are_averaged_in_double(tmp_path):
    made = [tiny_model(seed=seed, layers=2).bfloat16() for seed in range(3)]
    for number, model in enumerate(made):
        model.save_pretrained(tmp_path / str(number), max_shard_size="20KB")
    average([tmp_path / str(number) for number in range(3)], tmp_path / "average")
    assert len(list((tmp_path / "0").glob("*.safetensors"))) > 2
    assert (
        read_safetensors_sizes(tmp_path / "average" / "model.safetensors").keys()
        == dict(made[0].named_parameters()).keys()
    )
    loaded = LlamaForCausalLM.from_pretrained(tmp_path / "average", dtype="auto").state_dict()
    for name, expected in brute_force(made, [1 / 3] * 3).items():
        assert loaded[name].dtype == torch.bfloat16
        torch.testing.assert_close(loaded[name].double(), expected, rtol=2**-8, atol=1e-12)  # one rounding


def test_the_last_checkpoints_of_a_run_are_averaged(run, tmp_path, capsys):
    assert main(["checkpoint", "average", str(run), "--last", "2", "--output", str(tmp_path / "average")]) == 0
    assert "mean of" in capsys.readouterr().out
    four, six = (load_file(run / f"checkpoint-{step}" / "model.safetensors") for step in (4, 6))
    found = load_file(tmp_path / "average" / "model.safetensors")
    for name in four:
        torch.testing.assert_close(found[name], (four[name] + six[name]) / 2)
    names = {path.name for path in (tmp_path / "average").iterdir()}
    assert names == {"average.json", "config.json", "digests.json", "generation_config.json", "model.safetensors"}


def test_models_that_differ_in_more_than_weights_are_refused_by_name(models, run, tmp_path):
    _, folders = models
    output = tmp_path / "average"

    def refused(*given, weights=None):
        with pytest.raises(InputError) as caught:
            average(given, output, weights)
        assert not output.exists()
        return str(caught.value)

    other = tmp_path / "other"
    tiny_model(layers=2, tied=True).save_pretrained(other)
    assert f"{other}: its num_hidden_layers is 2, that of {folders[0]} is 1" in refused(other, folders[0])
    shutil.rmtree(other)
    shutil.copytree(folders[0], other)
    weights = load_file(other / "model.safetensors")
    name = "model.norm.weight"
    save_file(weights | {name: weights[name].half()}, other / "model.safetensors")
    assert f"{other}: {name} is float16 of shape [32], in {folders[1]} it is float32" in refused(other, folders[1])
    save_file(weights | {name: weights[name][:3]}, other / "model.safetensors")
    assert f"{name} is float32 of shape [3]" in refused(other, folders[1])
    del weights[name]
    save_file(weights, other / "model.safetensors")
    assert f"{name} is missing" in refused(other, folders[1])
    (other / "model.safetensors").write_bytes(b"torn")
    assert "too few for its header" in refused(other, folders[1])
    (other / "model.safetensors").unlink()
    assert f"{other}: has no model.safetensors" in refused(other, folders[1])
    save_file({}, other / "adapter_model.safetensors")
    assert f"{other}: has the adapter of a LoRA run" in refused(other, folders[1])
    assert "--weights: 1 values for 2 checkpoints" in refused(*folders[:2], weights=[1.0])
    assert "a sum above 0" in refused(*folders[:2], weights=[1.0, -1.0])
    digests = json.loads((run / "checkpoint-4" / "digests.json").read_text())
    digests["sha256"]["model.safetensors"] = "0"
    write_json(run / "checkpoint-4" / "digests.json", digests)
    assert "leave this checkpoint out" in refused(run / "checkpoint-4", run / "checkpoint-6")
    with pytest.raises(InputError, match="exists; choose another folder"):
        average(folders, folders[0])
