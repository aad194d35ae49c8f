import json

import numpy as np
import pytest

from hmm_datasets import load_source
from hmm_datasets.cli import main
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.fitting.fit import fit_hmm
from hmm_datasets.hmm.fitting.growth import blocks_of, grown
from hmm_datasets.hmm.fitting.initial import redrawn
from hmm_datasets.hmm.fitting.settings import FitSettings
from hmm_datasets.hmm.model import HMM
from hmm_datasets.hub.kinds.recognition import detect_kind
from tests.hmm.brute_force import LEFT_TO_RIGHT

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


@pytest.mark.thorough
def test_fit_writes_what_fit_hmm_finds(path, tmp_path, capsys):
    held_out = tmp_path / "test.npy"
    np.save(held_out, TOKENS[:9])
    output = tmp_path / "run"
    command = ["fit", path, "--num_states", "3", "--max_epochs", "6", "--seed", "2", "--output_dir", str(output)]
    command += ["--test", str(held_out), "--num_symbols", "5"]
    assert main(command) == 0
    expected = fit_hmm(
        TOKENS, FitSettings(3, max_epochs=6, seed=2), num_symbols=5, test_tokens=TOKENS[:9], show_progress=False
    )
    assert HMM.from_pretrained(output / "hmm") == expected.hmm
    out = capsys.readouterr().out
    assert f"epoch 6: log-likelihood {expected.train_log_likelihood:.4f} nats per token on train" in out
    assert f"{expected.test_log_likelihood:.4f} held out" in out
    rows = [json.loads(line) for line in (output / "fit" / "history.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows] == list(range(6))


@pytest.mark.thorough
def test_the_summary_has_the_final_token_cross_entropy_of_held_out_sequences(path, tmp_path):
    np.save(tmp_path / "test.npy", TOKENS[:9])
    main(["fit", path, "--num_states", "3", "--max_epochs", "2", "--test", str(tmp_path / "test.npy"),
          "--output_dir", str(tmp_path / "run")])  # fmt: skip
    found = json.loads((tmp_path / "run" / "summary.json").read_text())["test"]
    hmm = HMM.from_pretrained(tmp_path / "run" / "hmm")
    last = hmm.log_likelihood(TOKENS[:9, :-1]) - hmm.log_likelihood(TOKENS[:9])
    assert found["final_token_cross_entropy"] == pytest.approx(last.mean(), abs=1e-12)
    assert found["cross_entropy"] == pytest.approx(-hmm.log_likelihood(TOKENS[:9]).mean() / 20, abs=1e-12)
    assert (found["windows"], found["length"]) == (9, 20)


@pytest.mark.thorough
def test_the_same_command_with_more_epochs_goes_on(path, tmp_path, capsys):
    for max_epochs in ("2", "5"):
        main(["fit", path, "--num_states", "3", "--max_epochs", max_epochs, "--output_dir", str(tmp_path)])
    expected = fit_hmm(TOKENS, FitSettings(3, max_epochs=5), show_progress=False)
    assert HMM.from_pretrained(tmp_path / "hmm") == expected.hmm
    assert (tmp_path / "fit" / "epoch-2").is_dir()


@pytest.mark.thorough
def test_fit_keeps_the_zeros_and_fixed_tables_of_the_hmm_it_starts_from(path, tmp_path, capsys):
    guess = redrawn(LEFT_TO_RIGHT, seed=2)
    guess.save_pretrained(tmp_path / "initial")
    tokens = guess.sample(40, 12, seed=1)
    np.save(tmp_path / "left.npy", tokens)
    command = ["fit", str(tmp_path / "left.npy"), "--initial", str(tmp_path / "initial"), "--max_epochs", "3"]
    command += ["--output_dir", str(tmp_path / "run"), "--fixed", "start", "emission"]
    assert main(command) == 0
    settings = FitSettings(3, max_epochs=3, fixed=["start", "emission"])
    hmm = HMM.from_pretrained(tmp_path / "run" / "hmm")
    assert hmm == fit_hmm(tokens, settings, initial=guess, show_progress=False).hmm
    assert np.array_equal(hmm.emission, guess.emission)
    assert np.array_equal(hmm.transition == 0, LEFT_TO_RIGHT.transition == 0)
    output = ("--output_dir", str(tmp_path / "other"))
    assert "required: --num_states, or --initial FOLDER" in failing(capsys, "fit", path, *output)
    message = failing(capsys, "fit", path, "--initial", str(tmp_path / "initial"), "--num_states", "4", *output)
    assert "expected a state-emitting HMM of 4 states and 3 symbols" in message
    message = failing(capsys, "fit", "tinystories-sample", "--initial", str(tmp_path / "initial"), *output)
    assert "has other words than the 100 most frequent of tinystories-sample" in message
    assert not (tmp_path / "other" / "hmm").exists()


@pytest.mark.thorough
def test_fit_reads_known_states_and_weights_from_files(path, tmp_path, capsys):
    states, weights = TOKENS.astype(int) % 3, np.arange(60) % 3
    states[::2] = -1
    for name, table in (("states", states), ("weights", weights), ("short", weights[:9])):
        np.save(tmp_path / f"{name}.npy", table)
    command = ["fit", path, "--num_states", "3", "--max_epochs", "2", "--output_dir", str(tmp_path / "run")]
    command += ["--states", str(tmp_path / "states.npy")]
    assert main([*command, "--weights", str(tmp_path / "weights.npy")]) == 0
    settings = FitSettings(3, max_epochs=2)
    expected = fit_hmm(TOKENS, settings, states=states, weights=weights, show_progress=False)
    assert HMM.from_pretrained(tmp_path / "run" / "hmm") == expected.hmm
    command[-3] = str(tmp_path / "other")
    message = failing(capsys, *command, "--weights", str(tmp_path / "short.npy"))
    assert "short.npy: weights have shape (9,); expected (60,)" in message


@pytest.mark.thorough
def test_epochs_of_restarts_are_those_of_the_sizes_that_have_several_guesses(path, tmp_path):
    command = ["fit", path, "--num_states", "1", "2", "--restart_epochs", "1", "--max_epochs", "2"]
    assert main([*command, "--output_dir", str(tmp_path)]) == 0
    expected = fit_hmm(TOKENS, FitSettings(2, max_epochs=2, num_restarts=10, restart_epochs=1), show_progress=False)
    assert HMM.from_pretrained(tmp_path / "states-2" / "hmm") == expected.hmm
    assert HMM.from_pretrained(tmp_path / "states-1" / "hmm").num_states == 1


@pytest.mark.thorough
def test_fit_compares_numbers_of_states_and_continues(path, tmp_path, capsys):
    held_out, output = tmp_path / "test.npy", tmp_path / "run"
    np.save(held_out, TOKENS[:9])
    command = ["fit", path, "--num_states", "2", "3", "--output_dir", str(output), "--test", str(held_out)]
    command += ["--restart_epochs", "1"]
    main([*command, "--max_epochs", "2"])
    first = HMM.from_pretrained(output / "states-3" / "hmm")
    capsys.readouterr()
    assert main([*command, "--max_epochs", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for states in (2, 3):
        folder = output / f"states-{states}"
        settings = FitSettings(states, max_epochs=4, num_restarts=10, restart_epochs=1)
        expected = fit_hmm(TOKENS, settings, test_tokens=TOKENS[:9], show_progress=False)
        assert HMM.from_pretrained(folder / "hmm") == expected.hmm != first
        summary = json.loads((folder / "summary.json").read_text())
        assert (summary["parameters"], summary["bic"]) == (expected.num_parameters, expected.bic)
        assert (folder / "fit" / "epoch-2").is_dir()
    report = json.loads((output / "summary.json").read_text())
    assert [row["num_states"] for row in report["sizes"]] == [2, 3]
    assert lines[-1] == f"best: {report['best']}/hmm"
    assert (
        (output / "sizes.csv").read_text().startswith("num_states,parameters,train_loss,test_loss,test_low,test_high")
    )
    assert (output / "plots" / "sizes.png").exists()
    message = failing(capsys, *command[:3], "2", "2", "--output_dir", str(tmp_path / "other"))
    assert "num_states has a number twice: 2 2; give each once" in message


@pytest.mark.thorough
def test_fit_grows_blocks_of_states_from_a_smaller_fit(path, tmp_path, capsys):
    held_out, output = tmp_path / "test.npy", tmp_path / "run"
    np.save(held_out, TOKENS[:9])
    main(["fit", path, "--num_states", "3", "--max_epochs", "2", "--output_dir", str(tmp_path / "small")])
    small = HMM.from_pretrained(tmp_path / "small" / "hmm")
    command = ["fit", path, "--initial", str(tmp_path / "small" / "hmm"), "--block_size", "2", "4", "--rank", "5"]
    command += ["--seed", "3", "--max_epochs", "3", "--output_dir", str(output), "--test", str(held_out)]
    capsys.readouterr()
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    expected = blocks_of(small, seed=3)
    for block_size in (2, 4):
        guess = grown(expected, block_size=block_size, rank=5, seed=3)
        settings = FitSettings(guess.num_states, max_epochs=3, seed=3)
        expected = fit_hmm(TOKENS, settings, initial=guess, test_tokens=TOKENS[:9], show_progress=False).hmm
        folder = output / f"states-{guess.num_states}"
        assert load_source(folder / "hmm").fingerprint() == expected.fingerprint()
        card = (folder / "hmm" / "README.md").read_text()
        score = json.loads((folder / "summary.json").read_text())["test_log_likelihood"]
        for part in (f"{block_size}, with transitions of rank 5", "| Fitted on | ", f"test data | {score:.5f}"):
            assert part in card
        assert detect_kind(folder).kind == "fit of an HMM"
    report = json.loads((output / "summary.json").read_text())
    assert [row["num_states"] for row in report["sizes"]] == [2 * expected.num_blocks, 4 * expected.num_blocks]
    assert lines[-1] == f"best: {report['best']}/hmm"
    assert main(command) == 0, "a finished fit is read again"
    for arguments, words in (
        (command[:2] + command[4:], "block_size needs initial, a fit whose states become the blocks"),
        ([*command[:4], "--rank", "5", "--output_dir", "x"], "rank is 5, but has no effect without block_size"),
        ([*command, "--num_states", "3"], "but has no effect with block_size"),
    ):
        assert words in failing(capsys, *arguments)


@pytest.mark.thorough
def test_fit_ends_with_a_table_and_figures_of_its_epochs(path, tmp_path, capsys):
    held_out, output = tmp_path / "test.npy", tmp_path / "run"
    np.save(held_out, np.concatenate([TOKENS[:3], TOKENS[[0, 2, 0], ::-1]]))
    command = ["fit", path, "--num_states", "3", "--max_epochs", "6", "--output_dir", str(output)]
    command += ["--test", str(held_out), "--num_restarts", "2", "--restart_epochs", "2"]
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    (header,) = [line for line in lines if line.startswith("epoch ")]
    assert header.replace("  ", " ").endswith("distinct final token KL uniform unigram bigram")
    rows = [json.loads(line) for line in (output / "fit" / "history.jsonl").read_text().splitlines()]
    assert len(rows) == 2 * 2 + 4
    distinct = TOKENS[[0, 2], ::-1]
    last = HMM.from_pretrained(output / "hmm")
    summary = json.loads((output / "summary.json").read_text())
    assert summary["unique_test"]["windows"] == 2
    assert -last.log_likelihood(distinct).mean() / 20 == pytest.approx(summary["unique_test"]["cross_entropy"])
    assert (output / "epochs.csv").read_text().count("\n") == 1 + len(rows)
    for name in ("log_likelihood", "divergence"):
        assert (output / "plots" / f"{name}.png").exists()


@pytest.mark.thorough
def test_ragged_lines_are_fitted_scored_and_compared(tmp_path, capsys):
    rows = [row[: 3 + number % 9].tolist() for number, row in enumerate(TOKENS)]
    lines = [" ".join(map(str, row)) + "\n" for row in rows]
    (tmp_path / "lines.txt").write_text("".join(lines[:50]))
    (tmp_path / "test.txt").write_text("".join(lines[50:]))
    command = ["fit", str(tmp_path / "lines.txt"), "--num_states", "2", "3", "--max_epochs", "2"]
    command += ["--test", str(tmp_path / "test.txt"), "--output_dir", str(tmp_path / "run")]
    assert main(command) == 0
    hmm = HMM.from_pretrained(tmp_path / "run" / "states-3" / "hmm")
    lengths = np.array([len(row) for row in rows])
    expected = fit_hmm(
        TOKENS[:50, :11], FitSettings(3, max_epochs=2, num_restarts=10), lengths=lengths[:50], num_symbols=4,
        show_progress=False,
        test_tokens=TOKENS[50:, :11], test_lengths=lengths[50:],
    )  # fmt: skip
    assert hmm == expected.hmm
    summary = json.loads((tmp_path / "run" / "states-3" / "summary.json").read_text())
    losses = [-hmm.log_likelihood([row])[0] for row in rows[50:]]
    assert summary["test"]["cross_entropy"] == pytest.approx(sum(losses) / lengths[50:].sum(), abs=1e-12)
    assert summary["test_tokens"] == lengths[50:].sum()
    (row,) = [
        row for row in json.loads((tmp_path / "run" / "summary.json").read_text())["sizes"] if row["num_states"] == 3
    ]
    assert row["test_loss"] == pytest.approx(summary["test"]["cross_entropy"])
    assert row["test_low"] < row["test_loss"] < row["test_high"]
    labels = [" ".join(str(token % 2 if number % 2 else -1) for token in row) for number, row in enumerate(rows[:50])]
    (tmp_path / "states.txt").write_text("\n".join(labels))
    known = [command[0], command[1], "--num_states", "2", "--max_epochs", "1", "--output_dir", str(tmp_path / "known")]
    assert main([*known, "--states", str(tmp_path / "states.txt")]) == 0
    states = np.where(np.arange(50)[:, None] % 2, TOKENS[:50, :11].astype(int) % 2, -1)
    expected = fit_hmm(
        TOKENS[:50, :11], FitSettings(2, max_epochs=1), lengths=lengths[:50], states=states, show_progress=False
    )
    assert HMM.from_pretrained(tmp_path / "known" / "hmm") == expected.hmm
    (tmp_path / "states.txt").write_text("\n".join(labels[1:]))
    message = failing(capsys, *known[:-1], str(tmp_path / "x"), "--states", str(tmp_path / "states.txt"))
    assert "states.txt: its sequences have other lengths than " in message


@pytest.mark.thorough
def test_progress_says_likelihood_rate_and_time_left(path, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("hmm_datasets.runtime.progress._DELAY", 0)
    main(["fit", path, "--num_states", "3", "--max_epochs", "3", "--output_dir", str(tmp_path)])
    last = [shown for shown in capsys.readouterr().err.split("\r") if "Baum-Welch: 100%" in shown][-1]
    for part in ("epoch 3/3, -", "nats/token", " tokens/s", "00:00<00:00"):
        assert part in last


def test_fit_tells_bad_input_and_leaves_nothing(path, tmp_path, capsys):
    output = ("--output_dir", str(tmp_path / "run"))
    assert "num_states is 0; expected 1 or more" in failing(capsys, "fit", path, "--num_states", "0", *output)
    assert "no such file" in failing(capsys, "fit", path + "x", "--num_states", "3", *output)
    assert "dtype is 'x'" in failing(capsys, "fit", path, "--num_states", "3", "--dtype", "x", *output)
    told = failing(capsys, "fit", "tinystories-sample", "--num_states", "3", "--test", path, *output)
    assert "but has no effect unless corpus is a file of symbols" in told
    message = failing(capsys, "fit", path, "--num_states", "3", "--num_symbols", "3", *output)
    assert "is 3; the symbols of this HMM are 0..2" in message
    message = failing(capsys, "fit", path, "--num_states", "3", "--device", "cuda:99", *output)
    assert "device is 'cuda:99', and cannot be used" in message
    assert not (tmp_path / "run" / "hmm").exists()


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["txt", "csv", "jsonl", "npy"])
def test_sequences_of_integers_that_are_identical_count_once_with_sentences_unique(name, tmp_path, capsys):
    lines = [[0, 1, 2, 1], [1, 2, 0, 0], [0, 1, 2, 1], [2, 2, 1, 0], [1, 2, 0, 0]]
    file, once = tmp_path / f"a.{name}", [lines[0], lines[1], lines[3]]
    if name == "npy":
        np.save(file, lines)
    elif name == "jsonl":
        file.write_text("".join(f"{line}\n" for line in lines))
    else:
        np.savetxt(file, lines, fmt="%d", delimiter="," if name == "csv" else " ")
    command = ["fit", str(file), "--num_states", "2", "--max_epochs", "2", "--sentences", "unique"]
    assert main([*command, "--output_dir", str(tmp_path / "run")]) == 0
    expected = fit_hmm(once, FitSettings(2, max_epochs=2), show_progress=False)
    assert HMM.from_pretrained(tmp_path / "run" / "hmm") == expected.hmm
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["train_tokens"] == 12
    np.save(tmp_path / "weights.npy", np.ones(5))
    command += ["--weights", str(tmp_path / "weights.npy")]
    error = failing(capsys, *command, "--output_dir", str(tmp_path / "other"))
    assert "sentences is unique, but weights are given for every sequence; leave them out" in error


@pytest.mark.thorough
@pytest.mark.parametrize("form", ["lines", "lists", "column"])
def test_uneven_lines_are_fitted_scored_and_planned(form, tmp_path, capsys):
    generator = np.random.default_rng(0)
    lines = [generator.integers(0, 4, length).tolist() for length in (60_000, *generator.integers(1, 6, 3_000))]
    file, lengths = tmp_path / ("a.npy" if form == "column" else "a.jsonl" if form == "lists" else "a.txt"), []
    if form == "column":
        np.save(file, np.concatenate(lines)[:, None])
        np.save(tmp_path / "lengths.npy", list(map(len, lines)))
        lengths = ["--lengths", str(tmp_path / "lengths.npy")]
    else:
        file.write_text("".join(f"{line if form == 'lists' else ' '.join(map(str, line))}\n" for line in lines))
    output = tmp_path / "run"
    command = ["fit", str(file), *lengths, "--num_states", "2", "--max_epochs", "2", "--output_dir", str(output)]
    assert main([*command, "--test", str(file)] if form != "column" else command) == 0
    summary = json.loads((output / "summary.json").read_text())
    assert summary["train_tokens"] == sum(map(len, lines))
