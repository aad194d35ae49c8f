"""`sample` and `describe --sequences` of HMMs of words; HMMs from files of tables."""

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from hmm_datasets.cli import main
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.loading import load_source
from hmm_datasets.hmm.model import HMM

MESS3 = processes.mess3(0.15, 0.6)
WORDS = ("the", "cat", "sat", ".")


def failing(capsys, *argv: str) -> str:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    return capsys.readouterr().err.strip().splitlines()[-1]


@pytest.fixture
def folder(tmp_path) -> str:
    MESS3.save_pretrained(tmp_path / "hmm")
    return str(tmp_path / "hmm")


@pytest.fixture
def worded(tmp_path):
    """An HMM of words, and its folder."""
    hmm = HMM(**processes.random(3, 4, alpha=0.5, seed=3).tables(), vocabulary=WORDS)
    hmm.save_pretrained(tmp_path / "worded")
    return hmm, str(tmp_path / "worded")


@pytest.mark.thorough
def test_text_is_sampled_and_scored_by_the_names_of_symbols(worded, folder, tmp_path, capsys):
    hmm, words = worded
    assert main(["sample", words, "--text", "--num_sequences", "2", "--length", "9"]) == 0
    printed = capsys.readouterr().out
    assert [line.replace(".", " .").split() for line in printed.splitlines()] == [
        [WORDS[symbol] for symbol in row] for row in hmm.sample(2, 9).tolist()
    ]
    assert " ." not in printed
    (tmp_path / "story.txt").write_text("the cat sat\n. cat .\n")
    assert main(["describe", words, "--sequences", str(tmp_path / "story.txt")]) == 0
    found = capsys.readouterr()
    tokens = np.array([[0, 1, 2], [3, 1, 3]])
    assert found.out.startswith(f"{-hmm.log_likelihood(tokens).mean() / 3:.6f} nats per token")
    assert "have no names; leave it out" in failing(capsys, "sample", folder, "--text")
    assert "names of symbols are text" in failing(
        capsys, "sample", words, "--text", "--output", str(tmp_path / "t.npy")
    )
    (tmp_path / "other.txt").write_text("A dog ran.")
    for name, file in ((folder, "story"), (words, "other")):
        error = failing(capsys, "describe", name, "--sequences", str(tmp_path / f"{file}.txt"))
        assert (
            f"{file}.txt: its lines are neither numbers nor names of symbols of {name}; give lines of either" in error
        )
    assert "no.txt: no such file" in failing(capsys, "describe", words, "--sequences", str(tmp_path / "no.txt"))


TABLES = {"start": [0.6, 0.4], "transition": [[0.9, 0.1], [0.2, 0.8]], "emission": [[0.7, 0.3], [0.1, 0.9]]}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "names",
    [
        ("start", "transition", "emission"),
        ("startprob_", "transmat_", "emissionprob_"),
        ("startprob", "transmat", "emissionprob"),
    ],
)
def test_tables_in_a_file_become_a_process(tmp_path, capsys, names):
    file, output = tmp_path / "model.npz", tmp_path / "hmm"
    np.savez(file, **dict(zip(names, TABLES.values(), strict=True)))
    assert main(["describe", str(file), "--save", str(output)]) == 0
    assert capsys.readouterr().out == f"{output}: a state-emitting HMM of 2 states over 2 symbols\n"
    assert HMM.from_pretrained(output) == HMM(**TABLES)
    assert "exists; give another folder" in failing(capsys, "describe", str(file), "--save", str(output))
    assert f"hmm-datasets describe {file} --save FOLDER" in failing(capsys, "describe", str(file))


def test_a_named_process_is_saved(tmp_path, capsys):
    for name in ("process:mess3(x=0.05,a=0.85)", "rrxor", "process:permuted_symbols(mess3)"):
        output = tmp_path / name[:20]
        assert main(["describe", name, "--save", str(output)]) == 0
        assert capsys.readouterr().out.startswith(f"{output}: ")
        assert load_source(output).describe() == load_source(name).describe()
        shutil.rmtree(output)


def test_edges_in_a_file_become_a_process(tmp_path):
    hmm = processes.golden_mean()
    np.savez(tmp_path / "model.npz", **hmm.tables())
    assert main(["describe", str(tmp_path / "model.npz"), "--save", str(tmp_path / "hmm")]) == 0
    assert HMM.from_pretrained(tmp_path / "hmm") == hmm


@pytest.mark.thorough
def test_a_file_without_the_tables_of_an_hmm_is_refused(tmp_path, capsys):
    def refused(name: str, **tables) -> str:
        if tables:
            np.savez(tmp_path / name, **tables)
        return failing(capsys, "describe", str(tmp_path / name), "--save", str(tmp_path / "hmm"))

    assert "no such file" in refused("none.npz")
    (tmp_path / "text.npz").write_text("0.5 0.5")
    assert "not a complete .npz file of numbers" in refused("text.npz")
    np.save(tmp_path / "one.npy", [0.5, 0.5])
    (tmp_path / "one.npy").rename(tmp_path / "one.npz")
    assert "not a complete .npz file of numbers" in refused("one.npz")
    assert "not a complete .npz file of numbers" in refused("objects.npz", start=np.array([None]))
    assert "has the arrays start, means_; expected .npz (" in refused("gauss.npz", startprob_=[1.0], means_=[[0.0]])
    assert "model.npz: transition[0] sums to 0.5" in refused("model.npz", **TABLES | {"transition": np.eye(2) / 2})
    (tmp_path / "tables.csv").write_text("0.5,0.5")
    assert "a .csv file has one table where an HMM has three; expected .npz (" in refused("tables.csv")
    assert not (tmp_path / "hmm").exists()


class Spy:
    """An object whose pickle makes a folder when it is read."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __reduce__(self):
        return Path.mkdir, (self.folder,)


def test_a_pickle_is_not_read(tmp_path, capsys):
    file, ran = tmp_path / "model.pkl", tmp_path / "ran"
    file.write_bytes(pickle.dumps(Spy(ran)))
    command = ("describe", str(file), "--save", str(tmp_path / "hmm"))
    assert "reading a pickle runs any code that is in it" in failing(capsys, *command)
    assert not ran.exists()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ["mess3", "--num_sequences", "9", "--sequences", "x.txt"],
            "--num_sequences is 9, but has no effect with save or sequences",
        ),
        (
            ["mess3", "rrxor", "--num_sequences", "9"],
            "--num_sequences is 9, but has no effect unless",
        ),
        (["mess3", "rrxor", "--save", "x"], "--save is x, but has no effect unless hmm is one process"),
    ],
)
def test_an_option_of_another_form_of_describe_is_refused(words, line, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["describe", *words])
    assert ended.value.code == 2
    assert line in capsys.readouterr().err
