"""`sample` of HMMs of words."""

import pytest

from hmm_datasets.cli import main
from hmm_datasets.hmm import processes
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
def test_text_is_sampled_by_the_names_of_symbols(worded, folder, tmp_path, capsys):
    hmm, words = worded
    assert main(["sample", words, "--text", "--num_sequences", "2", "--length", "9"]) == 0
    printed = capsys.readouterr().out
    assert [line.replace(".", " .").split() for line in printed.splitlines()] == [
        [WORDS[symbol] for symbol in row] for row in hmm.sample(2, 9).tolist()
    ]
    assert " ." not in printed
    assert "have no names; leave it out" in failing(capsys, "sample", folder, "--text")
    assert "names of symbols are text" in failing(
        capsys, "sample", words, "--text", "--output", str(tmp_path / "t.npy")
    )
