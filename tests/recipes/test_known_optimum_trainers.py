"""The trainers of the recipes are given the objective whose optimum is known."""

from pathlib import Path

import numpy as np
import pytest
import torch
from experiments import load
from transformers import LlamaConfig, LlamaForCausalLM

from hmm_datasets.errors import InputError
from hmm_datasets.files import read_jsonl
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.tilted import TiltedHMM
from hmm_datasets.hmm.tokenizer import hmm_tokenizer
from hmm_datasets.training.run import train_and_save

measure = load("known_optimum", "measure")

pytestmark = pytest.mark.thorough
OPTIMUM = TiltedHMM(processes.mess3(0.05, 0.85), [0.0, 0.3, -0.3], 1.0, 6)
BUDGET = {"steps": 2, "batch_size": 8, "learning_rate": 1e-3}


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pretrained")
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=4, bos_token_id=3, eos_token_id=None, max_position_embeddings=16, **sizes)
    LlamaForCausalLM(config).save_pretrained(folder)
    hmm_tokenizer(None, 3, bos=True, prepend_bos=True).save_pretrained(folder)
    return folder


def trained(tuner):
    tuner.add_callback(measure.Measurements(lambda model: {}, 1))
    train_and_save(tuner, settings={}, data={})
    return Path(tuner.args.output_dir)


@pytest.mark.parametrize("reference", ["hmm", "model"])
def test_dpo_starts_from_the_log_ratios_with_its_reference(pretrained, tmp_path, reference):
    settings = {"logging_steps": 1, "warmup_steps": 0}
    tuner = measure.preference_tuner(
        pretrained, OPTIMUM, output_dir=tmp_path, reference=reference, settings=settings, **BUDGET
    )
    folder = trained(tuner)
    assert [row["step"] for row in read_jsonl(folder / "measurements.jsonl")] == [0, 2]
    chosen = read_jsonl(folder / "history.jsonl")[0]["rewards/chosen"]
    assert chosen == pytest.approx(0, abs=1e-5) if reference == "model" else abs(chosen) > 0.01


def test_the_reference_of_pairs_is_exactly_the_hmm(pretrained, tmp_path):
    tuner = measure.preference_tuner(pretrained, OPTIMUM, output_dir=tmp_path, **BUDGET)
    pairs = tuner.plan.train_rows()
    for name in ("chosen", "rejected"):
        tokens = np.array([pairs[index][f"{name}_ids"] for index in range(16)])
        assert tokens.shape == (16, 6)
        found = [float(pairs[index][f"ref_{name}_logps"]) for index in range(16)]
        np.testing.assert_allclose(found, OPTIMUM.hmm.log_likelihood(tokens), rtol=1e-6)


@pytest.mark.outside(
    "https://github.com/huggingface/trl/issues/4967",
    "the gradient of the divergence in GRPO",
    "the experiment on the known optimum puts the divergence of sequences into the reward, exactly against an HMM",
)
@pytest.mark.parametrize(("divergence_in", "reference"), [("reward", "hmm"), ("reward", "model"), ("loss", "model")])
def test_grpo_gets_the_reward_and_the_divergence_where_it_belongs(pretrained, tmp_path, divergence_in, reference):
    before = LlamaForCausalLM.from_pretrained(pretrained)
    tuner = measure.policy_tuner(
        pretrained,
        OPTIMUM,
        output_dir=tmp_path,
        reference=reference,
        divergence_in=divergence_in,
        settings={"logging_steps": 1},
        **BUDGET,
    )
    folder = trained(tuner)
    logged = read_jsonl(folder / "history.jsonl")[0]
    assert logged["completions/mean_length"] == 6
    assert ("kl" in logged) == (divergence_in == "loss")
    after = LlamaForCausalLM.from_pretrained(folder)
    changed = [not torch.equal(new, old) for new, old in zip(after.parameters(), before.parameters(), strict=True)]
    assert any(changed)


def test_the_divergence_from_the_hmm_in_the_loss_is_refused(pretrained, tmp_path):
    with pytest.raises(InputError, match="divergence_in is loss and reference is hmm"):
        measure.policy_tuner(pretrained, OPTIMUM, output_dir=tmp_path, divergence_in="loss", **BUDGET)


def test_the_divergence_in_the_reward_is_that_of_sequences(pretrained):
    model = LlamaForCausalLM.from_pretrained(pretrained)
    tokens = torch.from_numpy(OPTIMUM.hmm.sample(5, 6).astype("int64"))
    found = measure.sequence_log_probs(model, tokens)
    rows = torch.nn.functional.pad(tokens, (1, 0), value=3)
    logits = model(rows).logits[:, :-1, :3].double().log_softmax(-1)
    expected = [sum(logits[n, t, x].item() for t, x in enumerate(row)) for n, row in enumerate(tokens.tolist())]
    assert found.tolist() == pytest.approx(expected)
