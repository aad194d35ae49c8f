"""Converted checkpoints have the same weights and optimizer; under real launches see recipes/test_sharding.py."""

import os
import pickle
import re
import shutil

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from tiny_runs import random_rows, trainer
from transformers import LlamaForCausalLM

from hmm_datasets.cli import main
from hmm_datasets.errors import InputError
from hmm_datasets.files import digest_problems, read_json, read_jsonl, write_digests, write_json
from hmm_datasets.operations.checkpoints.convert import convert
from hmm_datasets.training.checkpoints.inspection import optimizer_checkpoint, verify_checkpoint
from hmm_datasets.training.run import train_and_save


def same(first, second) -> bool:
    if torch.is_tensor(first):
        return first.dtype == second.dtype and torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    return first == second


def optimizer(folder):
    return torch.load(folder / "optimizer.pt", weights_only=True)


@pytest.mark.thorough
@pytest.mark.parametrize("path", [["plain"], ["zero", "plain"], ["fsdp", "plain"], ["fsdp", "zero", "zero", "plain"]])
def test_a_checkpoint_that_comes_back_is_the_same_and_the_run_goes_on_from_it(path, run, go_on, tmp_path):
    source = folder = run / "checkpoint-4"
    for number, to in enumerate(path):
        folder = convert(folder, tmp_path / str(number), to)
        assert verify_checkpoint(folder).ok
        assert digest_problems(folder) == []
        assert optimizer_checkpoint(folder.parent) == folder
    assert same(optimizer(folder), optimizer(source))
    assert same(load_file(folder / "model.safetensors"), load_file(source / "model.safetensors"))
    for name in ("scheduler.pt", "rng_state.pth", "trainer_state.json", "config.json"):
        assert (folder / name).read_bytes() == (source / name).read_bytes()
    assert go_on(folder.parent, max_steps=6)["resumed_from"] == "checkpoint-4"
    whole, converted = (read_jsonl(one / "history.jsonl") for one in (run, folder.parent))
    expected = {row["step"]: row["loss"] for row in whole if "loss" in row}
    assert {row["step"]: row["loss"] for row in converted if "loss" in row} == expected


@pytest.mark.thorough
def test_parameter_groups_of_muon_find_their_names(tmp_path):
    given = {"max_steps": 2, "save_strategy": "steps", "save_steps": 2, "optimizer": "muon"}
    one = trainer(tmp_path / "run", rows=random_rows(64), **given)
    train_and_save(one, settings={}, data={})
    source = tmp_path / "run" / "checkpoint-2"
    named = convert(source, tmp_path / "fsdp", "fsdp")
    saved = torch.load(named / "optimizer.bin", weights_only=True)
    names = {id(parameter): name for name, parameter in one.model.named_parameters()}
    expected = [[names[id(parameter)] for parameter in group["params"]] for group in one.optimizer.param_groups]
    assert [group["params"] for group in saved["param_groups"]] == expected
    for parameter, state in one.optimizer.state.items():
        assert same(dict(saved["state"][names[id(parameter)]]), dict(state))
    with pytest.raises(InputError, match="is not AdamW with one number of steps"):
        convert(source, tmp_path / "zero", "zero")
    assert not (tmp_path / "zero" / "checkpoint-2").exists()
    assert same(optimizer(convert(named, tmp_path / "back", "plain")), optimizer(source))


@pytest.mark.thorough
def test_a_model_of_a_checkpoint_loads_and_has_nothing_of_training(run, tmp_path, capsys):
    folder = tmp_path / "model"
    assert main(["checkpoint", "convert", str(run / "checkpoint-6"), str(folder), "--to", "hf"]) == 0
    assert str(folder) in capsys.readouterr().out
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json",
        "digests.json",
        "generation_config.json",
        "model.safetensors",
    ]
    model = LlamaForCausalLM.from_pretrained(folder)
    assert same(dict(model.state_dict()), load_file(run / "checkpoint-6" / "model.safetensors"))


def write_fsdp_shards(folder) -> None:
    """Replace model and optimizer by what accelerate writes with SHARDED_STATE_DICT: no configuration either."""
    state = {"optimizer": torch.load(folder / "optimizer.bin", weights_only=True)}
    weights = {"model": load_file(folder / "model.safetensors")}
    for name, content in {"optimizer_0": state, "pytorch_model_fsdp_0": weights}.items():
        dcp.save(content, checkpoint_id=folder / name, no_dist=True)
    for name in ("optimizer.bin", "model.safetensors", "config.json", "generation_config.json"):
        (folder / name).unlink()
    write_digests(folder)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_the_shards_of_fsdp_are_converted(run, tmp_path):
    source = run / "checkpoint-6"
    sharded = convert(source, tmp_path / "sharded", "fsdp")
    write_fsdp_shards(sharded)
    plain = convert(sharded, tmp_path / "plain", "plain")
    assert same(optimizer(plain), optimizer(source))
    assert same(load_file(plain / "model.safetensors"), load_file(source / "model.safetensors"))
    model = LlamaForCausalLM.from_pretrained(convert(sharded, tmp_path / "model", "hf"))
    assert same(dict(model.state_dict()), load_file(source / "model.safetensors"))
    shutil.rmtree(sharded / "pytorch_model_fsdp_0")
    (sharded / "pytorch_model_fsdp_0").mkdir()
    (sharded / "pytorch_model_fsdp_0" / "__0_0.distcp").write_bytes(b"x")
    write_digests(sharded)
    with pytest.raises(InputError, match=r"pytorch_model_fsdp_0: its \.metadata cannot be read"):
        convert(sharded, tmp_path / "torn", "plain")


class MakesAFolder:
    """An object whose pickle makes a folder when it is read."""

    def __init__(self, folder):
        self.folder = str(folder)

    def __reduce__(self):
        return os.mkdir, (self.folder,)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize(
    "place", ["metadata", "value of FSDP", "optimizer_state.pt", "exp_avg.pt", "shards of ZeRO", "optimizer.pt"]
)
def test_converting_runs_nothing_that_a_pickle_names(run, tmp_path, place):
    ran, source = tmp_path / "ran", run / "checkpoint-6"
    if place in ("metadata", "value of FSDP"):
        source = convert(source, tmp_path / "sharded", "fsdp")
        write_fsdp_shards(source)
        if place == "metadata":
            (source / "optimizer_0" / ".metadata").write_bytes(pickle.dumps(MakesAFolder(ran)))
        else:
            content = {"optimizer": {"param_groups": [{"lr": MakesAFolder(ran)}]}}
            dcp.save(content, checkpoint_id=source / "optimizer_0", no_dist=True)
    elif place == "shards of ZeRO":
        (source / "optimizer.pt").unlink()
        (source / "latest").write_text("global_step6")
        (source / "global_step6").mkdir()
        for name in ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"):
            torch.save({"module": MakesAFolder(ran)}, source / "global_step6" / name)
    elif place == "optimizer.pt":
        torch.save({"state": {}, "param_groups": MakesAFolder(ran)}, source / "optimizer.pt")
    else:
        source = convert(source, tmp_path / "zero", "zero")
        zero = source / "global_step6_universal" / "zero"
        path = next(zero.rglob(place))
        torch.save({"param": MakesAFolder(ran), "param_groups": [{}, {}]}, path)
    write_digests(source)
    assert verify_checkpoint(source).ok
    with pytest.raises(InputError, match="cannot be read as data") as caught:
        convert(source, tmp_path / "out", "plain")
    assert "\n" not in str(caught.value)
    assert not ran.exists()


@pytest.mark.outside(
    "https://github.com/ultralytics/ultralytics/pull/25258",
    "Python 3.13 writes and expects `pathlib._local`, so that a restricted reader takes its checkpoints or all others",
    "`.metadata` that any Python wrote is read by any",
)
@pytest.mark.outside(
    "https://github.com/ayutaz/piper-plus/pull/619",
    "a class that is allowed by its module of the reading Python, where the pickle has that of the writing one",
    "the same case",
)
@pytest.mark.parametrize("module", ["pathlib", "pathlib._local"])
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_the_shards_of_fsdp_name_no_files_outside_them(module, run, tmp_path):
    source = convert(run / "checkpoint-6", tmp_path / "sharded", "fsdp")
    write_fsdp_shards(source)
    metadata = dcp.FileSystemReader(source / "optimizer_0").read_metadata()
    for found in metadata.storage_data.values():
        found.relative_path = "../../elsewhere"
    pickled, paths = re.subn(rb"cpathlib[._local]*\n", f"c{module}\n".encode(), pickle.dumps(metadata, protocol=2))
    assert paths
    (source / "optimizer_0" / ".metadata").write_bytes(pickled)
    write_digests(source)
    with pytest.raises(InputError, match=r"\.metadata: names '\.\./\.\./elsewhere'"):
        convert(source, tmp_path / "out", "plain")


def test_what_cannot_be_converted_is_refused_in_one_line_by_name(run, tmp_path):
    def refused(folder, to="fsdp"):
        with pytest.raises(InputError) as caught:
            convert(folder, tmp_path / "out", to)
        assert not (tmp_path / "out" / folder.name).exists()
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "no such folder" in refused(tmp_path / "checkpoint-9")
    (tmp_path / "checkpoint-8").mkdir()
    assert "trainer_state.json: missing" in refused(tmp_path / "checkpoint-8")
    assert "not named checkpoint-N" in refused(run)
    torn = run / "checkpoint-2"
    content = (torn / "optimizer.pt").read_bytes()
    (torn / "optimizer.pt").write_bytes(content[:-9])
    assert "the file is truncated" in refused(torn)
    (torn / "optimizer.pt").write_bytes(content[:99] + b"!" + content[100:])
    assert "SHA-256 is" in refused(torn)
    (torn / "optimizer.pt").unlink()
    write_digests(torn)
    assert "has no optimizer state, so only --to hf is possible" in refused(torn)
    (torn / "optimizer_0").mkdir()
    assert "optimizer_0: its .metadata cannot be read" in refused(torn)
    foreign = run / "checkpoint-4"
    config = read_json(foreign / "config.json")
    write_json(foreign / "config.json", config | {"num_hidden_layers": 2})
    write_digests(foreign)
    assert "has groups of [9, 3] parameters, the model has [16, 5]" in refused(foreign)
    write_json(foreign / "config.json", config | {"model_type": "unheard_of"})
    write_digests(foreign)
    assert "transformers cannot make its model" in refused(foreign)
    (foreign / "adapter_config.json").write_text("{}")
    write_digests(foreign)
    assert "is of a LoRA run" in refused(foreign)
    (foreign / "adapter_config.json").unlink()
    torch.save({"a": 1}, foreign / "optimizer.pt")
    write_digests(foreign)
    assert "has no state and param_groups" in refused(foreign)
    zero = convert(run / "checkpoint-6", tmp_path / "zero", "zero")
    shutil.rmtree(zero / "global_step6_universal")
    assert "latest_universal: names global_step6_universal, which has no optimizer state" in refused(zero)
    convert(run / "checkpoint-6", tmp_path / "out", "plain")
    with pytest.raises(InputError, match="checkpoint-6: exists; give another folder"):
        convert(run / "checkpoint-6", tmp_path / "out", "plain")


def test_a_checkpoint_that_its_run_deletes_meanwhile_is_named(run, tmp_path, monkeypatch):
    from hmm_datasets.operations.checkpoints import convert as conversion

    source, names = run / "checkpoint-2", conversion.weight_names

    def deleted(folder):
        found = names(folder)
        shutil.rmtree(source)
        return found

    monkeypatch.setattr(conversion, "weight_names", deleted)
    with pytest.raises(InputError, match="checkpoint-2: was deleted meanwhile"):
        convert(source, tmp_path / "model", "hf")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.thorough
def test_the_remedy_for_a_checkpoint_of_another_framework_works(run, go_on, tmp_path):
    zero = convert(run / "checkpoint-6", tmp_path / "zero", "zero")
    with pytest.raises(InputError) as caught:
        go_on(zero.parent)
    told = str(caught.value)
    assert "checkpoint-6: written under DeepSpeed ZeRO by 1 processes, but this run is under plain data" in told
    remedy = re.search(r"hmm-datasets (checkpoint convert .*) and continue with --output_dir (\S+)$", told)
    command, output = remedy.groups()
    assert main(command.split()) == 0
    assert go_on(type(zero)(output))["resumed_from"] == "checkpoint-6"
