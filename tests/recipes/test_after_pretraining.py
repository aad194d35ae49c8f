"""The experiment on learning a process after pretraining, without its training."""

import numpy as np
import pytest
import torch
from experiments import load
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from hmm_datasets.data.windows import TokenWindows
from hmm_datasets.errors import InputError
from hmm_datasets.files import read_json, write_json, write_jsonl
from hmm_datasets.hmm import processes
from hmm_datasets.text.stream import TokenStream
from hmm_datasets.text.tokenizers.bpe import train_bpe

RECIPE = load("after_pretraining")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pretrained")
    tokenizer = train_bpe(["A B C A B C A"] * 9, 266, show_progress=False)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(9)  # none of the seeds of new models
    LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=64, **sizes)).save_pretrained(
        folder
    )
    tokenizer.save_pretrained(folder)
    return folder


def settings(model, folder, **others):
    small = {"length": 16, "max_steps": 4, "num_sequences": 6, "seeds": [0, 1]}
    return RECIPE.AfterPretrainingSettings(model=str(model), output_dir=str(folder), **{**small, **others})


@pytest.mark.thorough
def test_windows_of_the_streams_are_the_sequences(model, tmp_path):
    chosen, process = settings(model, tmp_path), processes.mess3()
    RECIPE.write_sequences(chosen, process)
    RECIPE.write_sequences(chosen, process)  # a second time nothing is written
    windows = TokenWindows(TokenStream(tmp_path / "sequences" / "test"), 16)
    assert windows.num_windows == 6
    rows = np.array([row["input_ids"].tolist() for row in windows])
    own = {token: symbol for symbol, token in enumerate(sorted(set(rows.ravel().tolist())))}
    tokenizer = AutoTokenizer.from_pretrained(model)
    assert [tokenizer.decode([token]) for token in own] == [" A", " B", " C"]
    assert np.vectorize(own.get)(rows).tolist() == RECIPE.held_out(chosen, process).tolist()
    assert TokenWindows(TokenStream(tmp_path / "sequences" / "train"), 16).num_windows == 16


def test_new_models_have_the_configuration_and_other_weights(model, tmp_path):
    RECIPE.write_new_models(settings(model, tmp_path))
    old, *new = (
        AutoModelForCausalLM.from_pretrained(folder)
        for folder in (model, tmp_path / "random_0", tmp_path / "random_1")
    )
    assert {str(one.config.to_diff_dict()) for one in new} == {str(old.config.to_diff_dict())}
    weights = [one.get_output_embeddings().weight for one in (old, *new)]
    assert not any(torch.equal(weights[a], weights[b]) for a, b in ((0, 1), (0, 2), (1, 2)))


def test_the_optimum_is_that_of_the_sequences_from_their_second_symbol_on(model, tmp_path):
    chosen, process = settings(model, tmp_path, num_sequences=2000, length=32), processes.mess3()
    losses = RECIPE.optimum_and_baselines(chosen, process)
    tokens = RECIPE.held_out(chosen, process)
    exact = np.asarray(process.next_token_probs(tokens))[:, 1:-1]
    nats = -np.log(np.take_along_axis(exact, tokens[:, 1:, None].astype(np.int64), -1))
    assert losses["bayes"] == pytest.approx(nats.mean(), abs=1e-9)
    assert losses["bayes"] < losses["process_bigram"] < losses["uniform"] == pytest.approx(np.log(3))


@pytest.mark.thorough
def test_the_report_subtracts_the_optimum(model, tmp_path, capsys):
    chosen, process = settings(model, tmp_path), processes.mess3()
    optimum = RECIPE.optimum_and_baselines(chosen, process)["bayes"]
    for name, excess in (("pretrained", 0.1), ("new_0", 0.2), ("new_1", 0.3)):
        rows = [
            {"step": step, "eval_sequences_loss": optimum + excess, "eval_text_loss": 2.0 + step} for step in (0, 1, 4)
        ]
        write_jsonl(tmp_path / name / "history.jsonl", [{"step": 1, "loss": 1.0}, *rows])
    for name, facts in (("before", 11), ("after", 7)):
        report = {"completions": {"facts_correct": facts, "facts": 20}}
        write_json(tmp_path / "evaluation" / name / "report.json", report)
    RECIPE.report(chosen, process, 1.0)
    curves = read_json(tmp_path / "report.json")["curves"]
    assert [row["symbols"] for row in curves["new_1"]] == [0, 64, 256]
    assert [row["excess"] for row in curves["new_1"]] == pytest.approx([0.3] * 3)
    said = (tmp_path / "report.md").read_text()
    assert "| 256 | 0.100 | 0.200 | 0.300 | 6.000 |" in said
    assert "| facts | 11 of 20 | 7 of 20 |" in said
    assert "11 of 20" in capsys.readouterr().out
    assert (tmp_path / "after_pretraining.png").stat().st_size > 5_000


def test_wrong_settings_are_refused(model, tmp_path):
    with pytest.raises(InputError, match="num_sequences is 1"):
        settings(model, tmp_path, num_sequences=1)


@pytest.mark.thorough
@pytest.mark.slow
def test_the_experiment_runs_to_its_report(program, succeeded, model, tmp_path):
    command = ("recipes/experiments/after_pretraining/run.py", "--model", model, "--output_dir", tmp_path)
    sizes = ("--max_steps", 4, "--seeds", 0, "--length", 16, "--num_sequences", 6)
    said = succeeded(program.run(*command, *sizes, timeout=600)).stdout
    curves = read_json(tmp_path / "report.json")["curves"]
    assert [row["symbols"] for row in curves["pretrained"]] == [row["symbols"] for row in curves["new_0"]]
    assert curves["pretrained"][0]["symbols"] == 0
    assert curves["pretrained"][-1]["symbols"] == 4 * 4 * 16
    assert "What the pretrained model knows" in said
