"""Checkpoints of Megatron-DeepSpeed, written here from a GPT-2 in its layout, compared by their logits."""

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from hmm_datasets.cli import main
from hmm_datasets.errors import InputError
from hmm_datasets.operations.checkpoints.convert import convert

HEADS, WIDTH, INNER, LAYERS = 4, 16, 40, 3


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    sizes = {"n_head": HEADS, "n_embd": WIDTH, "n_inner": INNER, "n_layer": LAYERS, "n_positions": 12}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=24, **sizes)).eval()
    for weight in model.parameters():  # also biases and norms
        torch.nn.init.normal_(weight, std=0.3)
    return model


def write(folder, model, ranks):
    """Each rank has its own heads, hidden units of the MLP and words."""
    folder.mkdir()

    def save(number, weights_of):
        for rank in range(ranks):
            path = folder / f"layer_{number:02d}-model_{rank:02d}-model_states.pt"
            torch.save({name: weight.clone() for name, weight in weights_of(rank).items()}, path)

    def share(size, rank):
        return slice(rank * size // ranks, (rank + 1) * size // ranks)

    body, size = model.transformer, WIDTH // HEADS

    def embeddings(rank):
        words = body.wte.weight.data[share(24, rank)]
        return {"word_embeddings.weight": words, "position_embeddings.weight": body.wpe.weight.data}

    def block(layer, rank):
        heads, hidden = range(HEADS)[share(HEADS, rank)], share(INNER, rank)
        mixed, bias = layer.attn.c_attn.weight.data.T, layer.attn.c_attn.bias.data
        rows = [part * WIDTH + head * size + unit for head in heads for part in range(3) for unit in range(size)]
        mine = slice(heads[0] * size, (heads[-1] + 1) * size)
        return {
            "input_layernorm.weight": layer.ln_1.weight.data,
            "input_layernorm.bias": layer.ln_1.bias.data,
            "self_attention.query_key_value.weight": mixed[rows],
            "self_attention.query_key_value.bias": bias[rows],
            "self_attention.dense.weight": layer.attn.c_proj.weight.data.T[:, mine],
            "self_attention.dense.bias": layer.attn.c_proj.bias.data,
            "post_attention_layernorm.weight": layer.ln_2.weight.data,
            "post_attention_layernorm.bias": layer.ln_2.bias.data,
            "mlp.dense_h_to_4h.weight": layer.mlp.c_fc.weight.data.T[hidden],
            "mlp.dense_h_to_4h.bias": layer.mlp.c_fc.bias.data[hidden],
            "mlp.dense_4h_to_h.weight": layer.mlp.c_proj.weight.data.T[:, hidden],
            "mlp.dense_4h_to_h.bias": layer.mlp.c_proj.bias.data,
        }

    save(1, embeddings)
    for number, layer in enumerate(body.h):
        save(3 + number, lambda rank, layer=layer: block(layer, rank))
    save(LAYERS + 4, lambda rank: {"weight": body.ln_f.weight.data, "bias": body.ln_f.bias.data})


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/bigscience-workshop/xmtf/issues/11",
    "a checkpoint of Megatron-DeepSpeed as one of Hugging Face",
    "`checkpoint convert global_step9 DEST --to hf`, for GPTs with learned positions, with the same logits",
)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_checkpoint_of_megatron_deepspeed_is_a_gpt_2(ranks, model, tmp_path, capsys):
    write(tmp_path / "global_step9", model, ranks)
    (tmp_path / "global_step9" / "config.json").write_text(f'{{"n_head": {HEADS}}}')
    arguments = [str(tmp_path / "global_step9"), str(tmp_path / "hf"), "--to", "hf"]
    assert main(["checkpoint", "convert", *arguments]) == 0
    converted = AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()
    tokens = torch.arange(24).view(2, 12)
    with torch.no_grad():
        assert torch.allclose(converted(tokens).logits, model(tokens).logits, atol=1e-5)


def test_what_cannot_be_converted_is_refused_and_leaves_nothing(model, tmp_path):
    folder = tmp_path / "global_step9"
    write(folder, model, 2)
    with pytest.raises(InputError, match=r'config.json: write the number of attention heads there, as in {"n_head"'):
        convert(folder, tmp_path / "hf", "hf")
    (folder / "config.json").write_text('{"n_head": 3}')
    with pytest.raises(InputError, match="n_head is 3, which does not divide the width 16"):
        convert(folder, tmp_path / "hf", "hf")
    (folder / "config.json").write_text('{"n_head": 4}')
    with pytest.raises(InputError, match="--to zero: takes a checkpoint of a run; use --to hf"):
        convert(folder, tmp_path / "hf", "zero")
    missing = folder / "layer_04-model_01-model_states.pt"
    content = missing.read_bytes()
    missing.unlink()
    with pytest.raises(InputError, match="files of some layers are missing"):
        convert(folder, tmp_path / "hf", "hf")
    missing.write_bytes(content[:100])
    with pytest.raises(InputError, match="cannot be read as tensors"):
        convert(folder, tmp_path / "hf", "hf")
    assert not (tmp_path / "hf").exists()
