"""The padded output layer changes how logits are computed, and nothing else."""

import pytest
import torch
from safetensors.torch import load_file
from tiny_runs import LENGTH, VOCABULARY, losses, random_rows, tiny_model, trainer
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from hmm_datasets.evaluation.baselines import BaselineComparison
from hmm_datasets.hmm import processes
from hmm_datasets.text.tokenizers.bpe import train_bpe
from hmm_datasets.text.tokenizers.named_templates import set_chat_template
from hmm_datasets.training.vocabulary import PaddedOutput, add_embeddings, pad_output


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("num_items", [None, 40])
def test_loss_and_gradients_are_those_of_the_unpadded_model(tied, num_items):
    models = [tiny_model(tied=tied) for _ in range(2)]
    pad_output(models[1], 128)
    batch = {
        name: torch.stack([row[name] for row in random_rows(4, ignored=True)]) for name in ("input_ids", "labels")
    }
    losses = [model(**batch, num_items_in_batch=num_items).loss for model in models]
    for loss in losses:
        loss.backward()
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-6, atol=0)
    for (name, plain), padded in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(padded.grad, plain.grad, rtol=1e-5, atol=1e-7, msg=name)


def test_the_product_has_the_padded_size():
    """The weight in the product has 128 rows, which tensor cores can use, instead of 101."""
    from torch.utils.flop_counter import FlopCounterMode

    model = tiny_model()
    hidden = torch.randn(3, 5, 32)
    counts = []
    for multiple in (1, 128):
        pad_output(model, multiple)
        with FlopCounterMode(display=False) as counter:
            logits = model.lm_head(hidden)
        counts.append(counter.get_total_flops())
        assert logits.shape == (3, 5, VOCABULARY)
    assert counts == [2 * 15 * 32 * VOCABULARY, 2 * 15 * 32 * 128]
    assert logits.stride() == (5 * 128, 128, 1)


def test_a_bias_is_padded_too():
    layer = torch.nn.Linear(8, 11)
    hidden = torch.randn(4, 8)
    expected = layer(hidden)
    layer.__class__, layer.multiple = PaddedOutput, 16
    torch.testing.assert_close(layer(hidden), expected)


def test_a_vocabulary_that_is_a_multiple_is_left_alone():
    model = tiny_model()
    kind = type(model.lm_head)
    for multiple in (1, VOCABULARY):
        pad_output(model, multiple)
        assert type(model.lm_head) is kind


def test_other_architectures_are_padded_too():
    config = GPT2Config(vocab_size=50, n_embd=16, n_layer=1, n_head=2, n_positions=8, resid_pdrop=0, embd_pdrop=0)
    model = GPT2LMHeadModel(config).eval()
    tokens = torch.arange(8).unsqueeze(0)
    expected = model(tokens, labels=tokens)
    pad_output(model, 64)
    found = model(tokens, labels=tokens)
    assert found.logits.stride(1) == 64
    torch.testing.assert_close(found.loss, expected.loss)


@pytest.mark.thorough
@pytest.mark.parametrize("tied", [False, True])
def test_a_padded_run_has_the_curve_and_the_files_of_a_plain_one(tmp_path, tied, padded_to):
    given = {"max_steps": 8, "learning_rate": 0.01}
    padded_to(1)
    plain = trainer(tmp_path, model=tiny_model(tied=tied), **given)
    padded_to(128)
    padded = trainer(tmp_path, model=tiny_model(tied=tied), **given)
    assert type(padded.model.lm_head) is PaddedOutput
    assert losses(padded) == pytest.approx(losses(plain), abs=1e-5)
    for run, name in ((plain, "plain"), (padded, "padded")):
        run.save_model(str(tmp_path / name))
    files = [load_file(tmp_path / name / "model.safetensors") for name in ("plain", "padded")]
    assert {name: weight.shape for name, weight in files[0].items()} == {
        name: weight.shape for name, weight in files[1].items()
    }
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "padded")
    assert type(loaded.lm_head) is torch.nn.Linear
    tokens = random_rows(1)[0]["input_ids"].unsqueeze(0)
    with torch.no_grad():
        torch.testing.assert_close(loaded(tokens).logits, padded.model(tokens).logits, rtol=1e-5, atol=1e-6)


def test_a_padded_model_generates_what_a_plain_one_does():
    model = tiny_model()
    prompt = torch.tensor([[1, 2, 3]])
    ways = [{"do_sample": False}, {"do_sample": True, "top_k": 5}, {"num_beams": 3}]

    def texts():
        torch.manual_seed(0)
        return [model.generate(prompt, max_new_tokens=8, pad_token_id=0, **way).tolist() for way in ways]

    expected = texts()
    pad_output(model, 128)
    assert texts() == expected


def test_the_baseline_comparison_takes_padded_logits():
    source = processes.random(4, 10, seed=1)
    baselines = BaselineComparison(source)
    rows = torch.from_numpy(source.sample(3, LENGTH - 1).astype("int64"))
    rows = torch.cat([torch.full((3, 1), 10), rows], dim=1)
    model = tiny_model()
    with torch.no_grad():
        expected = baselines.reduce_logits(model(rows).logits, rows)
        pad_output(model, 128)
        torch.testing.assert_close(baselines.reduce_logits(model(rows).logits, rows), expected)


def test_on_a_cpu_nothing_is_padded(tmp_path):
    if torch.accelerator.is_available():
        pytest.skip("there is a GPU")
    assert type(trainer(tmp_path).model.lm_head) is torch.nn.Linear


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("spare", [0, 5])
def test_new_tokens_begin_at_the_mean_of_the_others_and_no_other_row_changes(tied, spare):
    tokenizer = train_bpe(["low lower lowest"] * 9, 266, show_progress=False)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    vocabulary = {"vocab_size": 266 + spare, "tie_word_embeddings": tied, "initializer_range": 0.2}
    model = LlamaForCausalLM(LlamaConfig(**sizes, **vocabulary))
    before = [table.weight[:266].clone() for table in (model.get_input_embeddings(), model.get_output_embeddings())]
    tokens = torch.arange(12)[None]
    expected = model(tokens).logits[..., :266]
    new = set_chat_template(tokenizer, "llama3")
    add_embeddings(model, tokenizer, new)
    assert model.config.vocab_size == max(266 + spare, 269)
    rows = tokenizer.convert_tokens_to_ids(new)
    assert rows == [266, 267, 268]
    for table, old in zip((model.get_input_embeddings(), model.get_output_embeddings()), before, strict=True):
        assert torch.equal(table.weight[:266], old)
        torch.testing.assert_close(table.weight[rows], old.mean(0).expand(3, -1), rtol=1e-5, atol=1e-7)
    logits = model(tokens).logits
    torch.testing.assert_close(logits[..., :266], expected)
    torch.testing.assert_close(logits[..., 266:269], expected.mean(-1, keepdim=True).expand(-1, -1, 3))


def test_a_template_without_new_tokens_changes_nothing():
    tokenizer = train_bpe(["low lower lowest"] * 9, 266, show_progress=False)
    model = tiny_model()
    assert set_chat_template(tokenizer, "default") == []
    add_embeddings(model, tokenizer, [])
    assert model.config.vocab_size == VOCABULARY
