"""Models on families of HMMs: the gap to the exact optimum, or to an oracle that is told the HMM of each row."""

import numpy as np
import pytest
import torch

from hmm_datasets.data.sequences import HMMSequences
from hmm_datasets.evaluation.baselines import BaselineComparison
from hmm_datasets.evaluation.optimum import measure_optimum
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.families import PermutedEmissions, PermutedSymbols, RandomChains
from hmm_datasets.report.plots import plot_positions
from hmm_datasets.report.tables import optimum_table


class Knowing(torch.nn.Module):
    """Predicts by a function of the tokens, with a beginning token first and last in the vocabulary."""

    def __init__(self, distribution, num_symbols):
        super().__init__()
        self.distribution = distribution
        self.config = type("Config", (), {"vocab_size": num_symbols + 1})

    def forward(self, input_ids, use_cache):
        logs = self.distribution(input_ids[:, 1:]).log()
        logits = torch.cat([logs, torch.full_like(logs[..., :1], -torch.inf)], dim=-1)
        return type("Output", (), {"logits": logits})


@pytest.fixture(scope="module")
def accelerator():
    from accelerate import Accelerator

    return Accelerator(cpu=True)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "family", [PermutedSymbols(processes.random(3, 4, alpha=0.2, seed=1)), RandomChains(3, alpha=0.5, group=2)]
)
def test_the_optimum_of_a_family_has_no_gap_and_the_oracle_has_a_lower_loss(family, accelerator):
    rows = HMMSequences(family, 20, seed=3, first=1 << 63, num_sequences=101)
    model = Knowing(family.next_token_probs, family.num_symbols)
    found = measure_optimum(model, family, rows, accelerator, batch_size=8)
    assert found["floor"] == "bayes"
    assert found["bayes_gap"]["bayes_gap"] == pytest.approx(0, abs=1e-6)
    assert found["kl"]["bayes"]["kl"] == pytest.approx(0, abs=1e-6)
    entropy = {name: value["cross_entropy"] for name, value in found["cross_entropy"].items()}
    assert "process_bigram" not in entropy
    assert entropy["oracle"] < entropy["bayes"] - 0.05
    # The distributions of the HMM of each row, computed one by one.
    tokens = family.sample(101, 20, seed=3, first=1 << 63)
    nats = [
        -family.hmm_at(3, (1 << 63) + row).log_likelihood(tokens[row : row + 1])[0] / 20 for row in range(len(tokens))
    ]
    assert entropy["oracle"] == pytest.approx(np.mean(nats), rel=1e-9)
    assert found["fingerprint"] == family.fingerprint()


@pytest.mark.thorough
def test_without_an_exact_distribution_the_gap_is_from_the_lower_bound(accelerator, tmp_path):
    family = PermutedEmissions(processes.random(9, 4, alpha=0.3, seed=1))
    rows = HMMSequences(family, 10, num_sequences=20)
    model = Knowing(lambda tokens: torch.full((*tokens.shape[:1], tokens.shape[1] + 1, 4), 0.25), 4)
    found = measure_optimum(model, family, rows, accelerator)
    assert found["floor"] == "oracle"
    assert "bayes" not in found["cross_entropy"]
    gap = found["cross_entropy"]["uniform"]["cross_entropy"] - found["cross_entropy"]["oracle"]["cross_entropy"]
    assert found["bayes_gap"]["bayes_gap"] == pytest.approx(gap, rel=1e-9)
    table = optimum_table(found).text()
    assert "oracle (knows each row's HMM)" in table
    assert "excess over the lower bound" in table
    plot_positions(found, tmp_path / "positions.png", title="nine states")
    assert (tmp_path / "positions.png").stat().st_size > 10_000


def test_the_curve_of_a_family_has_its_own_baselines():
    family = PermutedEmissions(processes.random(9, 4, alpha=0.3, seed=1))
    baselines = BaselineComparison(family)
    assert baselines.names == ["uniform", "unigram", "bigram"]
    assert BaselineComparison(RandomChains(3, alpha=1.0)).names[-1] == "bayes"
    labels = torch.stack([row["labels"] for row in HMMSequences(family, 6).__getitems__(range(4))])
    reduced = baselines.reduce_logits(torch.zeros(4, 7, 5), labels)
    found = baselines.summarize(type("Prediction", (), {"predictions": reduced.numpy()}))
    assert "bayes_gap" not in found
    assert found["cross_entropy"] == pytest.approx(np.log(5), rel=1e-6)
