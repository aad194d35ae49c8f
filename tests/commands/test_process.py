"""`sample`, `score` and `emissions` of HMMs whose symbols are words, and of models that were trained on them."""

import os

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from hmm_datasets.cli import main
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.fitting.fit import fit_hmm
from hmm_datasets.hmm.fitting.settings import FitSettings
from hmm_datasets.hmm.model import HMM
from hmm_datasets.hmm.tokenizer import hmm_tokenizer
from hmm_datasets.text.tokenizers.words import build_word_corpus
from hmm_datasets.training.models import llama_config

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


def test_text_is_sampled_and_scored_by_the_names_of_symbols(worded, folder, tmp_path, capsys):
    hmm, words = worded
    assert main(["sample", words, "--text", "--num-sequences", "2", "--length", "9"]) == 0
    printed = capsys.readouterr().out
    assert [line.replace(".", " .").split() for line in printed.splitlines()] == [
        [WORDS[symbol] for symbol in row] for row in hmm.sample(2, 9).tolist()
    ]
    assert " ." not in printed
    (tmp_path / "story.txt").write_text("The cat sat. The dog sat. Cat. The the cat sat!")
    assert main(["score", words, str(tmp_path / "story.txt"), "--length", "3"]) == 0
    found = capsys.readouterr()
    tokens = np.array([[0, 1, 2], [3, 1, 3]])
    assert found.out.startswith(f"{-hmm.log_likelihood(tokens).mean() / 3:.6f} nats per token")
    last = hmm.log_likelihood(tokens[:, :-1]) - hmm.log_likelihood(tokens)
    assert f"\n{last.mean():.6f} nats per token, standard error" in found.out
    assert "2 of 4 sentences consist of the words of the HMM" in found.err
    assert "have no names; leave it out" in failing(capsys, "sample", folder, "--text")
    assert "ends in .txt" in failing(capsys, "sample", words, "--text", "--output", str(tmp_path / "t.npy"))
    assert "have no names; give their numbers" in failing(capsys, "score", folder, str(tmp_path / "story.txt"))
    (tmp_path / "other.txt").write_text("A dog ran.")
    assert "no sentence consists of the words" in failing(capsys, "score", words, str(tmp_path / "other.txt"))
    assert "cannot be read as text" in failing(capsys, "score", words, str(tmp_path / "no.txt"))


def test_words_of_a_fit_are_scored_as_windows(tmp_path, capsys):
    corpus = build_word_corpus([f"The cat {word}. A dog {word}." for word in ("sat", "ran", "hid")] * 9, k=7)
    corpus.save(tmp_path / "words")
    hmm = HMM(**processes.random(3, 7, alpha=0.5, seed=3).tables(), vocabulary=corpus.vocabulary)
    hmm.save_pretrained(tmp_path / "hmm")
    for split in ("train", "test", "unique_test"):
        assert main(["score", str(tmp_path / "hmm"), str(tmp_path / "words"), "--length", "8", "--split", split]) == 0
        expected = -hmm.log_likelihood(corpus.as_windows(split, 8)).mean() / 8
        assert capsys.readouterr().out.startswith(f"{expected:.6f} nats per token")
    renamed = HMM(**hmm.tables(), vocabulary="abcdefg")
    renamed.save_pretrained(tmp_path / "renamed")
    assert "has other words than" in failing(capsys, "score", str(tmp_path / "renamed"), str(tmp_path / "words"))


def test_a_model_of_symbols_is_sampled_as_text(tmp_path, capsys):
    folder = tmp_path / "model"
    torch.manual_seed(0)
    LlamaForCausalLM(llama_config("d2", vocab_size=5, max_length=16, bos_token_id=4)).save_pretrained(folder)
    hmm_tokenizer(WORDS, 4, bos=True, prepend_bos=True).save_pretrained(folder)
    capsys.readouterr()  # saving imports DeepSpeed, which may write of its device
    arguments = ["sample", str(folder), "--text", "--num-sequences", "3", "--length", "8"]
    assert main([*arguments, "--seed", "1"]) == 0
    printed = capsys.readouterr().out
    assert [len(line.replace(".", " .").split()) for line in printed.splitlines()] == [8] * 3
    assert set(printed.replace(".", " .").split()) <= set(WORDS)
    assert main([*arguments, "--seed", "1"]) == 0
    assert capsys.readouterr().out == printed
    assert main([*arguments, "--seed", "2"]) == 0
    assert capsys.readouterr().out != printed


def test_emissions_over_a_fit_are_drawn(tmp_path, capsys):
    tokens = MESS3.sample(40, 12).astype(int)
    settings = FitSettings(num_states=3, max_epochs=3, tolerance=0, save_every=1)
    fit_hmm(tokens, settings, checkpoint_dir=tmp_path / "run" / "fit", show_progress=False)
    assert main(["emissions", str(tmp_path / "run"), "--states", "0", "2"]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "run" / "plots" / "emissions.png")
    assert sorted(os.listdir(tmp_path / "run" / "plots")) == ["emissions.pdf", "emissions.png"]
    assert "--states 3: expected 0 to 2" in failing(capsys, "emissions", str(tmp_path / "run"), "--states", "3")
    assert "has no checkpoints epoch-N" in failing(capsys, "emissions", str(tmp_path))
