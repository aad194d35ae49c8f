"""The first hour of an interpretability researcher with a network of her own, who read docs/how_to/your_own_model.md.

She writes a transformer in plain PyTorch, trains it on Mess3, asks how far it is from the optimum, and probes its
residual stream for the beliefs, as Shai et al. ("Transformers represent belief state geometry in their residual
stream", 2024) did. Nothing here is imported but torch and public names.
"""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from hmm_datasets import HMMSequences, InputError, measure_optimum, probe_beliefs, processes

LENGTH = 12
MESS3 = processes.mess3(x=0.05, a=0.85)
HELD_OUT = HMMSequences(MESS3, length=LENGTH, first=2**63, num_sequences=2000)


class Attention(nn.Module):
    """Causal attention of one head, which gives its pattern too."""

    def __init__(self, width: int):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, stream):
        query, key, value = self.qkv(stream).chunk(3, dim=-1)
        scores = query @ key.transpose(-1, -2) / key.shape[-1] ** 0.5
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        pattern = scores.masked_fill(future, -torch.inf).softmax(-1)
        return self.out(pattern @ value), pattern


class Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attention = Attention(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, stream):
        stream = stream + self.attention(self.norms[0](stream))[0]
        return stream + self.mlp(self.norms[1](stream))


class Transformer(nn.Module):
    """Four tokens in (three symbols and the beginning token), logits of three symbols out."""

    def __init__(self, width: int = 32):
        super().__init__()
        self.embed, self.position = nn.Embedding(4, width), nn.Parameter(0.1 * torch.randn(LENGTH + 1, width))
        self.dropout = nn.Dropout(0.01)
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.unembed = nn.Linear(width, 3)

    def forward(self, tokens):
        return self.unembed(self.blocks(self.dropout(self.embed(tokens) + self.position)))


def trained() -> Transformer:
    """A plain loop of 600 steps over an endless data set."""
    torch.manual_seed(0)
    model, steps = Transformer(), 600
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _, batch in zip(range(steps), DataLoader(HMMSequences(MESS3, length=LENGTH), batch_size=64), strict=False):
        logits = model(batch["input_ids"])
        loss = cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model


@pytest.fixture(scope="module")
def model() -> Transformer:
    return trained()


@pytest.mark.thorough
def test_a_network_trained_in_a_plain_loop_is_within_a_hundredth_of_a_nat_of_the_optimum(model):
    torch.manual_seed(1)
    before = measure_optimum(Transformer(), MESS3, HELD_OUT)["bayes_gap"]["bayes_gap"]
    found = measure_optimum(model, MESS3, HELD_OUT)
    gap = found["bayes_gap"]
    assert before > 0.1
    assert -3 * gap["standard_error"] < gap["bayes_gap"] < 0.01
    assert found["kl"]["bayes"]["kl"] < 0.01
    assert found["kl"]["bayes"]["kl"] < found["kl"]["process_bigram"]["kl"]
    loss, optimum = gap["model"], float(MESS3.optimal_loss(LENGTH).nats.mean())
    assert loss == pytest.approx(optimum, abs=0.02), "on 24,000 symbols, whose loss has a standard error of 0.005"


@pytest.mark.thorough
def test_the_beliefs_are_in_its_residual_stream_and_not_by_chance(model):
    layers = ["embed", "blocks.0", "blocks.1", "blocks.0.attention"]
    torch.manual_seed(1)
    found = probe_beliefs(model, MESS3, HELD_OUT, layers=layers, untrained=Transformer())
    assert list(found["layers"]) == [*layers, "all"]
    last = found["layers"]["blocks.1"]
    assert last["r2"] > 0.95
    assert last["shuffled_r2"] < 0.05
    assert last["r2"] > last["untrained_r2"] + 0.02
    assert last["r2"] > found["markov"]["2"]["r2"], "it reads more than two symbols"
    assert found["layers"]["embed"]["r2"] == pytest.approx(found["markov"]["1"]["r2"], abs=0.02), "one symbol"


@pytest.mark.thorough
def test_what_she_gets_wrong_at_first_is_answered_in_one_line(model):
    with pytest.raises(InputError, match=r"has no submodule 'block\.1'.*did you mean blocks\.1\?"):
        probe_beliefs(model, MESS3, HELD_OUT, layers=["block.1"])
    with pytest.raises(InputError, match=r"Transformer returns no hidden states.*layers names submodules"):
        probe_beliefs(model, MESS3, HELD_OUT)
    with pytest.raises(InputError, match="gives probabilities, which sum to 1"):
        measure_optimum(lambda tokens: model(tokens).softmax(-1), MESS3, HELD_OUT)
    with pytest.raises(InputError, match=r"expected logits \(B, T, V\) of the next token after each token"):
        measure_optimum(lambda tokens: model(tokens)[:, -1], MESS3, HELD_OUT)
