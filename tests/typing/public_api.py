"""A program that uses every public name; `make lint` checks its types, and nothing runs it.

What is written after a colon is what a user's editor must find out: where an annotation of the package is lost, or is
wrong, the line is an error.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, assert_type

import numpy as np
import torch

from hmm_datasets import (
    HMM,
    PCFG,
    DPOSettings,
    EvaluationSettings,
    FactoredProcess,
    FineTuner,
    FitResult,
    FitSettings,
    GeneralizedHMM,
    GRPOSettings,
    HMMMixture,
    HMMSequences,
    InputError,
    InterleavedRows,
    MarkovChain,
    PackedWindows,
    PermutedEmissions,
    PermutedSymbols,
    PolicyTuner,
    PreferenceTuner,
    Pretrainer,
    PretrainSettings,
    RandomChains,
    SFTSettings,
    TiltedHMM,
    TokenStream,
    TokenWindows,
    build_word_corpus,
    evaluate_model,
    fit_hmm,
    load_corpus,
    load_metric,
    load_source,
    measure_optimum,
    probe_beliefs,
    processes,
    push_folder,
    tokenize_corpus,
    train_and_save,
    train_bpe,
)


def a_generalized_hmm() -> None:
    process = GeneralizedHMM(np.zeros((2, 3, 3)), initial=[1, 0, 0], final=[1, 0, 0])
    assert_type(processes.bloch_walk(), GeneralizedHMM)
    assert_type(processes.noisy(process, 0.1), GeneralizedHMM)
    assert_type(processes.noisy(processes.mess3(), 0.1), HMM)
    assert_type(GeneralizedHMM.from_hmm(processes.coin(0.3)).num_symbols, int)
    process.beliefs(process.sample(4, 8, seed=0, first=3))
    lower: float = process.entropy_rate_bounds().lower
    print(process.entropy_rate().value, process.optimal_loss(4).nats, lower)


def an_hmm() -> None:
    hmm = HMM(start=[0.5, 0.5], transition=np.eye(2), emission=np.eye(2))
    assert_type(processes.mess3(x=0.1, a=0.5), HMM)
    assert_type(hmm.num_states, int)
    tokens = hmm.sample(4, 8, seed=0, first=3)
    width: int = tokens.shape[1]
    hmm.log_likelihood(tokens)
    hmm.beliefs(tokens)
    hmm.next_token_probs(tokens)
    hmm.posteriors(tokens)
    states, log_probability = hmm.viterbi(tokens)
    rate = hmm.entropy_rate()
    hmm.save_pretrained("folder")
    assert_type(HMM.from_pretrained(Path("folder")), HMM)
    print(width, states, log_probability, rate, hmm.stationary().sum())


def composed(hmm: HMM) -> None:
    process = FactoredProcess([hmm, MarkovChain([[0.5, 0.5], [0.5, 0.5]]).to_hmm()], symbols="tuple")
    tokens = process.sample(4, 8, seed=0)
    assert_type(process.num_joint_states, int)
    assert_type(process.entropy_rate().value, float)
    process.joint_beliefs(tokens)
    print(process.next_token_probs(tokens), process.belief_parts(), process.factor_tokens([[0]]).shape)


def tilted(hmm: HMM) -> None:
    best = TiltedHMM(hmm, rewards=[0.0, 1.0], beta=0.5, length=8)
    assert_type(best.log_partition, float)
    assert_type(best.expected_reward, float)
    tokens = best.sample(4, seed=1, first=2)
    best.divergence(np.log(best.next_token_probs(tokens)[:, :-1]), tokens)
    value, error = best.entropy()
    best.save_pretrained("folder")
    assert_type(TiltedHMM.from_pretrained("folder"), TiltedHMM)
    print(value + error, best.reward(tokens), best.kl_to_reference)


def learning(tokens: np.ndarray) -> None:
    settings = FitSettings(num_states=3, max_epochs=2)
    result = fit_hmm(tokens, settings, num_symbols=4, checkpoint_dir=Path("folder"))
    assert_type(result, FitResult)
    assert_type(result.hmm, HMM)


def grammars() -> None:
    grammar = PCFG.from_rules({"S": ["a S", "b"]}, terminals=["a", "b"])
    assert_type(grammar, PCFG)
    assert_type(grammar.mean_sentence_length, float)
    width: int = grammar.next_token_probs(grammar.sample(2, 3)).shape[-1]
    print(width)


def families(hmm: HMM) -> None:
    mixture = HMMMixture((hmm, hmm), (0.5, 0.5), group=2)
    assert_type(PermutedEmissions(hmm).hmm_at(0, 1), HMM)
    assert_type(PermutedSymbols(hmm, group=8).fingerprint(), str)
    RandomChains(5, alpha=1.0).sample(2, 3, seed=1)
    source = load_source("folder")
    assert_type(source.fingerprint(), str)
    assert_type(mixture.num_symbols, int)


def text() -> None:
    corpus = load_corpus("tinystories-sample", split="train")
    tokenizer = train_bpe(["some text"], 512, show_progress=False)
    words = build_word_corpus(["Some text."], k=10)
    tokenize_corpus(["some text"], tokenizer, "folder", "name")
    stream = TokenStream("folder")
    windows = TokenWindows(stream, 256, seed=0)
    packed = PackedWindows(stream, 256, seed=0)
    rows = InterleavedRows([windows, packed], [0.5, 0.5], by="tokens")
    assert_type(len(rows), int)
    row: Mapping[str, torch.Tensor] = windows[0]
    print(corpus, words, row, HMMSequences(processes.even(), 8, num_sequences=10)[3])


def training(model: Any, data: Any) -> None:
    settings = PretrainSettings(output_dir="folder", train_tokens=10**6)
    trainer = Pretrainer(model=model, args=settings, train_dataset=data)
    record = train_and_save(trainer, settings={}, data={})
    assert_type(record, dict[str, Any])
    FineTuner(model=model, args=SFTSettings(output_dir="folder"), train_dataset=data)
    PreferenceTuner(model=model, args=DPOSettings(output_dir="folder"), train_dataset=data)
    PolicyTuner(model=model, reward_funcs=[len], args=GRPOSettings(output_dir="folder"), train_dataset=data)


def measuring_any_model(module: torch.nn.Module, hmm: HMM, rows: HMMSequences) -> None:
    assert_type(measure_optimum(module, hmm, rows), dict[str, Any])
    measure_optimum(lambda tokens: hmm.next_token_probs(tokens[:, 1:]).log(), hmm, rows, batch_size=8, order=3)
    measure_optimum(np.zeros((2, 3, 4)), hmm, rows)
    assert_type(probe_beliefs(module, hmm, rows, layers=["blocks.0"], untrained=module), dict[str, Any])
    probe_beliefs([torch.zeros(2, 3, 4), np.zeros((2, 3, 4))], hmm, rows, controls=False)
    probe_beliefs({"last": lambda tokens: hmm.beliefs(tokens)}, hmm, rows)


def measuring() -> None:
    assert_type(evaluate_model(EvaluationSettings(model="folder")), dict[str, Any])
    load_metric("perplexity").compute(predictions=["some text"])
    try:
        pushed = push_folder("folder", "USER/NAME")
    except InputError as error:
        print(error)
    else:
        assert_type(pushed.commit, str)
