"""Writes folders of every kind with the package that it is run with, and `expected.json`, what each of them holds.

`tests/test_old_folders.py` reads what this program has written with the package of an older commit, which is kept as
`COMMIT.tar.xz` beside it; an archive stays as it is, and this file may change with the package. To write one, in an
empty folder, as root, so that the host has a name of its own, with Python of an environment for that commit:

    git worktree add ../old COMMIT
    export OMP_NUM_THREADS=1 PYTHONPATH=../old
    unshare --uts sh -c "hostname node1; exec python .../tests/old_folders/write.py"
    tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -cJf .../COMMIT.tar.xz -C outputs .
"""

import contextlib
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
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
    "factored": "factored([mess3(0.15, 0.6), golden_mean()])",
    "factored_tuples": "factored([mess3(0.15, 0.6), golden_mean(0.3)], symbols='tuple')",
    "factored_shared": "factored([mess3(0.15, 0.6), golden_mean(0.3)], symbols='shared')",
    "markov_order_0": "markov_chain([0.2, 0.3, 0.5])",
    "markov_order_1": "markov_chain([[0.9, 0.1], [0.2, 0.8]])",
    "markov_order_2": "random_markov_chain(2, 4)",
    "chain_mixture": "chain_mixture(4, 5)",
    "mixture": "mixture([golden_mean(), even(), bloch_walk()], [0.2, 0.3, 0.5])".replace(
        "bloch_walk()", "markov_chain([[[0.9, 0.1], [0.2, 0.8]], [[0.6, 0.4], [0.3, 0.7]]])"
    ),
    "mixture_of_hmms": "mixture([golden_mean(), even()])",
    "associative_recall": "associative_recall(4, 4, 2)",
    "bijection": "bijection(5)",
    "copying": "copying(4, 3)",
    "pcfg": "grammar('S -> a S b | a b')",
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
        tilted = TiltedHMM(load_source("process:mess3(0.15, 0.6)"), np.array(reward), beta=0.5, length=8)
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

    hmm = load_source("process:mess3(0.15, 0.6)")
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


SENTENCES = [
    f"{subject} {verb} {place}. Then the {other} came."
    for other in ("cat", "dog", "bird")
    for subject in ("the cat", "a dog", "one bird")
    for verb in ("sat", "ran")
    for place in ("on the mat", "to the tree", "in the sun")
]
"""A corpus."""

TOKENS = {"shard_tokens": 500, "batch_size": 5, "show_progress": False}


def write_text(folder: Path) -> dict[str, Any]:
    """Tokenizers, token streams (one of them unfinished), and words."""
    sys.path.append(str(Path(__file__).resolve().parents[2] / "recipes" / "common"))
    from character_tokenizer import character_tokenizer

    from hmm_datasets.text.stream import tokenize_corpus
    from hmm_datasets.text.tokenizers.bpe import train_bpe
    from hmm_datasets.text.tokenizers.words import build_word_corpus

    words = build_word_corpus(SENTENCES, k=12, test_fraction=0.3)
    tokenizers = {
        "bpe": train_bpe(SENTENCES, 270, show_progress=False),
        "characters": character_tokenizer(SENTENCES),
    }
    for name, tokenizer in tokenizers.items():
        tokenizer.save_pretrained(folder / "tokenizers" / name)
    for name in ("bpe", "characters"):
        for split, texts in (("train", SENTENCES[:40]), ("test", SENTENCES[40:])):
            tokenize_corpus(texts, tokenizers[name], folder / name / split, "sentences", **TOKENS)
    try:
        tokenize_corpus(broken_off(SENTENCES, 30), tokenizers["characters"], folder / "later", "sentences", **TOKENS)
    except KeyboardInterrupt:
        assert (folder / "later.unfinished").is_dir()
    words.save(folder / "words")
    return {
        "tokenizers": {name: one(SENTENCES[0])["input_ids"] for name, one in tokenizers.items()},
        "streams": {
            f"{name}/{split}": described_stream(folder / name / split)
            for name in ("bpe", "characters")
            for split in ("train", "test")
        },
        "finished": described_finished(folder.parent / "finished", tokenizers["characters"]),
        "words": described_words(folder / "words"),
    }


def broken_off(texts: list[str], after: int) -> Any:
    """The texts, until an interrupt."""
    for number, text in enumerate(texts):
        if number == after:
            raise KeyboardInterrupt
        yield text


def described_finished(folder: Path, tokenizer: Any) -> dict[str, Any]:
    """The stream of all sentences, which is not kept."""
    import shutil

    from hmm_datasets.text.stream import tokenize_corpus

    tokenize_corpus(SENTENCES, tokenizer, folder, "sentences", **TOKENS)
    found = described_stream(folder)
    shutil.rmtree(folder)
    return found


def described_stream(folder: Path) -> dict[str, Any]:
    """What a token stream holds."""
    from hmm_datasets.text.stream import TokenStream

    stream = TokenStream(folder)
    stream.verify()
    return {
        "index": stream.index.sha256,
        "num_tokens": stream.num_tokens,
        "num_documents": stream.num_documents,
        "tokens": digest(stream.read(0, stream.num_tokens)),
        "document": stream.document(3).tolist(),
    }


def described_words(folder: Path) -> dict[str, Any]:
    """What a corpus of words holds."""
    from hmm_datasets.text.tokenizers.words import WordCorpus

    words = WordCorpus.load(folder)
    return {
        "vocabulary": list(words.vocabulary),
        "train": [sentence.tolist() for sentence in words.train],
        "test": [sentence.tolist() for sentence in words.test],
    }


FITS = {
    "full_batch": {"max_epochs": 6},
    "stochastic": {"max_epochs": 6, "update_every": 2, "batch_size": 10},
    "restarts": {"max_epochs": 6, "num_restarts": 2, "restart_epochs": 2},
}
"""Settings of fits, of which half of the epochs are in the folders."""


def fitted(name: str, folder: Path, **more: Any) -> Any:
    """Fit an HMM, from the newest checkpoint in the folder if there is one."""
    from hmm_datasets import load_source
    from hmm_datasets.hmm.fitting.fit import fit_hmm
    from hmm_datasets.hmm.fitting.settings import FitSettings

    tokens = load_source("process:mess3(0.15, 0.6)").sample(60, 20, seed=1)
    chosen = {"num_states": 3, "seed": 2, "tolerance": 0, "dtype": "float64", "save_every": 3, **FITS[name], **more}
    return fit_hmm(
        tokens[:50], FitSettings(**chosen), test_tokens=tokens[50:], checkpoint_dir=folder, show_progress=False
    )


def described_fit(result: Any) -> dict[str, Any]:
    """What a fit has found."""
    return {
        "tables": {name: table.tolist() for name, table in result.hmm.tables().items()},
        "log_likelihood": [result.train_log_likelihood, result.test_log_likelihood],
        "history": [float(row["train_log_likelihood"]) for row in result.history],
    }


def write_fits(folder: Path) -> dict[str, Any]:
    """Fits that are to be continued, and what they find when they are not interrupted."""
    import shutil

    found = {}
    for name in FITS:
        fitted(name, folder / name, max_epochs=3)
        found[name] = described_fit(fitted(name, folder / "whole"))
        shutil.rmtree(folder / "whole")
    return found


COMMON = {
    "length": 12,
    "global_batch_size": 4,
    "per_device_train_batch_size": 4,
    "max_steps": 8,
    "learning_rate": 0.01,
    "logging_steps": 1,
    "num_test_sequences": 4,
    "report_to": "none",
    "bf16": False,
    "use_cpu": True,
    "disable_tqdm": True,
}
LLAMA = {"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 16}
LLAMA |= {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 64}
ON_HMM = {"hmm": "process:mess3(0.15,0.6)", "model": "llama.json", **COMMON}
ON_TEXT = {"tokens": "text/bpe", "tokenizer": "text/tokenizers/bpe", "model": "llama.json", **COMMON}
AFTER = {name: value for name, value in COMMON.items() if name != "length"} | {"model": "runs/text"}

RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "adamw": ("pretrain", ON_HMM),
    "muon": (
        "pretrain",
        {
            **ON_HMM,
            "optimizer": "muon",
            "z_loss": 0.01,
            "tie_embeddings": True,
            "lr_scheduler_type": "cosine",
            "log_indices": True,
            "save_steps": 2,
        },
    ),
    "ramp": (
        "pretrain",
        {
            **ON_HMM,
            "batch_ramp": ["2:2"],
            "per_device_train_batch_size": 2,
            "evaluations_per_doubling": 1,
        },
    ),
    "packed": ("pretrain", {**ON_TEXT, "packed": True, "length": 32}),
    "midtrain": (
        "midtrain",
        {**COMMON, "model": "runs/text", "streams": ["text/bpe", "text/bpe"], "weights": [0.25, 0.75]},
    ),
    "sft": ("sft", {**AFTER, "conversations": "conversations.jsonl", "test_fraction": 0.2}),
    "lora": (
        "sft",
        {
            **AFTER,
            "conversations": "conversations.jsonl",
            "test_fraction": 0.2,
            "use_peft": True,
            "lora_r": 2,
            "packing": True,
            "max_length": 64,
        },
    ),
}
"""Runs that are stopped after four of eight steps: command and settings."""


SHARDED = {"zero1": 4, "fsdp2": 4}
"""Launch configurations of runs on two processes, and the step of their checkpoint."""

TIDIED = {"slimmed": ["checkpoint", "slim", "runs/slimmed"]}
"""Commands that change the folder of a stopped run with the settings of `adamw`."""


def words_of(command: str, settings: dict[str, Any], folder: str) -> list[str]:
    """The words of a command line."""
    words = [command, "--output_dir", folder]
    for name, value in settings.items():
        words += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
    return words


def train(command: str, settings: dict[str, Any], folder: str, stop: int | None = None) -> None:
    """Run a command in this process; ask it to stop after `stop` steps."""
    from hmm_datasets.cli import main

    with before_step(stop, stop_this_process):
        assert main(words_of(command, settings, folder)) == 0


def stop_this_process() -> None:
    """Ask it to save and stop."""
    os.kill(os.getpid(), signal.SIGTERM)


@contextlib.contextmanager
def before_step(number: int | None, call: Callable[[], object]) -> Iterator[None]:
    """A context in which step `number` of a run in this process begins with a call."""
    import transformers

    step = transformers.Trainer.training_step

    def changed(self, *args, **kwargs):
        if self.state.global_step + 1 == number:
            call()
        return step(self, *args, **kwargs)

    transformers.Trainer.training_step = changed
    try:
        yield
    finally:
        transformers.Trainer.training_step = step


class BadRows:
    """Sequences of a process, some of which consist of other tokens, at which the loss spikes."""

    bad = range(28 * 4, 29 * 4)

    def __init__(self):
        from hmm_datasets import HMMSequences, load_source

        self.rows = HMMSequences(load_source("process:random(3, 4, alpha=0.2, seed=1)"), 12)

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> dict[str, Any]:
        import torch

        if index not in self.bad:
            return self.rows[index]
        row = torch.arange(13) % 7 + 5
        return {"input_ids": row, "labels": row.clone()}


def train_on_bad_rows(folder: str, stop: int | None = None) -> None:
    """A run that goes back to a checkpoint at a spike of its loss, and leaves out the rows around it."""
    from transformers import LlamaConfig, LlamaForCausalLM, default_data_collator, set_seed

    from hmm_datasets.errors import RolledBack
    from hmm_datasets.training.run import train_and_save
    from hmm_datasets.training.settings import PretrainSettings
    from hmm_datasets.training.trainer import Pretrainer

    given = {name: value for name, value in COMMON.items() if name not in ("length", "num_test_sequences")}
    given |= {"max_steps": 34, "learning_rate": 0.03, "save_steps": 5, "save_total_limit": 1}
    given |= {"on_spike": "rollback", "spike_margin": 1}
    while True:
        set_seed(0)
        trainer = Pretrainer(
            model=LlamaForCausalLM(LlamaConfig(**LLAMA, vocab_size=12)),
            args=PretrainSettings(folder, **given),
            train_dataset=BadRows(),
            data_collator=default_data_collator,
        )
        try:
            with before_step(stop, stop_this_process):
                train_and_save(trainer, settings={}, data={})
        except RolledBack:
            continue
        return


def losses(folder: Path) -> dict[str, float]:
    """The loss of every step of a run."""
    rows = map(json.loads, (folder / "history.jsonl").read_text().splitlines())
    return {str(row["step"]): row["loss"] for row in rows if "loss" in row}


def write_runs(folder: Path) -> dict[str, Any]:
    """Runs that are to be continued, with the losses that they have when they are not interrupted; finished ones."""
    import shutil

    conversations = [
        {"messages": [{"role": "user", "content": one[:9]}, {"role": "assistant", "content": one[9:18]}]}
        for one in SENTENCES
    ]
    (folder.parent / "conversations.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in conversations))
    (folder.parent / "llama.json").write_text(json.dumps(LLAMA))
    train("pretrain", {**ON_TEXT, "length": 64}, "runs/text")
    found = {}
    for name, (command, settings) in RUNS.items():
        train(command, settings, f"whole/{name}")
        train(command, settings, f"runs/{name}", stop=4)
        found[name] = losses(Path("whole", name))
    shutil.rmtree("whole")
    return found


def write_sharded(folder: Path) -> dict[str, Any]:
    """Checkpoints of two processes, in folders as killed runs leave them, and the losses of the whole runs."""
    import shutil
    import subprocess
    import sys

    found = {}
    for name, step in SHARDED.items():
        words = words_of("pretrain", {**ON_HMM, "per_device_train_batch_size": 2, "save_steps": step}, f"whole/{name}")
        subprocess.run([sys.executable, "-m", "hmm_datasets.cli", *words, "--launch", name], check=True)
        found[name] = losses(Path("whole", name))
        for part in (f"checkpoint-{step}", "identity.json", "run.json", "plan.json", "history.jsonl", "process"):
            whole = Path("whole", name, part)
            folder.joinpath(name).mkdir(parents=True, exist_ok=True)
            (shutil.copytree if whole.is_dir() else shutil.copy2)(whole, folder / name / part)
    shutil.rmtree("whole")
    return found


def write_tidied(folder: Path) -> dict[str, Any]:
    """Runs that went back, were made smaller or moved away; one that was started anew, after it had finished."""
    import shutil

    from hmm_datasets.cli import main

    train_on_bad_rows("whole")
    found = {"rolled_back": losses(Path("whole"))}
    shutil.rmtree("whole")
    train_on_bad_rows("runs/rolled_back", stop=31)
    for name, words in TIDIED.items():
        train("pretrain", {**ON_HMM, "save_steps": 2}, f"runs/{name}", stop=4)
        assert main(words) == 0
    train("pretrain", ON_HMM, "runs/anew")
    found["before"] = described_llama(Path("runs/anew"))
    train("pretrain", {**ON_HMM, "seed": 3, "resume": False}, "runs/anew")
    found["after"] = described_llama(Path("runs/anew"))
    return found


def described_llama(folder: Path) -> list[float]:
    """The logits of a model after a short sequence."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.no_grad():
        return AutoModelForCausalLM.from_pretrained(folder)(torch.tensor([[3, 0, 1, 2]])).logits[0, -1].tolist()


def write_finished(folder: Path) -> dict[str, Any]:
    """A finished run and its evaluation."""
    from hmm_datasets.cli import main

    train("pretrain", {**ON_HMM, "save_strategy": "no"}, "finished")
    words = [
        "evaluate",
        "finished",
        "--targets",
        "process:mess3(0.15,0.6)",
        "--tasks",
        "optimum",
        "--num_sequences",
        "8",
    ]
    assert main([*words, "--length", "12"]) == 0
    return {
        "logits": described_llama(folder),
        "summary": json.loads((folder / "summary.json").read_text()),
        "report": json.loads((folder / "evaluation" / "report.json").read_text()),
    }


def write_live(folder: Path) -> dict[str, Any]:
    """The folder of a run in its third step, with its lock, heartbeat and supervisor."""
    import shutil

    from hmm_datasets.cli import main
    from hmm_datasets.runtime.rank_heartbeats import read_heartbeats
    from hmm_datasets.runtime.supervisors import SupervisorHeartbeat

    def copy() -> None:
        time.sleep(6)  # until there is a heartbeat of this step
        shutil.copytree("whole", folder)

    with SupervisorHeartbeat("whole", silent=30.0) as supervisor, before_step(3, copy):
        supervisor.begin(lambda seconds: True, lambda: False)
        assert main(words_of("pretrain", ON_HMM, "whole")) == 0
    shutil.rmtree("whole")
    (heartbeat,) = read_heartbeats(folder)
    names = ("host", "process", "machine", "rank", "world_size", "phase", "step", "device", "beat")
    return {name: getattr(heartbeat, name, None) for name in names}


SWEEP = """
recipe: fit
output_dir: sweep
settings: {vocabulary_size: 60, length: 16, max_epochs: 2, num_states: 2}
grid: {seed: [0, 1]}
table: {values: [test_log_likelihood]}
"""


def write_sweep(folder: Path) -> dict[str, Any]:
    """A sweep with two finished cells."""
    from hmm_datasets.cli import main

    Path("sweep.yaml").write_text(SWEEP)
    assert main(["sweep", "sweep.yaml"]) == 0
    cells = sorted(path.parent for path in folder.glob("*/cell.json"))
    return {path.name: json.loads((path / "run" / "summary.json").read_text()) for path in cells}


PARTS = {
    "processes": write_processes,
    "tilted": write_tilted,
    "models": write_models,
    "text": write_text,
    "fits": write_fits,
    "runs": write_runs,
    "sharded": write_sharded,
    "tidied": write_tidied,
    "finished": write_finished,
    "live": write_live,
    "sweep": write_sweep,
}
"""What is written, by the name of its folder."""


def main() -> None:
    """Write all parts into `outputs/`, and what they hold to `outputs/expected.json`."""
    from hmm_datasets.process_state import machine_id

    OUTPUT.mkdir(exist_ok=True)
    os.chdir(OUTPUT)
    path = Path("expected.json")
    expected = json.loads(path.read_text()) if path.exists() else {}
    for name, write in PARTS.items():
        if name not in expected:  # to add a part, delete nothing
            expected[name] = write(Path(name))
            path.write_text(json.dumps(expected, indent=1) + "\n")
    for pattern in ("*.png", "*.pdf", "*.html"):
        for path in Path().rglob(pattern):
            path.unlink()
    # Every machine is another one than that of the archive, and where this one keeps its programs is not told.
    for path in [*Path().rglob(".lock"), *Path().rglob(".heartbeats/*"), Path("expected.json")]:
        path.write_bytes(path.read_bytes().replace(machine_id().encode(), b"0" * len(machine_id())))
    for path in [*Path().rglob("run.json"), *Path().rglob("log.txt")]:
        path.write_text(re.sub(r"(/[\w.-]+)+/(recipes|tests)/", r"\2/", path.read_text()))


if __name__ == "__main__":
    main()
