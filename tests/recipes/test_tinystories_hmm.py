"""The experiment on HMMs of words: its stages and plans in this process, and all of it in a slow test."""

import json
import os
import shlex
from pathlib import Path

import pytest
import torch
from experiments import load
from transformers import LlamaForCausalLM

from hmm_datasets.errors import InputError
from hmm_datasets.files import read_json, write_json, write_yaml
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.fitting.fit import fit_hmm
from hmm_datasets.hmm.fitting.settings import FitSettings
from hmm_datasets.hmm.tokenizer import hmm_tokenizer
from hmm_datasets.operations.stage_inputs import check_cells, read_command
from hmm_datasets.operations.sweeps.file import read_sweep
from hmm_datasets.runtime.command_line import parse_settings
from hmm_datasets.runtime.shipped import EXPERIMENTS, shipped
from hmm_datasets.training.model_configs import model_config

FOLDER = shipped(EXPERIMENTS) / "tinystories_hmm"


RECIPE, COMPARE = load("tinystories_hmm"), load("tinystories_hmm", "compare")
EMISSIONS, SENTENCES = load("tinystories_hmm", "emissions"), load("tinystories_hmm", "sentences")


def settings(config: str, *flags: str):
    return parse_settings(RECIPE.TinyStoriesSettings, arguments=["--config", str(FOLDER / config), *flags])[0]


def sweeps(config: str, folder: Path) -> dict:
    found = {}
    for name, content in RECIPE.sweeps(settings(config, "--output_dir", str(folder))).items():
        write_yaml(folder / f"{name}.yaml", content)
        found[name] = read_sweep(folder / f"{name}.yaml")
    return found


def test_the_full_experiment_has_every_size_and_update(tmp_path):
    found = sweeps("full.yaml", tmp_path)
    for name in ("vocabulary_size", "num_states", "length"):
        assert {cell.varied[name] for cell in found["sizes"].cells} == {100, 200, 300, 400, 500, 600}
    assert len(found["sizes"].cells) == 216
    assert {cell.varied["update_every"] for cell in found["updates"].cells} == {1, 2, 8, 16, 32, None}
    assert len(found["updates"].cells) == 11


def test_flags_of_fits_are_for_both_sweeps_unless_updates_are_compared_with_others(tmp_path):
    flags = ("--fit", "--pseudocount 0.2 --time_limit 1:00:00 --max_epochs 3", "--output_dir", str(tmp_path))
    sizes, updates = (one["settings"] for one in RECIPE.sweeps(settings("small.yaml", *flags)).values())
    assert {one["pseudocount"] for one in (sizes, updates)} == {0.2}
    assert {one["time_limit"] for one in (sizes, updates)} == {"1:00:00"}
    assert [sizes["max_epochs"], updates["max_epochs"], sizes["patience"]] == [3, 20, 5]


@pytest.mark.thorough
def test_the_settings_of_a_small_experiment_are_those_of_fit(tmp_path):
    found = sweeps("small.yaml", tmp_path)
    assert [len(sweep.cells) for sweep in found.values()] == [9, 11]
    for sweep in found.values():
        check_cells(sweep)


def test_the_best_fit_has_the_largest_vocabulary_and_all_must_be_finished(tmp_path):
    def cell(words, loss, state="finished"):
        settings = {"vocabulary_size": words}
        return {"name": f"E={words}", "folder": f"{words}-{loss}", "settings": settings, "state": state,
                "values": {"test.cross_entropy": loss}}  # fmt: skip

    write_json(tmp_path / "updates" / "sweep.json", {"cells": []})
    write_json(tmp_path / "sizes" / "sweep.json", {"cells": [cell(100, 2.0), cell(200, 3.1), cell(200, 3.0)]})
    assert RECIPE.best_fit(tmp_path) == Path("200-3.0/run")
    write_json(tmp_path / "updates" / "sweep.json", {"cells": [cell(200, None, "stopped")]})
    with pytest.raises(InputError, match="1 fits are not finished, such as E=200; the same command continues"):
        RECIPE.best_fit(tmp_path)


@pytest.mark.parametrize("config", ["small.yaml", "full.yaml"])
def test_commands_of_stages_are_accepted_by_their_recipes(config, tmp_path):
    chosen = settings(config, "--output_dir", str(tmp_path / "with space"))
    commands = [shlex.split(command) for _, command in RECIPE.on_the_best(chosen, tmp_path / "best")]
    for words in commands:
        if words[1] in ("pretrain", "evaluate"):
            read_command(words[1], words[2:])
    assert [Path(words[1]).name for words in commands[:5]] == [
        "emissions.py",
        "sample",
        "pretrain",
        "evaluate",
        "sentences.py",
    ]
    assert str(tmp_path / "with space" / "llama") in commands[4]


def test_what_a_model_of_words_writes_are_lines_of_its_words(tmp_path):
    words, folder = ("the", "cat", "sat", "."), tmp_path / "model"
    torch.manual_seed(0)
    LlamaForCausalLM(model_config("d2", vocab_size=5, max_length=48, bos_token_id=4)).save_pretrained(folder)
    hmm_tokenizer(words, 4, bos=True, prepend_bos=True).save_pretrained(folder)
    for name in ("a.txt", "b.txt"):
        SENTENCES.main(str(folder), str(tmp_path / name))
    written = (tmp_path / "a.txt").read_text()
    assert [len(line.replace(".", " .").split()) for line in written.splitlines()] == [40] * 40
    assert set(written.replace(".", " .").split()) == set(words)
    assert (tmp_path / "b.txt").read_text() == written


@pytest.mark.thorough
def test_curves_and_tables_are_those_of_the_histories(tmp_path):
    cells = []
    for every, rule, seed in ((1, "replace", 0), (1, "replace", 1), (None, "stochastic", 0)):
        folder = tmp_path / f"{every}-{seed}"
        rows = [{"updates": 4, "test_log_likelihood": -4.0 + epoch - seed} for epoch in range(3)]
        (folder / "run" / "fit").mkdir(parents=True)
        (folder / "run" / "fit" / "history.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        cells.append({"folder": str(folder), "settings": {"update_every": every, "update_rule": rule}})
    curves = COMPARE.held_out_curves(cells)
    assert curves[1, "replace"] == {"losses": [4.5, 3.5, 2.5], "updates": 4, "best_epoch": 2}
    (_, last) = COMPARE.updates_table(curves).rows
    assert last == ["all", "-", "4", "3.0000", "2.0000", "2.0000", "2", "2.0000"]
    COMPARE.draw_updates(curves, tmp_path / "updates.png")
    assert (tmp_path / "updates.png").stat().st_size > 5_000


@pytest.mark.thorough
def test_emissions_over_a_fit_are_drawn(tmp_path, capsys):
    tokens = processes.mess3(0.15, 0.6).sample(40, 12).astype(int)
    fit = FitSettings(num_states=3, max_epochs=3, tolerance=0, save_every=1)
    fit_hmm(tokens, fit, checkpoint_dir=tmp_path / "run" / "fit", show_progress=False)
    EMISSIONS.main(EMISSIONS.EmissionsSettings(str(tmp_path / "run"), states=[0, 2]))
    assert capsys.readouterr().out.strip() == str(tmp_path / "run" / "plots" / "emissions.png")
    assert sorted(os.listdir(tmp_path / "run" / "plots")) == ["emissions.pdf", "emissions.png"]
    with pytest.raises(InputError, match="--states 3: expected 0 to 2"):
        EMISSIONS.main(EMISSIONS.EmissionsSettings(str(tmp_path / "run"), states=[3]))
    with pytest.raises(InputError, match="has no checkpoints epoch-N"):
        EMISSIONS.main(EMISSIONS.EmissionsSettings(str(tmp_path)))


@pytest.mark.thorough
@pytest.mark.slow
def test_the_small_experiment_ends_in_its_report(program, succeeded, tmp_path):
    small = ("--num_states", 8, "--length", 16, 32, "--fit", "--max_epochs 6")
    small += ("--pretrain", "--train_tokens 20_000", "--output_dir", tmp_path)
    command = (
        "recipes/experiments/tinystories_hmm/run.py",
        "--config",
        "recipes/experiments/tinystories_hmm/small.yaml",
    )
    said = succeeded(program.run(*command, *small, timeout=900)).stdout
    report = read_json(tmp_path / "report.json")
    assert len(report["updates"]) == 11
    assert [len(sentences) for sentences in report["sentences"].values()] == [10, 10]
    assert report["llama"]["kl"]["bayes"]["kl"] > 0
    fit = read_json(Path(report["best"]) / "summary.json")
    assert {"cross_entropy", "final_token_cross_entropy"} <= fit["unique_test"].keys()
    for name in ("updates.png", "emissions.png", "report.md", "sizes/sweep.csv"):
        assert (tmp_path / name).stat().st_size > 200
    assert "Sentences of the Llama" in said
