import json
from dataclasses import fields

import numpy as np
import pytest

from hmm_datasets.cli import build_parser, main
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.fitting.fit import fit_hmm
from hmm_datasets.hmm.fitting.settings import FitSettings
from hmm_datasets.hmm.model import HMM

TOKENS = processes.random(3, 4, alpha=0.4, seed=7).sample(60, 20, seed=1)


@pytest.fixture
def path(tmp_path) -> str:
    np.save(tmp_path / "tokens.npy", TOKENS)
    return str(tmp_path / "tokens.npy")


def failing(capsys, *argv: str) -> str:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    return capsys.readouterr().err.strip().splitlines()[-1]


def test_every_setting_of_a_fit_is_a_flag_and_left_to_its_default(path, tmp_path):
    arguments = build_parser().parse_args(["fit", path, "--num-states", "3", "--output", str(tmp_path)])
    given = {f.name: getattr(arguments, f.name) for f in fields(FitSettings) if f.name in arguments}
    assert given == {"num_states": 3}
    values = {"init": "contexts", "dtype": "float64", "backend": "pomegranate", "step_exponent": "0.75"}
    for setting in fields(FitSettings):
        value = values.get(setting.name, "7")
        flag = f"--{setting.name.replace('_', '-')}"
        arguments = build_parser().parse_args(["fit", path, "--num-states", "3", "--output", "o", flag, value])
        found = getattr(arguments, setting.name)
        assert str(found).removesuffix(".0") == value
        FitSettings(**{"num_states": 3, setting.name: found})


def test_fit_writes_what_fit_hmm_finds(path, tmp_path, capsys):
    held_out = tmp_path / "test.npy"
    np.save(held_out, TOKENS[:9])
    output = tmp_path / "run"
    command = ["fit", path, "--num-states", "3", "--max-epochs", "6", "--seed", "2", "--output", str(output)]
    command += ["--test", str(held_out), "--num-symbols", "5"]
    assert main(command) == 0
    expected = fit_hmm(
        TOKENS, FitSettings(3, max_epochs=6, seed=2), num_symbols=5, test_tokens=TOKENS[:9], progress=False
    )
    assert HMM.from_pretrained(output / "hmm") == expected.hmm
    out = capsys.readouterr().out
    assert f"epoch 6, {expected.train_log_likelihood:.6f} nats a token on train" in out
    assert f"{expected.test_log_likelihood:.6f} held out" in out
    rows = [json.loads(line) for line in (output / "fit" / "history.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == list(range(6))


def test_the_same_command_with_more_epochs_goes_on(path, tmp_path, capsys):
    for max_epochs in ("2", "5"):
        main(["fit", path, "--num-states", "3", "--max-epochs", max_epochs, "--output", str(tmp_path)])
    expected = fit_hmm(TOKENS, FitSettings(3, max_epochs=5), progress=False)
    assert HMM.from_pretrained(tmp_path / "hmm") == expected.hmm
    assert (tmp_path / "fit" / "epoch-2").is_dir()


def test_progress_says_likelihood_rate_and_time_left(path, tmp_path, capsys):
    main(["fit", path, "--num-states", "3", "--max-epochs", "3", "--output", str(tmp_path)])
    last = capsys.readouterr().err.split("\r")[-1]
    for part in ("epoch 3/3, -", "nats/token", "token/s", "00:00<00:00"):
        assert part in last


def test_fit_by_pomegranate(path, tmp_path, capsys):
    command = ["fit", path, "--num-states", "3", "--max-epochs", "2", "--output", str(tmp_path)]
    command += ["--backend", "pomegranate"]
    assert "start_pseudocount is 0.01, but pomegranate" in failing(capsys, *command)
    assert not (tmp_path / "hmm").exists()
    assert main([*command, "--pseudocount", "0"]) == 0
    assert HMM.from_pretrained(tmp_path / "hmm").num_states == 3


def test_fit_tells_bad_input_and_leaves_nothing(path, tmp_path, capsys):
    output = ("--output", str(tmp_path / "run"))
    assert "num_states is 0; expected 1 or more" in failing(capsys, "fit", path, "--num-states", "0", *output)
    assert "no such file" in failing(capsys, "fit", path + "x", "--num-states", "3", *output)
    assert "invalid choice: 'x'" in failing(capsys, "fit", path, "--num-states", "3", "--init", "x", *output)
    assert "required: --num-states" in failing(capsys, "fit", path, *output)
    message = failing(capsys, "fit", path, "--num-states", "3", "--num-symbols", "3", *output)
    assert "is 3; the symbols of this HMM are 0..2" in message
    message = failing(capsys, "fit", path, "--num-states", "3", "--device", "cuda:99", *output)
    assert "device is 'cuda:99', and cannot be used" in message
    assert not (tmp_path / "run").exists()
