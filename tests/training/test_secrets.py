"""Access tokens given to a run are in none of the files that it writes."""

import pickle
import sys
import zipfile

import pytest
import torch

from hmm_datasets.data.sequences import HMMSequences
from hmm_datasets.errors import InputError
from hmm_datasets.files import read_json
from hmm_datasets.hmm import processes
from hmm_datasets.runtime.command_line import parse_settings
from hmm_datasets.training.model_configs import model_config, new_model
from hmm_datasets.training.run import train_and_save
from hmm_datasets.training.settings import DPOSettings, GRPOSettings, PretrainSettings, SFTSettings
from hmm_datasets.training.trainer import Pretrainer

TOKEN = "hf_" + "aBcDeFgHiJ" * 3 + "kLmN"
WORDS = "my-own-hub-pass-phrase"  # not recognizable as a token


def train(arguments):
    (args,) = parse_settings(PretrainSettings, arguments=arguments)
    rows = HMMSequences(processes.mess3(0.15, 0.6), 7)
    torch.manual_seed(0)
    model = new_model(model_config("d1", vocab_size=rows.vocab_size, max_length=8))
    trainer = Pretrainer(model=model, args=args, train_dataset=rows)
    train_and_save(trainer, settings={"note": f"with {TOKEN}"}, data={"from": f"https://me:{WORDS}@h/x"})
    return trainer


def contents(folder):
    """The bytes of every file, including files in archives."""
    for path in folder.rglob("*"):
        if path.is_file():
            yield path.name, path.read_bytes()
            if zipfile.is_zipfile(path):
                with zipfile.ZipFile(path) as archive:
                    yield from ((f"{path.name}:{name}", archive.read(name)) for name in archive.namelist())


@pytest.mark.outside(
    "https://github.com/huggingface/diffusers/issues/6916",
    "a token given as `--hub_token` that trackers and records do not show",
    "shown as `<HUB_TOKEN>` in the command, the settings and all files, and in the words that trackers record",
)
@pytest.mark.parametrize("form", ["flag and value", "flag=value", "dashes", "YAML file"])
def test_a_token_that_a_run_is_given_is_written_nowhere(tmp_path, monkeypatch, form):
    output = tmp_path / "run"
    monkeypatch.setenv("HF_TOKEN", WORDS)
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef" * 2 + "01234567")
    settings = tmp_path / "settings.yaml"
    settings.write_text(f"hub_token: {WORDS}\n")
    given = {
        "flag and value": ["--hub_token", WORDS],
        "flag=value": [f"--hub_token={WORDS}"],
        "dashes": ["--hub-token", TOKEN],
        "YAML file": ["--config", str(settings)],
    }[form]
    arguments = ["--output_dir", str(output), "--max_steps", "2", "--save_steps", "1", "--global_batch_size", "4"]
    arguments += ["--per_device_train_batch_size", "4", "--report_to", "none", "--run_name", TOKEN, *given]
    monkeypatch.setattr(sys, "argv", ["recipes/pretrain.py", *arguments])
    trainer = train(arguments)
    assert trainer.args.hub_token.reveal() in (TOKEN, WORDS), "the run itself needs it to push"
    found = [name for name, content in contents(output) for secret in (TOKEN, WORDS) if secret.encode() in content]
    assert found == []
    command = read_json(output / "run.json")["command"]
    assert "--max_steps 2" in command
    assert ("<HUB_TOKEN>" in command) == (form != "YAML file")


@pytest.mark.parametrize("kind", [PretrainSettings, SFTSettings, DPOSettings, GRPOSettings])
def test_the_settings_of_no_trainer_show_a_token(tmp_path, kind):
    settings = kind(str(tmp_path), hub_token=WORDS, report_to="none", global_batch_size=8, use_cpu=True)
    shown = [str(settings), repr(settings), settings.to_json_string(), str(settings.to_sanitized_dict())]
    shown += [str(vars(settings)), str(pickle.dumps(settings))]
    assert [text for text in shown if WORDS in text] == []
    assert settings.hub_token.reveal() == WORDS
    assert pickle.loads(pickle.dumps(settings)).hub_token is None
    with pytest.raises(InputError, match="hub_token is <HUB_TOKEN>, which records have in place of a secret"):
        kind(str(tmp_path), hub_token="<HUB_TOKEN>")


@pytest.mark.thorough
def test_the_pickled_arguments_of_the_trainer_are_not_written_and_not_needed(tmp_path):
    arguments = ["--output_dir", str(tmp_path), "--save_steps", "1", "--global_batch_size", "4", "--report_to", "none"]
    arguments += ["--per_device_train_batch_size", "4"]
    train([*arguments, "--max_steps", "1"])
    assert list(tmp_path.rglob("training_args.bin")) == []
    train([*arguments, "--max_steps", "2"])
    assert read_json(tmp_path / "summary.json")["resumed_from"] == "checkpoint-1"
