"""TRL's trainers are given the objective whose optimum is known."""

import pytest
import torch
from experiments import load
from transformers import LlamaConfig, LlamaForCausalLM

from hmm_datasets.hmm import processes
from hmm_datasets.hmm.tilted import TiltedHMM
from hmm_datasets.hmm.tokenizer import hmm_tokenizer

measure = load("known_optimum", "measure")

pytestmark = pytest.mark.launch
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


@pytest.mark.parametrize("reference", ["hmm", "model"])
def test_dpo_starts_from_the_log_ratios_with_its_reference(pretrained, tmp_path, reference):
    along = measure.Measurements(lambda model: {}, 1)
    losses = []

    class Losses(measure.Measurements):
        def on_log(self, args, state, control, logs=None, **kwargs):
            losses.append(logs)

    settings = {"logging_steps": 1, "warmup_steps": 0}
    callbacks = [along, Losses(lambda model: {}, 1)]
    measure.optimize_preferences(
        pretrained, OPTIMUM, output_dir=tmp_path, reference=reference, settings=settings, callbacks=callbacks, **BUDGET
    )
    assert [row["step"] for row in along.rows] == [0, 2]
    chosen = losses[0]["rewards/chosen"]
    assert chosen == pytest.approx(0, abs=1e-5) if reference == "model" else abs(chosen) > 0.01


@pytest.mark.parametrize("divergence_in", ["reward", "loss"])
def test_grpo_gets_the_reward_and_the_divergence_where_it_belongs(pretrained, tmp_path, divergence_in):
    logged = []

    class Logs(measure.Measurements):
        def on_log(self, args, state, control, logs=None, **kwargs):
            logged.append(logs)

    before = LlamaForCausalLM.from_pretrained(pretrained)
    model = measure.optimize_rewards(
        pretrained,
        OPTIMUM,
        output_dir=tmp_path,
        divergence_in=divergence_in,
        settings={"logging_steps": 1},
        callbacks=[Logs(lambda model: {}, 1)],
        **BUDGET,
    )
    assert logged[0]["completions/mean_length"] == 6
    assert ("kl" in logged[0]) == (divergence_in == "loss")
    changed = [not torch.equal(new, old) for new, old in zip(model.parameters(), before.parameters(), strict=True)]
    assert any(changed)


def test_the_divergence_in_the_reward_is_that_of_sequences(pretrained):
    model = LlamaForCausalLM.from_pretrained(pretrained)
    tokens = torch.from_numpy(OPTIMUM.hmm.sample(5, 6).astype("int64"))
    found = measure.sequence_log_probs(model, tokens)
    rows = torch.nn.functional.pad(tokens, (1, 0), value=3)
    logits = model(rows).logits[:, :-1, :3].double().log_softmax(-1)
    expected = [sum(logits[n, t, x].item() for t, x in enumerate(row)) for n, row in enumerate(tokens.tolist())]
    assert found.tolist() == pytest.approx(expected)
