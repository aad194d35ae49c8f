"""Held-out words of a fit are a target: of the HMM itself, and of models that were trained on it."""

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from hmm_datasets.errors import InputError
from hmm_datasets.evaluation.evaluation import evaluate_model
from hmm_datasets.evaluation.settings import EvaluationSettings
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.model import HMM
from hmm_datasets.hmm.tokenizer import hmm_tokenizer
from hmm_datasets.text.tokenizers.words import build_word_corpus
from hmm_datasets.training.model_configs import model_config


@pytest.fixture
def words(tmp_path):
    stories = [
        f"The {animal} {word}. A {animal} {word}." for word in ("sat", "ran", "hid") for animal in ("cat", "dog")
    ]
    corpus = build_word_corpus(stories * 9, k=8, test_fraction=0.4)
    corpus.save(tmp_path / "words")
    return corpus


def evaluated(model, tmp_path):
    settings = EvaluationSettings(str(model), targets=[str(tmp_path / "words")], output_dir=str(tmp_path / "found"))
    return evaluate_model(settings)


def test_an_hmm_is_evaluated_on_the_held_out_words_of_its_fit(words, tmp_path, capsys):
    hmm = HMM(**processes.random(3, 8, alpha=0.5, seed=3).tables(), vocabulary=words.vocabulary)
    hmm.save_pretrained(tmp_path / "hmm")
    report = evaluated(tmp_path / "hmm", tmp_path)
    windows = words.as_windows("test", min(64, len(words.test.tokens)))
    # It has no beginning token, so the first word of a window is context.
    expected = (hmm.log_likelihood(windows[:, :1]) - hmm.log_likelihood(windows)).sum() / windows[:, 1:].size
    assert report["text"]["nats_per_token"] == pytest.approx(expected, abs=1e-6)
    assert "completions" not in report
    assert "bits per byte" in capsys.readouterr().out


@pytest.mark.thorough
def test_a_model_of_its_symbols_is_evaluated_on_them_too(words, tmp_path):
    torch.manual_seed(0)
    model = LlamaForCausalLM(model_config("d2", vocab_size=9, max_length=80, bos_token_id=8))
    model.save_pretrained(tmp_path / "model")
    hmm_tokenizer(words.vocabulary, 8, bos=True, prepend_bos=True).save_pretrained(tmp_path / "model")
    report = evaluated(tmp_path / "model", tmp_path)
    windows = words.as_windows("test", min(64, len(words.test.tokens))).astype(np.int64)
    rows = torch.nn.functional.pad(torch.from_numpy(windows), (1, 0), value=8)
    with torch.no_grad():
        losses = -model.eval()(rows).logits[:, :-1].log_softmax(-1).gather(-1, rows[:, 1:, None])
    assert report["text"]["nats_per_token"] == pytest.approx(losses.mean().item(), abs=1e-5)


def test_an_hmm_of_other_words_is_refused(words, tmp_path):
    HMM(**processes.random(3, 8, alpha=0.5, seed=3).tables(), vocabulary="abcdefgh").save_pretrained(tmp_path / "hmm")
    with pytest.raises(InputError, match="is not a symbol of this model; expected some of a, b, c, d, e, f, g, h"):
        evaluated(tmp_path / "hmm", tmp_path)
