"""What samplers emit: against definitions, draws, simulations and other ways to enumerate; and the program."""

import itertools
import json
import math

import numpy as np
import pytest
import torch
from experiments import load
from scipy import stats
from transformers import LlamaConfig, LlamaForCausalLM

from hmm_datasets import processes
from hmm_datasets.hmm.causal_lm import HMMForCausalLM
from hmm_datasets.hmm.process_causal_lm import ProcessForCausalLM

decoding, speculative, unmasking, models, watermarks = (
    load("samplers", name) for name in ("decoding", "speculative", "unmasking", "models", "watermarks")
)
HMM, LENGTH = processes.random(3, 5, alpha=0.5, seed=1), 3
MODEL = HMMForCausalLM.from_hmm(HMM, bos_token_id=5)
WORDS = np.array(list(itertools.product(range(5), repeat=LENGTH)))


def emitted(**settings):
    return decoding.log_probs_of_all(decoding.next_log_probs(MODEL, 5, LENGTH, **settings))


EXACT = emitted()
TWO = [processes.random(3, 3, alpha=0.5, seed=seed) for seed in (1, 2)]


def by_definition(change):
    """The distribution of all words if `change` is made to each next-symbol distribution."""
    table, found = HMM.next_token_probs(WORDS)[:, :-1], np.ones(len(WORDS))
    for row, word in enumerate(WORDS):
        for t, symbol in enumerate(word):
            probs = change(table[row, t].copy())
            found[row] *= probs[symbol] / probs.sum()
    return found


def top_p(probs, most):
    order = np.argsort(-probs)
    before = np.cumsum(probs[order]) - probs[order]
    probs[order[before >= most]] = 0
    return probs / probs.sum()


def test_without_settings_the_process_is_emitted():
    np.testing.assert_allclose(EXACT, HMM.log_likelihood(WORDS), atol=1e-5)
    found = decoding.distance(EXACT, EXACT, LENGTH)
    assert (found["divergence"], found["variation"], found["lost"]) == (0, 0, 0)
    assert found["entropy"] == found["true_entropy"] == pytest.approx(-(EXACT.exp() * EXACT).sum().item() / LENGTH)


@pytest.mark.outside(
    "https://github.com/huggingface/transformers/pull/8686",
    "temperature before the truncations, as other libraries have it, or after",
    "the exact distribution that `generate` emits says which: before",
)
@pytest.mark.outside(
    "https://github.com/ggml-org/llama.cpp/issues/4091",
    "whether temperature is applied before or after truncation",
    "both orders are written down and compared with what `generate` emits",
)
def test_settings_do_what_their_definitions_say():
    def tempered(probs, temperature):
        return probs ** (1 / temperature) / (probs ** (1 / temperature)).sum()

    cases = {
        "temperature": ({"temperature": 0.7}, lambda probs: tempered(probs, 0.7)),
        "top-k": ({"top_k": 2}, lambda probs: np.where(probs >= np.sort(probs)[-2], probs, 0)),
        "top-p": ({"top_p": 0.8}, lambda probs: top_p(probs, 0.8)),
        "min-p": ({"min_p": 0.3}, lambda probs: np.where(probs >= 0.3 * probs.max(), probs, 0)),
        "epsilon": ({"epsilon_cutoff": 0.15}, lambda probs: np.where(probs >= 0.15, probs, 0)),
        "both": ({"temperature": 0.6, "top_p": 0.8}, lambda probs: top_p(tempered(probs, 0.6), 0.8)),
    }
    for settings, change in cases.values():
        found = emitted(**settings).exp()
        np.testing.assert_allclose(found, by_definition(change), atol=2e-6)
    other_order = by_definition(lambda probs: tempered(top_p(probs, 0.8), 0.6))
    assert np.abs(found.numpy() - other_order).sum() > 0.01


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["none", "repetition penalty 1.2", "typical 0.9", "watermark, bias 2"])
def test_generate_draws_from_these_distributions(name):
    settings = decoding.SETTINGS[name]
    probs = emitted(**settings).exp().numpy()
    assert_drawn(probs, **settings)


def assert_drawn(probs, **settings):
    torch.manual_seed(0)
    rows = MODEL.generate(
        torch.full((20_000, 1), 5), do_sample=True, top_k=0, max_new_tokens=LENGTH, pad_token_id=5, **settings
    )[:, 1:]
    counts = np.bincount(rows.numpy() @ [25, 5, 1], minlength=125)
    assert (counts[probs == 0] == 0).all()
    often = 20_000 * probs > 5
    expected = [*(20_000 * probs[often]), 20_000 * probs[~often].sum()]
    observed = [*counts[often], counts[~often].sum()]
    kept = np.array(expected) > 0
    statistic = ((np.array(observed) - expected)[kept] ** 2 / np.array(expected)[kept]).sum()
    assert stats.chi2.sf(statistic, kept.sum() - 1) > 1e-3


def test_what_is_lost_and_detected():
    found = decoding.distance(EXACT, emitted(top_k=1), LENGTH)
    assert found["lost"] == pytest.approx(1 - EXACT.exp().max().item(), abs=0.2)
    assert (found["entropy"], found["variation"]) == (pytest.approx(0), pytest.approx(found["lost"]))
    green = watermarks.green_tokens(5, LENGTH, 5)
    assert green.min() >= 0
    assert green.max() <= LENGTH
    assert watermarks.detection(EXACT, EXACT, green) == pytest.approx(0.01)
    marked = emitted(**decoding.SETTINGS["watermark, bias 2"])
    assert marked.exp().numpy() @ green > EXACT.exp().numpy() @ green + 0.3
    assert watermarks.detection(EXACT, marked, green) > 0.02
    assert watermarks.best_detection(EXACT, marked) > 1.1 * watermarks.detection(EXACT, marked, green)
    assert watermarks.best_detection(EXACT, EXACT) == pytest.approx(0.01)


def test_the_smallest_difference_that_draws_would_show_is_shown_by_nine_of_ten():
    probs, count = np.array([0.7, 0.2, 0.05, 0.05]), 500
    _, most = decoding.chance_of_variation(probs, count)
    size = decoding.smallest_shown(probs, count, most)
    share = size / (0.5 * np.abs(probs - 0.25).sum())
    for scale, low, high in ((1.0, 0.8, 0.97), (0.5, 0.0, 0.6)):
        other = probs + scale * share * (0.25 - probs)
        counts = np.random.default_rng(9).multinomial(count, other, 1000)
        assert low <= (0.5 * np.abs(counts / count - probs).sum(1) > most).mean() <= high


@pytest.mark.thorough
def test_synthid_is_a_tournament_and_what_generate_draws():
    """Of four draws two win against the other, and one of these, by a layer's value; or by chance, if it is equal."""
    config = watermarks.synthid_config(2, seed=3, ngram_len=2)
    tables = decoding.next_log_probs(MODEL, 5, LENGTH)
    marked, scores = watermarks.synthid(tables, config, 5)
    processor = config.construct_processor(5, "cpu")
    values = processor.compute_g_values(torch.stack([torch.zeros(5), torch.arange(5)]).long().T)
    first, second = values[:, 0].T.numpy()
    p, won = tables[0][0].exp().numpy(), np.zeros(5)

    def winner(pair, values, by_chance):
        return pair[by_chance] if values[pair[0]] == values[pair[1]] else max(pair, key=values.item)

    for a, b, c, d in itertools.product(range(5), repeat=4):
        for sides in itertools.product((0, 1), repeat=3):
            final = winner((a, b), first, sides[0]), winner((c, d), first, sides[1])
            won[winner(final, second, sides[2])] += p[[a, b, c, d]].prod() / 8
    np.testing.assert_allclose(marked.exp().reshape(5, -1).sum(1), won, atol=1e-6)
    in_pairs = processor.compute_g_values(torch.tensor([[0, 1], [1, 2], [2, 3]])).double().mean().item()
    assert scores[WORDS.tolist().index([1, 2, 3])] == pytest.approx(3 * in_pairs)
    once = processor.compute_g_values(torch.tensor([[0, 4], [4, 4]])).double().mean().item()
    assert scores[WORDS.tolist().index([4, 4, 4])] == pytest.approx(2 * once)  # the third has the second's context
    assert_drawn(marked.exp().numpy(), watermarking_config=config)


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/vllm-project/vllm/pull/56233",
    "a context that was marked before in a text is not marked again, or texts are distorted over all keys",
    "the mean over keys of exact distributions is the process with its memory, and is not without",
)
def test_over_keys_synthid_distorts_nothing_as_long_as_it_remembers_contexts():
    words, tables = decoding.all_rows(5, 4), decoding.next_log_probs(MODEL, 5, 4)
    exact = decoding.log_probs_of_all(tables).exp().numpy()
    # Texts `abab`, where `a` is a context twice, and not the zero with which a text begins.
    repeated = (words[:, 0] == words[:, 2]) & (words[:, 1] == words[:, 3]) & (words[:, 0] != words[:, 1])
    repeated &= (words > 0).all(1)

    def over_keys(history):
        configs = [
            watermarks.synthid_config(4, seed, ngram_len=2, context_history_size=history) for seed in range(600)
        ]
        return np.array([watermarks.synthid(tables, config, 5)[0].exp().numpy() for config in configs])

    def errors(found, expected):
        return (found.mean(0) - expected) / (found.std(0) / math.sqrt(len(found)))

    found = over_keys(1024)
    assert np.abs(found - exact).sum(1).min() > 0.1
    often = exact > 2e-3
    assert np.abs(errors(found[:, often], exact[often])).max() < 4
    assert abs(errors(found[:, repeated].sum(1), exact[repeated].sum())) < 3
    assert errors(over_keys(1)[:, repeated].sum(1), exact[repeated].sum()) > 5


@pytest.mark.outside(
    "https://github.com/THU-BPM/MarkLLM/issues/35",
    "a context of no tokens is the same at every place, so that only the first token is marked",
    "later tokens have exactly the distribution of the process, and few texts are found",
)
def test_synthid_without_a_context_marks_one_token():
    tables = decoding.next_log_probs(MODEL, 5, LENGTH)
    marked, scores = watermarks.synthid(tables, watermarks.synthid_config(30, seed=0, ngram_len=1), 5)
    of_first, later = (log_p.exp().reshape(5, -1) for log_p in (marked, EXACT))
    kept = of_first.sum(1) > 1e-6
    np.testing.assert_allclose(
        (of_first / of_first.sum(1, keepdim=True))[kept], (later / later.sum(1, keepdim=True))[kept], atol=1e-5
    )
    assert len(np.unique(scores.round(9))) <= 5


def test_beams_find_the_most_likely_sequence_once_they_are_wide_enough():
    gaps = decoding.beams(4, 3, 3, 3, [1, 27])
    assert (gaps[27] < 1e-9).all()
    assert (gaps[1] >= -1e-9).all()
    hmm = processes.random(3, 3, alpha=0.3, seed=0)
    greedy = []
    for _ in range(3):
        greedy.append(int(hmm.next_token_probs([greedy])[0, -1].argmax()) if greedy else int(hmm.next_token_probs(
            np.zeros((1, 1), int))[0, 0].argmax()))  # fmt: skip
    words = list(itertools.product(range(3), repeat=3))
    log_p = hmm.log_likelihood(words)
    assert gaps[1][0] == pytest.approx(log_p.max() - log_p[words.index(tuple(greedy))], abs=1e-9)


@pytest.mark.outside(
    "https://github.com/huggingface/transformers/issues/47932",
    "drafts whose probabilities are not those that they drew from, so that the output is not the target's",
    "a trial with an exact answer: with a draft model 5.24 emits the target's distribution, with warpers too",
)
@pytest.mark.outside(
    "https://github.com/huggingface/transformers/pull/28166",
    "speculative decoding that took the wrong probabilities",
    "total variation by position, and the share of proposals that are taken, beside their exact values",
)
@pytest.mark.thorough
def test_assisted_generation_has_the_distribution_of_its_target():
    target, draft = (ProcessForCausalLM.from_process(process, bos_token_id=3) for process in TWO)
    for settings in ({}, {"top_k": 2}):
        found = speculative.assisted(target, draft, 3, 4, 300, seed=0, **settings)
        assert found.variation <= found.most_by_chance
        share = found.accepted / found.proposed
        assert abs(share - found.expected) < 4 * math.sqrt(found.expected * (1 - found.expected) / found.proposed)
    looked_up = speculative.assisted(target, None, 3, 4, 300, seed=0)
    assert looked_up.variation <= looked_up.most_by_chance
    assert looked_up.accepted > 30


@pytest.mark.thorough
def test_what_transformers_does_to_a_draft():
    """If this fails, transformers has changed; the page on samplers and the experiment's expected shares follow."""
    target, draft = (ProcessForCausalLM.from_process(process, bos_token_id=3) for process in TWO)
    found = speculative.assisted(target, draft, 3, 2, 400, seed=0, temperature=0.4)
    next_p = decoding.next_log_probs(target, 3, 2, temperature=0.4)
    twice = speculative.expected_acceptance(next_p, decoding.next_log_probs(draft, 3, 2, temperature=0.4**2))
    error = math.sqrt(twice * (1 - twice) / found.proposed)
    assert abs(found.accepted / found.proposed - twice) < 3 * error < abs(found.expected - twice)

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    target, draft = (LlamaForCausalLM(LlamaConfig(vocab_size=9, eos_token_id=None, **sizes)).eval() for _ in range(2))
    masks, prompt = [], torch.ones(1, 2, dtype=torch.long)
    draft.register_forward_pre_hook(lambda _, __, given: masks.append(given["attention_mask"]), with_kwargs=True)
    target.generate(prompt, attention_mask=prompt, assistant_model=draft, max_new_tokens=3, pad_token_id=1)
    assert masks[0].tolist() == [[0, 0]]


@pytest.mark.thorough
def test_the_share_of_proposals_that_are_taken_is_that_of_a_simulation():
    tables = [
        decoding.next_log_probs(ProcessForCausalLM.from_process(process, bos_token_id=3), 3, 4, top_p=0.8)
        for process in TWO
    ]
    assert speculative.expected_acceptance(tables[0], tables[0]) == pytest.approx(1)
    next_p, next_q = ([table.exp().numpy() for table in of] for of in tables)
    p = decoding.log_probs_of_all(tables[0]).exp().numpy()
    generator, taken, proposed, counts = np.random.default_rng(0), 0, 0, np.zeros(81)
    for _ in range(20_000):
        place, t = 0, 0
        while t < 4:
            if t == 3:
                place, t = 3 * place + generator.choice(3, p=next_p[3][place]), 4
                break
            of_p, of_q = next_p[t][place], next_q[t][place]
            symbol = generator.choice(3, p=of_q)
            proposed += 1
            if generator.random() < min(1, of_p[symbol] / of_q[symbol]):
                taken += 1
                place, t = 3 * place + symbol, t + 1
                place, t = 3 * place + generator.choice(3, p=next_p[t][place]), t + 1
            else:
                rest = np.maximum(of_p - of_q, 0)
                place, t = 3 * place + generator.choice(3, p=rest / rest.sum()), t + 1
        counts[place] += 1
    expected = speculative.expected_acceptance(*tables)
    assert abs(taken / proposed - expected) < 4 * math.sqrt(expected * (1 - expected) / proposed)
    assert (counts[p == 0] == 0).all()
    kept = 20_000 * p > 5
    statistic = ((counts - 20_000 * p)[kept] ** 2 / (20_000 * p)[kept]).sum()
    assert stats.chi2.sf(statistic, kept.sum() - 1) > 1e-3


def _process(length):
    words = list(itertools.product(range(3), repeat=length))
    return np.exp(processes.mess3(0.05, 0.85).log_likelihood(words)), words


def test_an_exact_denoiser_predicts_the_posterior():
    probs, words = _process(3)
    marginals = unmasking.exact_marginals(probs, 3, 3)
    for row, found in zip(unmasking.partly_filled(3, 3), marginals, strict=True):
        fits = np.array([all(known in (3, x) for known, x in zip(row, word, strict=True)) for word in words])
        for place in range(3):
            expected = np.zeros(3)
            if row[place] == 3:
                np.add.at(expected, np.array(words)[fits, place], probs[fits] / probs[fits].sum())
            np.testing.assert_allclose(found[place], expected, atol=1e-12)


@pytest.mark.outside(
    "https://arxiv.org/abs/2602.19619",
    "samplers of masked diffusion models that are wrong even with an exact denoiser",
    "their exact distribution: right at one token for each step in every order, wrong at more",
)
@pytest.mark.parametrize("order", unmasking.ORDERS)
def test_one_token_for_each_step_writes_the_process_and_all_at_once_independent_tokens(order):
    probs, _ = _process(5)
    marginals = unmasking.exact_marginals(probs, 3, 5)
    np.testing.assert_allclose(unmasking.written(marginals, 3, 5, 1, order), probs, atol=1e-12)
    alone = [probs.reshape(3**t, 3, -1).sum((0, 2)) for t in range(5)]
    expected = np.array([np.prod(values) for values in itertools.product(*alone)])
    np.testing.assert_allclose(unmasking.written(marginals, 3, 5, 5, order), expected, atol=1e-12)
    two = unmasking.written(marginals, 3, 5, 2, order)
    assert two.sum() == pytest.approx(1)
    assert 0.001 < np.abs(two - probs).sum() < np.abs(expected - probs).sum()


def test_random_orders_are_all_permutations_cut_into_steps():
    probs, words = _process(4)
    marginals = unmasking.exact_marginals(probs, 3, 4)
    codes = {tuple(row): n for n, row in enumerate(unmasking.partly_filled(3, 4).tolist())}
    expected = np.zeros(len(words))
    for order in itertools.permutations(range(4)):
        for place, word in enumerate(words):
            state, probability = [3, 3, 3, 3], 1.0
            for step in (order[:2], order[2:]):
                known = codes[tuple(state)]
                probability *= math.prod(marginals[known, one, word[one]] for one in step)
                for one in step:
                    state[one] = word[one]
            expected[place] += probability / 24
    np.testing.assert_allclose(unmasking.written(marginals, 3, 4, 2, "random"), expected, atol=1e-12)


@pytest.mark.thorough
def test_a_denoiser_that_is_trained_comes_near_the_exact_one(tmp_path):
    probs, _ = _process(4)
    exact = unmasking.exact_marginals(probs, 3, 4)
    model = models.denoiser(processes.mess3(0.05, 0.85), 4, 150, 0, tmp_path)
    found = models.marginals_of(model, 3, 4)
    assert found.shape == exact.shape
    assert (found[exact.sum(-1) == 0] == 0).all()
    distances = 0.5 * np.abs(found - exact).sum(-1)[exact.sum(-1) > 0]
    assert distances.mean() < 0.15


@pytest.mark.outside(
    "https://github.com/EleutherAI/lm-evaluation-harness/pull/3913",
    "calibration metrics in an evaluation harness",
    "their estimate beside the true error: an exact predictor is said to be wrong for want of data",
)
def test_calibration_errors():
    confidence, accuracy = np.array([0.15, 0.12, 0.95]), np.array([0.05, 0.22, 0.75])
    found = decoding.expected_calibration_error(confidence, accuracy, np.array([0.25, 0.25, 0.5]), 10)
    assert found == pytest.approx(0.5 * 0.0 + 0.5 * 0.2)
    assert decoding.expected_calibration_error(accuracy, accuracy, np.ones(3), 10) == 0
    generator = np.random.default_rng(0)
    said = generator.random(200)
    right = (generator.random(200) < said).astype(float)
    assert decoding.expected_calibration_error(said, right, np.ones(200), 10) > 0.02


@pytest.mark.thorough
def test_the_experiment_runs_to_its_report_and_goes_on(program, succeeded, tmp_path):
    words = ["recipes/experiments/samplers/run.py", "--config", "recipes/experiments/samplers/small.yaml"]
    words += ["--output_dir", tmp_path, "--draws", 5, "--steps", 3]
    parts = ["beams", "assisted", "unmasking"]
    said = succeeded(program.run(*words, "--parts", *parts)).stdout
    for title in ("The most likely sequence", "Assisted generation", "Filling in masks"):
        assert title in said
    report = json.loads((tmp_path / "report.json").read_text())
    assert list(report["results"]) == parts
    (rows,) = report["results"]["unmasking"]
    by_kind = {(row["denoiser"], row["order"], row["steps"]): row["divergence"] for row in rows}
    assert by_kind["exact", "random", 8] < 1e-12 < by_kind["exact", "random", 4] < by_kind["exact", "random", 1]
    assert by_kind["trained", "random", 8] > 1e-6
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "results").glob("*.json")}
    said = succeeded(program.run(*words, "--parts", "decoding", "calibration", "beams")).stdout
    assert "What decoding emits" in said
    assert "Calibration" in said
    assert {path: path.stat().st_mtime_ns for path in files} == files
    assert (tmp_path / "samplers.png").read_bytes()[:4] == b"\x89PNG"
