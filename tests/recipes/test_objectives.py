"""Where objectives should end: against closed forms, brute force and other definitions; and the trial as a program."""

import json
import math

import numpy as np
import pytest
import torch
from experiments import load
from scipy import optimize, stats

from hmm_datasets.hmm.tilted import TiltedHMM

policy, theory, trials, others = (
    load("objectives", name) for name in ("policy", "theory", "trials", "other_libraries")
)
TASK = theory.standard_task()
SMALL = {"transition": [[0.7, 0.3], [0.2, 0.8]], "emission": [[0.9, 0.1], [0.3, 0.7]], "ends": [0.2, 0.4]}
HMM = policy.ending_hmm(**SMALL, start=[0.5, 0.3, 0.2], length=4)
FEW = theory.Task(policy.next_symbol_logits(HMM, 4), (0.7, -0.4, 0.1), 0.8, 4)


def target(name, task=TASK):
    return theory.target(task, theory.OBJECTIVES[name])


def probs(logits, task=TASK):
    return task.log_probs(logits).exp()


def padded(task):
    """The sequences with more ends after the end, as the HMM emits them."""
    return np.array([[*word, *[2] * (task.length - len(word))] for word in task.words])


def test_sequences_have_the_probabilities_and_rewards_of_the_hmm():
    found = FEW.log_probs(FEW.reference)
    np.testing.assert_allclose(found, HMM.log_likelihood(padded(FEW)), atol=1e-12)
    assert found.exp().sum().item() == pytest.approx(1, abs=1e-12)
    assert len(FEW.words) == len(set(FEW.words)) == 1 + 2 + 4 + 8
    for word, reward, size in zip(FEW.words, FEW.reward.tolist(), FEW.sizes.tolist(), strict=True):
        assert (reward, size) == (pytest.approx(sum(FEW.rewards[x] for x in word)), len(word))


@pytest.mark.thorough
def test_the_tilted_distribution_is_that_of_the_core():
    # After the end come ends, which get no reward here.
    task = theory.Task(FEW.reference, (0.7, -0.4, 0.0), 0.8, 4)
    core = TiltedHMM(HMM, task.rewards, task.beta, 4)
    np.testing.assert_allclose(task.log_probs(task.tilted()), core.log_likelihood(padded(task)), atol=1e-12)
    assert task.expected_reward(task.tilted()) == pytest.approx(core.expected_reward, abs=1e-12)


@pytest.mark.thorough
@pytest.mark.parametrize("task", [TASK, FEW], ids=["task", "few"])
def test_objectives_of_the_reward_with_the_divergence_end_in_the_tilted_distribution(task):
    for name in ("dpo", "dpo robust", "dpo weighted", "reward model", "rloo", "a2po"):
        np.testing.assert_allclose(probs(target(name, task), task), probs(task.tilted(), task), atol=1e-8)


@pytest.mark.thorough
def test_closed_forms():
    """Noise contrastive alignment of pairs ends where fine-tuning on the chosen does; divergences of other kinds."""
    chosen = TASK.pairs.sum(1)
    for name in ("dpo nca", "dpo sft"):
        np.testing.assert_allclose(probs(target(name)), chosen, atol=1e-8)
    p, reward = TASK.reference_log_probs.exp().numpy(), TASK.reward.numpy()
    ratios = {  # f'(q/p) = (r + c) / beta, with the c for which q sums to one
        "dpo forward KL": (lambda value: 1 / (1 - value), -reward.max() + 1),
        "dpo alpha 0.5": (lambda value: (1 - value / 2) ** -2, -reward.max() + 2),
    }
    for name, (ratio, most) in ratios.items():
        shift = optimize.brentq(lambda c, of=ratio: (p * of(reward + c)).sum() - 1, -50, most - 1e-9)
        np.testing.assert_allclose(probs(target(name)), p * ratio(reward + shift), atol=1e-7)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "loss"),
    [
        ("dpo ipo", lambda c, r, beta: (c[1] / c[2] - r[1] / r[2] - 1 / (2 * beta)) ** 2),
        ("dpo bco", lambda c, r, beta: math.log1p(math.exp(-beta * c[1])) + math.log1p(math.exp(beta * r[1]))),
        ("dpo sppo", lambda c, r, beta: (c[1] - 0.5 / beta) ** 2 + (r[1] + 0.5 / beta) ** 2),
        ("dpo sigmoid_norm", lambda c, r, beta: math.log1p(math.exp(-beta * (c[1] / c[2] - r[1] / r[2])))),
        ("simpo", lambda c, r, beta: math.log1p(math.exp(0.5 - beta * (c[0] / c[2] - r[0] / r[2])))),
        ("cpo", lambda c, r, beta: math.log1p(math.exp(-beta * (c[0] - r[0])))),
        ("tpo-l", lambda c, r, beta: math.log1p(math.exp(0.5 - beta * (c[0] / c[2] - r[0] / r[2])))),
    ],
)
def test_targets_are_minima_over_all_distributions(name, loss):
    """Losses of pairs one by one, and a method without gradients of ours, over distributions of sequences."""
    p, pairs = FEW.reference_log_probs.exp().numpy(), FEW.pairs.numpy()
    chosen, places = pairs.sum(1), range(len(p))

    def total(free):
        q = np.exp(free - np.logaddexp.reduce(free))
        scores = [(np.log(q[s]), np.log(q[s] / p[s]), float(FEW.sizes[s])) for s in places]
        value = sum(pairs[x, y] * loss(scores[x], scores[y], FEW.beta) for x in places for y in places)
        if name in ("cpo", "tpo-l"):
            value -= (chosen * np.log(q)).sum() / (chosen * FEW.sizes.numpy()).sum()
        return value

    found = optimize.minimize(total, np.log(p), method="BFGS", options={"gtol": 1e-6})
    best = np.exp(found.x - np.logaddexp.reduce(found.x))
    np.testing.assert_allclose(probs(target(name, FEW), FEW), best, atol=2e-4)


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/huggingface/trl/issues/1931",
    "a loss that centers a reward model's rewards: the square of the sum of a pair's",
    "it makes differences between rewards smaller as well, by how much is computed",
)
def test_centered_rewards_are_smaller_rewards():
    """All rewards, also their mean, by a method without gradients of ours; the policy is the best for them."""
    pairs, p = FEW.pairs.numpy(), FEW.reference_log_probs.exp().numpy()

    def total(rewards):
        gap, sums = rewards[:, None] - rewards, rewards[:, None] + rewards
        return (pairs * (np.log1p(np.exp(-gap)) + theory.CENTERING * sums**2)).sum()

    found = optimize.minimize(total, np.zeros(len(p)), method="BFGS", options={"gtol": 1e-8}).x
    best = p * np.exp(found / FEW.beta)
    np.testing.assert_allclose(probs(target("reward model, centered", FEW), FEW), best / best.sum(), atol=1e-5)
    learned, true = found[:, None] - found, (FEW.reward[:, None] - FEW.reward).numpy()
    assert 0.5 < (learned * true).sum() / (true**2).sum() < 0.98


def test_the_gradient_of_grpo_is_that_of_the_reward_and_of_the_divergence_at_each_node():
    """The divergence at a node counts as often as the node is reached, but that no gradient flows through."""
    logits = FEW.reference + 0.3 * torch.randn(FEW.reference.shape, generator=torch.Generator().manual_seed(0))
    nodes, _, has = FEW.places
    reached = torch.zeros(len(logits)).double()
    reached.index_put_(
        (nodes[has],), FEW.log_probs(logits).exp()[:, None].expand(-1, FEW.length)[has], accumulate=True
    )
    for corrected in (True, False):

        def plain(x, corrected=corrected):
            here, there = x.log_softmax(-1), FEW.reference.log_softmax(-1)
            divergence = (here.exp() * (here - there) if corrected else there.exp() * (there - here)).sum(-1)
            return -(FEW.log_probs(x).exp() * FEW.reward).sum() + FEW.beta * (reached * divergence).sum()

        def ours(x, corrected=corrected):
            return theory._group_relative(FEW, x, logits, corrected=corrected, mean_of="sum")

        expected, found = (torch.func.grad(one)(logits) for one in (plain, ours))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.thorough
def test_objectives_that_go_on_for_ever_have_no_target():
    """Kahneman and Tversky's value of a bad sequence is best at probability zero."""
    for name in ("kto", "dpo apo_zero"):
        assert target(name) is None


def test_the_policy_scores_and_writes_every_sequence(tmp_path):
    policy.TableForCausalLM.from_logits(FEW.reference.float(), 4).save_pretrained(tmp_path)
    model = policy.TableForCausalLM.from_pretrained(tmp_path)
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == FEW.reference.numel()
    for before in ([3], [3, 3, 3]):  # with and without padding on the left
        rows = torch.tensor([[*before, *word, *[3] * (4 - len(word))] for word in FEW.words])
        log_probs = model(rows).logits.log_softmax(-1)
        for row, word, expected in zip(log_probs, FEW.words, FEW.reference_log_probs, strict=True):
            first = len(before) - 1
            found = sum(row[first + t, x] for t, x in enumerate(word))
            assert found.item() == pytest.approx(expected.item(), abs=1e-5)
    torch.manual_seed(0)
    rows = model.generate(torch.full((20_000, 1), 3), do_sample=True, max_new_tokens=4)[:, 1:].tolist()
    drawn = [tuple(row[: row.index(2) + 1]) for row in rows]
    counts = [drawn.count(word) for word in FEW.words]
    expected = 20_000 * FEW.reference_log_probs.exp().numpy()
    assert stats.chisquare(counts, expected / expected.sum() * sum(counts)).pvalue > 1e-3


@pytest.mark.thorough
def test_a_loss_of_another_library_is_on_trial_as_a_function(tmp_path):
    policy.TableForCausalLM.from_logits(TASK.reference.float(), TASK.length).save_pretrained(tmp_path)
    desk = trials.Desk(TASK, tmp_path, tmp_path, tmp_path, trials.Budget(200, 512, 0.05, 0))

    def smoothed(chosen, rejected, of_chosen, of_rejected, smoothing=0.1):
        margin = chosen - of_chosen - rejected + of_rejected
        probability = margin.sigmoid()
        return -(1 - smoothing) * probability.log() - smoothing * (1 - probability).log()

    for loss, name in ((smoothed, "dpo smoothed"), (lambda *of: smoothed(*of, smoothing=0.0), "dpo")):
        trainer = others.LossTrainer(desk, loss)
        trainer.train()
        found = trainer.model.logits_of_nodes()
        assert TASK.divergence(found, target(name)) < 1e-3
        assert (TASK.divergence(found, TASK.tilted()) < 1e-3) == (name == "dpo")


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/huggingface/trl/pull/5905",
    "GOLD compares the distribution after each token of an answer, and so never that of the first, by default",
    "the trial ends where that says, with the first distribution as it was",
)
@pytest.mark.outside(
    "https://github.com/Nicolas-BZRD/llm-recipes/issues/3",
    "sorted probabilities do not say which token has which",
    "the trial ends with the teacher's probabilities in the order of the reference; a mapped vocabulary mends it",
)
@pytest.mark.parametrize(
    "name", ["gold", "gold bayesian", "gold hybrid", "gkd", "iw-opd", "tpo", "reward model", "a2po"]
)
def test_trainers_come_near_their_targets(name, tmp_path):
    policy.TableForCausalLM.from_logits(TASK.reference.float(), TASK.length).save_pretrained(tmp_path / "reference")
    steps, rate = (40, 0.3) if name == "reward model" else (30, 0.1)  # its rewards begin far away
    budget = trials.Budget(steps, 128, rate, 0)
    desk = trials.Desk(TASK, tmp_path / "reference", tmp_path / "data", tmp_path / "trainer", budget)
    recorded = trials.trained(tmp_path / "policy.json", trials.TRIALS[name], desk)
    own = theory.target_of(TASK, name)
    found = torch.tensor(recorded["logits"]).double()
    assert TASK.divergence(found, own) < 0.1 * TASK.divergence(TASK.reference, own)
    if name == "gold":
        torch.testing.assert_close(found[0].log_softmax(-1), TASK.reference[0], rtol=0, atol=1e-6)


@pytest.mark.thorough
def test_the_gradient_is_followed_to_the_stationary_point_that_is_reached_first():
    """This loss has two (DiscoPOP, arXiv 2406.08414), and gradient descent ends beside the reference."""
    logits = FEW.reference.clone()
    for _ in range(4000):
        logits = logits - 0.5 * torch.func.grad(lambda x: theory.OBJECTIVES["dpo discopop"](FEW, x, x))(logits)
    np.testing.assert_allclose(probs(target("dpo discopop", FEW), FEW), probs(logits, FEW), atol=1e-4)


@pytest.mark.thorough
def test_the_experiment_runs_to_its_report_and_goes_on(program, succeeded, tmp_path):
    words = ["recipes/experiments/objectives/run.py", "--config", "recipes/experiments/objectives/small.yaml"]
    words += ["--output_dir", tmp_path, "--trials", "kto", "simpo", "online dpo", "top-p rollouts", "mask shifted"]
    words += ["--steps", 2, "--learning_rates", 0.01, 0.05]
    said = succeeded(program.run(*words, "--seeds", 0)).stdout
    assert "Where objectives end" in said
    report = json.loads((tmp_path / "report.json").read_text())
    by_name = {trial["name"]: trial for trial in report["trials"]}
    assert list(by_name) == ["kto", "simpo", "online dpo", "rloo", "dpo"]
    assert [fault["name"] for fault in report["faults"]] == ["top-p rollouts", "mask shifted"]
    for fault in report["faults"]:
        assert fault["clean"] == by_name[fault["trial"]]["results"] != fault["results"]
    assert by_name["kto"]["target"] is None
    assert by_name["dpo"]["target"]["from_tilted"] == pytest.approx(0, abs=1e-9)
    assert 0 < by_name["rloo"]["results"][0]["from_own"] < report["tilted"]["from_reference"] * 1.5
    assert (tmp_path / "objectives.png").read_bytes()[:4] == b"\x89PNG"
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "trials").rglob("*.json")}
    succeeded(program.run(*words, "--seeds", 0, 1))
    assert {path: path.stat().st_mtime_ns for path in files} == files
    assert len(list((tmp_path / "trials").rglob("*.json"))) > len(files)


@pytest.mark.outside(
    "https://github.com/huggingface/trl/issues/6789",
    "rollouts by nucleus sampling, whose gradient is that of the whole distribution",
    "the trial of objectives measures how far from the optimum that ends",
)
@pytest.mark.outside(
    "https://github.com/huggingface/trl/pull/3029",
    "rollouts at another temperature than the log-probabilities'",
    "the trial of objectives measures how far from the optimum that ends",
)
@pytest.mark.outside(
    "https://github.com/huggingface/trl/pull/6439",
    "rollouts that are cut off count, or are left out",
    "the trial of objectives measures how far from the optimum either ends",
)
@pytest.mark.slow
@pytest.mark.thorough
def test_faults_are_caught(program, succeeded, tmp_path):
    """A minute: a policy without a fault passes, and none with one does."""
    faults = [
        "rollouts at another temperature, divergence in the loss",
        "top-p rollouts",
        "truncated rollouts counted",
    ]
    faults += ["truncated rollouts left out"]
    words = ["recipes/experiments/objectives/run.py", "--config", "recipes/experiments/objectives/small.yaml"]
    words += ["--output_dir", tmp_path, "--trials", *faults, "--steps", 100, "--seeds", 0]
    succeeded(program.run(*words))
    report = json.loads((tmp_path / "report.json").read_text())
    assert [fault["name"] for fault in report["faults"]] == faults
    for fault in report["faults"]:
        ((clean,), (faulty,)) = fault["clean"], fault["results"]
        assert clean["from_own"] < 1e-3 < 0.005 < faulty["from_own"]


@pytest.mark.parametrize(
    ("clean", "found", "verdict"),
    [
        (0.0002, 0.01, "caught"),
        (0.0002, 0.0003, "not caught"),
        (0.02, 0.09, "no verdict"),
        (0.02, 0.0003, "no verdict"),
    ],
)
def test_a_fault_has_a_verdict_only_where_the_trial_without_it_passes(clean, found, verdict):
    fault = {"name": "mask shifted", "trial": "dpo", "thread": ""}
    fault |= {"clean": [{"from_own": clean}] * 2, "results": [{"from_own": found}] * 2}
    assert load("objectives", "plot").faults_table([fault]).rows[0][4] == verdict
