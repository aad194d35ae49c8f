"""Files of activations: what a plain forward pass gives, in pieces, beside the exact beliefs."""

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from test_beliefs import MESS3, llama, rows_of

from hmm_datasets.cli import main
from hmm_datasets.errors import InputError
from hmm_datasets.evaluation.activation_files import save_activations


def saved(folder) -> dict[str, torch.Tensor]:
    files = [load_file(path) for path in sorted(folder.iterdir())]
    return {name: torch.cat([file[name] for file in files]) for name in files[0]}


@pytest.mark.parametrize("bos", [True, False], ids=["bos", "no bos"])
def test_activations_are_those_of_a_forward_pass_beside_the_beliefs_after_each_token(bos, tmp_path, monkeypatch):
    monkeypatch.setattr("hmm_datasets.evaluation.activation_files._FILE_BYTES", 10_000)
    model, rows = llama(), rows_of(MESS3, count=13, bos=bos)
    tokens = torch.stack([row["input_ids"] for row in rows.__getitems__(range(13))])
    save_activations(model, rows, tmp_path / "all", Accelerator(cpu=True), batch_size=4)
    assert len(list((tmp_path / "all").iterdir())) > 1
    tables = saved(tmp_path / "all")
    with torch.no_grad():
        expected = model(tokens, output_hidden_states=True).hidden_states
    assert torch.equal(tables.pop("input_ids"), tokens)
    beliefs = MESS3.beliefs(tokens[:, bos:].numpy())
    torch.testing.assert_close(tables.pop("beliefs"), torch.from_numpy(beliefs[:, 1 - bos :]).float())
    assert list(tables) == ["layer.0", "layer.1", "layer.2"]
    for table, layer in zip(tables.values(), expected, strict=True):
        torch.testing.assert_close(table, layer)
    save_activations(model, rows, tmp_path / "one", Accelerator(cpu=True), layers=["model.layers.1.mlp"])
    assert saved(tmp_path / "one").keys() == {"beliefs", "input_ids", "layer.model.layers.1.mlp"}
    with pytest.raises(InputError, match="has no submodule 'nothing'"):
        save_activations(model, rows, tmp_path / "none", Accelerator(cpu=True), layers=["nothing"])
    assert not (tmp_path / "none").exists()


@pytest.mark.thorough
def test_an_evaluation_writes_them_or_says_why_not(tmp_path, capsys):
    run = str(tmp_path / "run")
    main(["pretrain", "--hmm", "mess3", "--model", "1m", "--length", "8", "--max_steps", "1", "--output_dir", run])
    evaluate = ["evaluate", run, "--num_sequences", "16", "--activations", "hidden_states"]
    assert main([*evaluate, "--tasks", "beliefs"]) == 0
    tables = saved(tmp_path / "run" / "evaluation" / "activations")
    assert tables["layer.4"].shape[:2] == tables["beliefs"].shape[:2] == (16, 9)
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main([*evaluate, "--tasks", "optimum"])
    assert (
        "--activations is ['hidden_states'], but has no effect if tasks are without beliefs" in capsys.readouterr().err
    )
