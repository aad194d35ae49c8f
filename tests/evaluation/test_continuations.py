"""Rows scored in batches, with and without a common beginning, compared with rows scored one at a time."""

import random

import pytest
import torch
from accelerate import Accelerator
from transformers import AutoConfig, AutoModelForCausalLM

from hmm_datasets.evaluation import continuations
from hmm_datasets.evaluation.continuations import Row, common_prefix, score_rows
from hmm_datasets.evaluation.model_limits import context_limit

SIZE = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
ARCHITECTURES = {
    "llama": {"num_key_value_heads": 1},
    "gpt2": {"n_positions": 40, "n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 50},
    "gpt_neox": {"max_position_embeddings": 64},
    "opt": {"ffn_dim": 32, "word_embed_proj_dim": 16, "max_position_embeddings": 64},
    "bloom": {"n_head": 2, "n_layer": 2},
    "mistral": {"sliding_window": 4, "num_key_value_heads": 1},
    "mamba": {"state_size": 4},
    "qwen2": {"num_key_value_heads": 2},
}


def groups() -> list[list[Row]]:
    """Groups of one row and of several rows, with long, short or no common beginnings."""
    generator = random.Random(0)
    found = []
    for shared, count in ((20, 4), (9, 2), (1, 3), (0, 2), (30, 1), (14, 5)):
        beginning = [generator.randrange(50) for _ in range(shared)]
        rows = [beginning + [generator.randrange(50) for _ in range(generator.randint(2, 9))] for _ in range(count)]
        found.append([Row(tokens, generator.randint(max(1, shared - 2), len(tokens) - 1)) for tokens in rows])
    question = [generator.randrange(50) for _ in range(12)]
    found.append([Row([*question, *choice], 12) for choice in ([3], [4], [4, 5, 6])])
    found.append([Row(question, 12), Row([*question, 7], 12)])  # the first choice is empty
    # So long that the padding of its short ends would be beyond the last position of a model with 40 positions.
    found.append([Row([*range(36), end, end], 36) for end in (5, 6)])
    return found


def one_at_a_time(model, rows: list[Row]) -> tuple[list[float], list[bool]]:
    nats, greedy = [], []
    for tokens, first in rows:
        with torch.no_grad():
            distributions = torch.log_softmax(model(input_ids=torch.tensor([tokens])).logits[0].double(), dim=-1)
        positions = range(first, len(tokens))
        nats.append(-sum(distributions[position - 1, tokens[position]].item() for position in positions))
        greedy.append(all(distributions[position - 1].argmax().item() == tokens[position] for position in positions))
    return nats, greedy


@pytest.fixture(scope="module")
def accelerator() -> Accelerator:
    return Accelerator(cpu=True)


def make(name: str):
    torch.manual_seed(0)
    config = AutoConfig.for_model(name, **{**({} if name == "gpt2" else SIZE), **ARCHITECTURES[name]})
    model = AutoModelForCausalLM.from_config(config).double().eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.fixture
def always_share(monkeypatch):
    monkeypatch.setattr(continuations, "_WORTH_SHARING", 1)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_sharing_a_common_beginning_does_not_change_scores(name, accelerator, monkeypatch):
    model, rows = make(name), groups()
    nats, greedy = one_at_a_time(model, [row for group in rows for row in group])
    for batch_size in (1, 4, 100):
        for least in (1, 10**9):  # tokens to share
            monkeypatch.setattr(continuations, "_WORTH_SHARING", least)
            found = score_rows(model, rows, accelerator, batch_size=batch_size)
            # Bloom's position biases and Mamba's logits, but not its scores, are float32 whatever the weights are.
            assert found.nats.tolist() == pytest.approx(nats, abs=1e-6 if name in ("bloom", "mamba") else 1e-9)
            assert found.greedy.tolist() == greedy


@pytest.mark.parametrize(
    ("choices", "passes"),
    [
        ([[5], [6], [7], [8]], [(1, 22)]),  # its last logits score all of them
        ([[5], [6, 5], [7, 7, 5], [8]], [(1, 22), (2, 2)]),
        ([[5], [6], [7]], [(3, 22)]),  # 44 tokens saved are too few
    ],
)
def test_a_common_beginning_is_run_once_where_that_saves_enough(accelerator, monkeypatch, choices, passes):
    model, rows = make("llama"), [[Row([*range(22), *choice], 22) for choice in choices]]
    seen = []
    monkeypatch.setattr(model, "forward", counted(model.forward, seen))
    found = score_rows(model, rows, accelerator, batch_size=8)
    shared = len(passes) > 1 or passes[0][0] == 1
    assert seen[4 if shared else 0 :] == passes, "after a trial, if the cache is reused"
    nats, greedy = one_at_a_time(make("llama"), rows[0])
    assert found.nats.tolist() == pytest.approx(nats, abs=1e-9)
    assert found.greedy.tolist() == greedy


def counted(forward, seen: list):
    def call(input_ids=None, attention_mask=None, position_ids=None, logits_to_keep=0, **inputs):
        seen.append(tuple(input_ids.shape))
        return forward(
            input_ids, attention_mask=attention_mask, position_ids=position_ids, logits_to_keep=logits_to_keep,
            **inputs,
        )  # fmt: skip

    return call


@pytest.mark.thorough
def test_only_plain_caches_are_reused():
    assert continuations._can_reuse_cache(make("llama"))
    assert not continuations._can_reuse_cache(make("mistral"))
    assert not continuations._can_reuse_cache(make("mamba"))
    # In float64 the mask of a padded position overflows in this model, and its cache is NaN.
    assert not continuations._can_reuse_cache(make("bloom"))


class Rank:
    """One of several ranks; the test adds up their scores."""

    device = torch.device("cpu")

    def __init__(self, index: int, count: int):
        self.process_index, self.num_processes = index, count

    def reduce(self, tensor, reduction):
        assert reduction == "sum"
        return tensor


@pytest.mark.thorough
@pytest.mark.parametrize("count", [2, 3, 7])
def test_all_ranks_together_score_every_row_once(accelerator, count, always_share):
    model, rows = make("llama"), groups()
    told = []
    alone = score_rows(model, rows, accelerator, batch_size=4, progress=told.append)
    assert sum(told) == len(rows)
    shares = [score_rows(model, rows, Rank(index, count), batch_size=4) for index in range(count)]
    assert torch.equal(sum(share.nats for share in shares), alone.nats), "bit for bit: the batches are the same"
    assert torch.equal(sum(share.greedy.int() for share in shares), alone.greedy.int())


def test_common_prefixes():
    assert common_prefix([[1, 2, 3], [1, 2], [1, 2, 4]]) == 2
    assert common_prefix([[1], [2]]) == 0
    assert common_prefix([[1, 2], [1, 2]]) == 2


def test_the_context_limit_is_read_from_the_configuration():
    assert context_limit(make("gpt2")) == 40
    assert context_limit(make("opt")) == 64
    assert context_limit(make("mamba")) is None
