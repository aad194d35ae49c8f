"""Writes folders of every kind with the package that it is run with, and `expected.json`, what each of them holds.

`tests/test_old_folders.py` reads what this program has written with the package of an older commit, which is kept as
`COMMIT.tar.xz` beside it. It uses public functions and commands alone, and nothing newer than the first of these
commits. To write such an archive, in an empty folder:

    git worktree add ../old COMMIT
    PYTHONPATH=../old OMP_NUM_THREADS=1 python .../tests/old_folders/write.py
    tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -cJf .../COMMIT.tar.xz -C outputs .
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

OUTPUT = Path("outputs")

PROCESSES = {
    "hmm": "mess3(x=0.05, a=0.85)",
    "hmm_of_edges": "even(p=0.4)",
    "hmm_left_right": "left_right(3, 4)",
    "generalized": "bloch_walk()",
    "generalized_moon": "moon()",
    "factored": "factored([mess3(), golden_mean()])",
    "factored_tuples": "factored([mess3(), golden_mean(0.3)], symbols='tuple')",
    "factored_shared": "factored([mess3(), golden_mean(0.3)], symbols='shared')",
    "factored_tree": "factored([golden_mean(0.3), input_output(edges=[[[[0, 0.5], [0, 0]], [[0, 0.5], [1, 0]]], "
    "[[[1, 0], [0, 0]], [[0, 0], [0.25, 0.75]]]])], parents=(None, 0), noise=0.1)",
    "factorial": "factorial([[[0.9, 0.1], [0.2, 0.8]], [[0.7, 0.3], [0.4, 0.6]]], "
    "[[[0.9, 0.1], [0.5, 0.5]], [[0.5, 0.5], [0.1, 0.9]]])",
    "input_output": "input_output(edges=[[[[0, 1], [0, 0]], [[0, 0], [1, 0]]], [[[1, 0], [0, 0]], [[0, 0], [0, 1]]]])",
    "markov_order_0": "markov_chain([0.2, 0.3, 0.5])",
    "markov_order_1": "markov_chain([[0.9, 0.1], [0.2, 0.8]])",
    "markov_order_2": "random_markov_chain(2, 4)",
    "markov_zipf": "zipf_chain(8)",
    "chain_mixture": "chain_mixture(4, 5)",
    "mixture": "mixture([golden_mean(), even(), bloch_walk()], [0.2, 0.3, 0.5])".replace(
        "bloch_walk()", "markov_chain([[[0.9, 0.1], [0.2, 0.8]], [[0.6, 0.4], [0.3, 0.7]]])"
    ),
    "mixture_of_hmms": "mixture([golden_mean(), even()])",
    "semi_markov": "semi_markov([[0.2, 0.8], [0.5, 0.5]], [[0, 1], [1, 0]], [[0.9, 0.1], [0.1, 0.9]])",
    "associative_recall": "associative_recall(4, 4, 2)",
    "bijection": "bijection(5)",
    "copying": "copying(4, 3)",
    "pcfg": "grammar('S -> a S b | a b')",
    "pcfg_hierarchical": "hierarchical_grammar([1, 2, 3])",
    "pcfg_hierarchy": "random_hierarchy(4, 2)",
    "family_mixture": "hmm_mixture([golden_mean(), even()], [0.25, 0.75], group=2)",
    "family_permuted_emissions": "permuted_emissions(dishonest_casino())",
    "family_permuted_symbols": "permuted_symbols(mess3(x=0.1), group=4)",
    "family_automata": "random_automata(4, 6)",
    "family_chains": "random_chains(3, alpha=1.0)",
    "nested": "mixture([factored([golden_mean(), golden_mean(0.3)]), random_chains(4, alpha=1.0)])",
}
"""A process of every kind in a folder, by its name after `process:`."""


def digest(array: Any) -> str:
    """SHA-256 of an array's shape, type and values."""
    import hashlib

    array = np.ascontiguousarray(array)
    return hashlib.sha256(f"{array.shape} {array.dtype.str} ".encode() + array.tobytes()).hexdigest()


def described(process: Any) -> dict[str, Any]:
    """What a process is and computes, as far as its kind has it."""
    tokens = process.sample(3, 12, seed=5)
    found: dict[str, Any] = {
        "class": type(process).__name__,
        "repr": repr(process),
        "fingerprint": process.fingerprint(),
        "description": process.describe(),
        "num_symbols": process.num_symbols,
        "max_states": process.max_states,
        "belief_width": process.belief_width,
        "tokens": tokens.tolist(),
        "dtype": tokens.dtype.str,
        "later_tokens": process.sample(2, 5, seed=6, first=10**9, step=3).tolist(),
    }
    if process.has_states:
        found["states"] = process.sample_with_states(2, 8, seed=5)[1].tolist()
    if process.has_exact_distribution:
        found["log_likelihood"] = process.log_likelihood(tokens[:, :6]).tolist()
        found["next_token_probs"] = process.next_token_probs(tokens[:1, :4])[0].tolist()
        found["optimal_loss"] = process.optimal_loss(4, num_sequences=8).nats.tolist()
    if process.belief_width is not None:
        found["beliefs"] = np.asarray(process.beliefs(tokens[:1, :4]))[0].tolist()
    return found


def write_processes(folder: Path) -> dict[str, Any]:
    """A folder of every kind of process but the tilted HMM."""
    from hmm_datasets import HMM, load_source

    found = {}
    for name, call in PROCESSES.items():
        process = load_source(f"process:{call}")
        process.save_pretrained(folder / name)
        found[name] = described(process)
    named = HMM(**load_source("process:golden_mean(0.3)").tables(), vocabulary=("heads", "tails"))
    named.save_pretrained(folder / "hmm_with_names")
    found["hmm_with_names"] = {**described(named), "vocabulary": list(named.vocabulary)}
    for name in ("hmm", "hmm_of_edges", "markov_order_1"):
        found[name]["entropy_rate"] = float(load_source(folder / name).entropy_rate().value)
    return found


def write_tilted(folder: Path) -> dict[str, Any]:
    """Tilted HMMs, with rewards of symbols and of pairs."""
    from hmm_datasets import load_source
    from hmm_datasets.hmm.tilted import TiltedHMM

    found = {}
    rewards = {"tilted": [0.0, 0.5, 1.0], "tilted_pairs": [[0.0, 1.0, 0.0], [0.5, 0.0, 0.0], [0.0, 0.0, 1.0]]}
    for name, reward in rewards.items():
        tilted = TiltedHMM(load_source("process:mess3()"), np.array(reward), beta=0.5, length=8)
        tilted.save_pretrained(folder / name)
        found[name] = described_tilted(tilted)
    return found


def described_tilted(tilted: Any) -> dict[str, Any]:
    """What a tilted HMM is and computes."""
    tokens = tilted.sample(3, seed=5)
    return {
        "class": type(tilted).__name__,
        "fingerprint": tilted.fingerprint(),
        "tokens": tokens.tolist(),
        "log_likelihood": tilted.log_likelihood(tokens).tolist(),
        "log_partition": float(tilted.log_partition),
        "expected_reward": float(tilted.expected_reward),
        "next_token_probs": np.asarray(tilted.next_token_probs(tokens[:1, :4]))[0].tolist(),
    }


def write_models(folder: Path) -> dict[str, Any]:
    """Language models that are HMMs: folders that transformers loads with `trust_remote_code=True`."""
    from hmm_datasets import load_source
    from hmm_datasets.hmm.causal_lm import HMMForCausalLM
    from hmm_datasets.hmm.tilted import TiltedHMM
    from hmm_datasets.hmm.tilted_causal_lm import TiltedHMMForCausalLM

    hmm = load_source("process:mess3()")
    tilted = TiltedHMM(hmm, np.array([0.0, 0.5, 1.0]), beta=0.5, length=8)
    HMMForCausalLM.from_hmm(hmm, bos_token_id=3).save_pretrained(folder / "hmm")
    TiltedHMMForCausalLM.from_tilted(tilted, bos_token_id=3).save_pretrained(folder / "tilted")
    return {name: described_model(folder / name) for name in ("hmm", "tilted")}


def described_model(folder: Path) -> dict[str, Any]:
    """The class of a model as transformers loads it, and its log-probabilities of a short sequence."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    with torch.no_grad():
        logits = model(torch.tensor([[3, 0, 2, 1, 1]])).logits[0].double().log_softmax(-1)
    return {
        "class": type(model).__name__,
        "fingerprint": model.to_process().fingerprint(),
        "probabilities": logits.exp().tolist(),
    }


PARTS = {
    "processes": write_processes,
    "tilted": write_tilted,
    "models": write_models,
}
"""What is written, by the name of its folder."""


def main() -> None:
    """Write all parts into `outputs/`, and what they hold to `outputs/expected.json`."""
    expected = {name: write(OUTPUT / name) for name, write in PARTS.items()}
    (OUTPUT / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
