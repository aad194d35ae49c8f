"""Evaluations on a GPU and on the CPU give the same results."""

import pytest
import torch
from accelerate import Accelerator
from transformers import LlamaConfig, LlamaForCausalLM

from hmm_datasets.data.sequences import HMMSequences
from hmm_datasets.evaluation.beliefs import probe_beliefs
from hmm_datasets.evaluation.continuations import Row, score_rows
from hmm_datasets.evaluation.optimum import measure_optimum
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.families import RandomChains

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=4, **sizes, max_position_embeddings=64)).eval()


@pytest.fixture
def both(model):
    """The result of a measure on the CPU, and on the GPU."""

    def both(measure, *arguments, **settings):
        found = []
        # A process has only one accelerator, so its device is set to that of the model.
        accelerator = Accelerator()
        for device in ("cpu", accelerator.device):
            accelerator.state.device = torch.device(device)
            found.append(measure(model.to(device), *arguments, accelerator, **settings))
        return found

    return both


@pytest.mark.parametrize(
    "source", [processes.mess3(0.15, 0.6), RandomChains(3, alpha=0.5)], ids=["an HMM", "a family"]
)
def test_the_distance_from_the_distribution(both, source):
    cpu, gpu = both(measure_optimum, source, HMMSequences(source, 20, num_sequences=33), batch_size=8)
    assert gpu["bayes_gap"]["bayes_gap"] == pytest.approx(cpu["bayes_gap"]["bayes_gap"], abs=1e-5)
    for name, found in cpu["kl"].items():
        assert gpu["kl"][name]["kl"] == pytest.approx(found["kl"], abs=1e-5)


def test_the_probe_of_beliefs(both):
    hmm = processes.mess3(0.15, 0.6)
    cpu, gpu = both(probe_beliefs, hmm, HMMSequences(hmm, 20, num_sequences=64), batch_size=8)
    for name, found in cpu["layers"].items():
        assert gpu["layers"][name]["r2"] == pytest.approx(found["r2"], abs=1e-3)


def test_a_module_without_an_accelerator_is_measured_on_its_device_and_a_function_gets_tokens_on_the_cpu(model):
    hmm = processes.mess3()
    rows = HMMSequences(hmm, 20, num_sequences=64)
    cpu = measure_optimum(model.cpu(), hmm, rows), probe_beliefs(model, hmm, rows, layers=["model.layers.0"])
    model.cuda()
    gpu = measure_optimum(model, hmm, rows), probe_beliefs(model, hmm, rows, layers=["model.layers.0"])
    moved = measure_optimum(lambda tokens: model(tokens.cuda()), hmm, rows)
    for found in (gpu[0], moved):
        assert found["bayes_gap"]["bayes_gap"] == pytest.approx(cpu[0]["bayes_gap"]["bayes_gap"], abs=1e-5)
    assert gpu[1]["layers"]["all"]["r2"] == pytest.approx(cpu[1]["layers"]["all"]["r2"], abs=1e-3)


def test_scores_of_rows_with_a_common_beginning(both):
    generator = torch.Generator().manual_seed(1)
    groups = []
    for _ in range(9):
        begun = torch.randint(4, (12,), generator=generator).tolist()
        ends = (torch.randint(4, (n,), generator=generator).tolist() for n in (3, 5))
        groups.append([Row(begun + end, len(begun)) for end in ends])
    cpu, gpu = both(score_rows, groups, batch_size=4)
    torch.testing.assert_close(gpu.nats, cpu.nats, rtol=1e-4, atol=1e-4)
