"""Every kind of thing that can be pushed, made small; and what children do with its repository.

`python tests/hub/kinds.py` pushes all of them to a local Hub, loads them back with and without the package, and prints
the table.
"""

import json
import sys
import tempfile
from pathlib import Path

MAKE = """
    import json, sys
    from pathlib import Path
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from hmm_datasets import HMM, PermutedSymbols, RandomChains, build_word_corpus, train_bpe
    from hmm_datasets.files import write_json
    from hmm_datasets.text.stream import write_tokens, tokenizer_hash

    root = Path(sys.argv[1])
    texts = [f"The {a} saw a {b}. A {b} ran to the {a}." for a in ("cat", "dog", "fox") for b in ("cat", "dog", "fox")]
    hmm = HMM(start=[0.5, 0.5], transition=[[0.9, 0.1], [0.3, 0.7]], emission=[[0.6, 0.3, 0.1], [0.0, 0.2, 0.8]],
              vocabulary=("sun", "rain", "snow"))
    hmm.save_pretrained(root / "hmm")
    PermutedSymbols(hmm).save_pretrained(root / "family")

    from hmm_datasets.hub.kinds.process import write_hmm_dataset
    sizes = {"num_sequences": 50, "num_test_sequences": 10, "length": 8}
    write_hmm_dataset(hmm, root / "hmm_dataset", **sizes, show_progress=False)
    write_hmm_dataset(RandomChains(3, alpha=1.0), root / "family_dataset", **sizes, show_progress=False)

    tokenizer = train_bpe(texts, vocab_size=280)
    tokenizer.save_pretrained(root / "tokens" / "tokenizer")
    for split, documents in (("train", texts), ("test", texts[:3])):
        write_tokens([[*tokenizer(text)["input_ids"], tokenizer.eos_token_id] for text in documents],
                     root / "tokens" / "text" / split, vocab_size=len(tokenizer), eos_id=tokenizer.eos_token_id,
                     tokenizer_hash=tokenizer_hash(tokenizer), corpus="animals", shard_tokens=60)
    build_word_corpus(texts, k=9, test_fraction=0.3).save(root / "words")

    run = root / "run"
    for seed, folder in enumerate((run / "checkpoint-1", run / "checkpoint-20", run)):
        torch.manual_seed(seed)
        LlamaForCausalLM(LlamaConfig(vocab_size=4, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
                                     num_attention_heads=2, max_position_embeddings=16)).save_pretrained(folder)
    torch.save({"step": 1}, run / "checkpoint-1" / "optimizer.pt")
    write_json(run / "run.json", {"data": {}, "lineage": {"stage": "pretraining", "data": None, "before": []}})

    fit = root / "fit"
    hmm.save_pretrained(fit / "hmm")
    write_json(fit / "run.json", {"settings": {"corpus": "weather"}})
    write_json(fit / "summary.json", {"epochs": 3})
    print(json.dumps(True))
"""

KINDS = {
    "HMM": "hmm",
    "family": "family",
    "data set of an HMM": "hmm_dataset",
    "data set of a family": "family_dataset",
    "token stream": "tokens/text",
    "word corpus": "words",
    "model with checkpoints": "run",
    "fit": "fit",
}
"""What is pushed, and its path below the root."""

PUSH = """
    import json, sys
    from hmm_datasets.hub.kinds.push import PushSettings, push_path
    root, kinds = sys.argv[1], json.loads(sys.argv[2])
    found = {}
    for kind, path in kinds.items():
        said = []
        settings = PushSettings(include_checkpoints=kind.startswith("model"), license="cc0-1.0")
        repo = "tester/kinds-" + path.replace("/", "-").partition(".")[0]
        results = push_path(f"{root}/{path}", repo, settings, say=said.append)
        again = push_path(f"{root}/{path}", results[-1].repo_id, settings, say=lambda line: None)
        found[kind] = {"said": said, "commits": [result.commit for result in results], "repo": results[-1].repo_id,
                       "unchanged": [result.commit for result in again] == [result.commit for result in results]}

    from datasets import Dataset, DatasetDict
    from hmm_datasets.text.tokenizers.words import WordCorpus
    corpus = WordCorpus.load(f"{root}/words")
    splits = {name: list(getattr(corpus, name)) for name in ("train", "test", "unique")}
    DatasetDict({name: Dataset.from_dict({
        "input_ids": rows, "text": [" ".join(corpus.vocabulary[symbol] for symbol in row) for row in rows],
    }) for name, rows in splits.items()}).push_to_hub("tester/kinds-sentences")
    print(json.dumps(found))
"""

PLAIN = """
    import json, sys
    import numpy as np, torch
    from datasets import get_dataset_config_names, load_dataset
    from huggingface_hub import DatasetCard, ModelCard, hf_hub_download
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    def rows(repo, *config):
        plain, streamed = load_dataset(repo, *config), load_dataset(repo, *config, streaming=True)
        found = {name: list(split) for name, split in plain.items()}
        assert found == {name: list(split) for name, split in streamed.items()}
        return found

    def hmm(repo):
        return {name: table.tolist() for name, table in load_file(hf_hub_download(repo, "model.safetensors")).items()}

    def model(repo):
        revisions = ("step-1", "step-20", "main")
        models = [AutoModelForCausalLM.from_pretrained(repo, revision=name) for name in revisions]
        return [next(model.parameters()).flatten()[:8].tolist() for model in models]

    ways = {
        "HMM": hmm, "fit": hmm,
        "family": lambda repo: json.load(open(hf_hub_download(repo, "family.json")))["fingerprint"],
        "data set of an HMM": lambda repo: [rows(repo), rows(repo, "oracle")],
        "data set of a family": lambda repo: [rows(repo), rows(repo, "oracle")],
        "token stream": rows, "word corpus": lambda repo: rows("tester/kinds-sentences"),
        "model with checkpoints": model,
    }
    found = {}
    for kind, repo in json.loads(sys.argv[1]).items():
        card = (ModelCard if kind in ("HMM", "fit", "family", "model with checkpoints") else DatasetCard)
        found[kind] = ways[kind](repo)
        if kind not in ("fit", "model with checkpoints"):
            card.load(repo).validate(repo_type="model" if card is ModelCard else "dataset")
    assert "hmm_datasets" not in sys.modules
    print(json.dumps(found))
"""

OURS = """
    import json, sys
    from pathlib import Path
    from datasets import load_dataset
    from huggingface_hub import snapshot_download
    from transformers import AutoModelForCausalLM
    import hmm_datasets
    from hmm_datasets import HMM, TokenStream, load_source
    from hmm_datasets.text.tokenizers.words import WordCorpus

    root, repos = Path(sys.argv[1]), json.loads(sys.argv[2])

    def tables(source):
        return {name: table.tolist() for name, table in source.tables().items()}

    def sequences(repo):
        columns = {"default": None, "oracle": None}
        found = []
        for config in columns:
            names = load_dataset(repo, config, split="train").column_names
            common = {"length": 8, "num_test_sequences": 10, "columns": names, "streaming": True}
            stream = load_dataset("hmm", f"hf://datasets/{repo}", **common)
            found.append({"train": list(stream["train"].take(50)), "test": list(stream["test"])})
            by_name = load_dataset("hmm", repo, split="test", **common)
            assert list(by_name) == found[-1]["test"]
        return found

    def tokens(repo):
        there = {split: TokenStream(f"hf://datasets/{repo}/{split}") for split in ("train", "test")}
        here = {split: TokenStream(root / "tokens" / "text" / split) for split in there}
        for split, stream in there.items():
            assert stream.read(0, stream.num_tokens).tolist() == here[split].read(0, here[split].num_tokens).tolist()
            assert list(stream.problems()) == []
        assert TokenStream(f"hf://datasets/{repo}").num_tokens == here["train"].num_tokens
        loaded = load_dataset("token_shards", data_files=f"hf://datasets/{repo}/*/index.json", streaming=True)
        return {name: list(split) for name, split in loaded.items()}

    def words(repo):
        corpus, found = WordCorpus.load(snapshot_download(repo, repo_type="dataset")), {}
        for name in ("train", "test", "unique"):
            rows = [row.tolist() for row in getattr(corpus, name)]
            found[name] = [
                {"input_ids": row, "text": " ".join(corpus.vocabulary[symbol] for symbol in row)} for row in rows
            ]
        return found

    def model(repo):
        folders = [root / "run" / "checkpoint-1", root / "run" / "checkpoint-20", root / "run"]
        models = [AutoModelForCausalLM.from_pretrained(folder) for folder in folders]
        return [next(model.parameters()).flatten()[:8].tolist() for model in models]

    ways = {
        "HMM": lambda repo: tables(HMM.from_pretrained(repo)),
        "fit": lambda repo: tables(HMM.from_pretrained(repo, revision="main")),
        "family": lambda repo: load_source(repo).fingerprint(),
        "data set of an HMM": sequences,
        "data set of a family": sequences,
        "token stream": tokens, "word corpus": words, "model with checkpoints": model,
    }
    print(json.dumps({kind: ways[kind](repo) for kind, repo in repos.items()}))
"""


def outcomes(hub, root: Path) -> dict[str, dict]:
    """Make, push and load everything; for each kind what was said, and whether what came back is equal."""
    hub.child(MAKE, root / "home of the maker", root)
    pushed = hub.child(PUSH, root / "home of the pusher", root, json.dumps(KINDS))
    repos = json.dumps({kind: found["repo"] for kind, found in pushed.items()})
    plain = hub.child(PLAIN, root / "home of a stranger", repos, python=sys.executable)
    ours = hub.child(OURS, root / "home of a user", root, repos)
    return {
        kind: found | {"plain": kind in plain, "ours": kind in ours, "equal": plain[kind] == ours[kind]}
        for kind, found in pushed.items()
    }


def table(found: dict[str, dict]) -> str:
    """The outcomes as a table in Markdown."""
    rows = ["| kind | pushed | again, no commit | plain load | load with us | equal |", "|---|---|---|---|---|---|"]
    for kind, row in found.items():
        cells = ("unchanged", "plain", "ours", "equal")
        rows.append(
            f"| {kind} | {row['commits'][-1][:8]} | {' | '.join('yes' if row[cell] else 'NO' for cell in cells)} |"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    from hub_processes import LocalHub

    with tempfile.TemporaryDirectory() as folder:
        hub = LocalHub(Path(folder) / "hub")
        try:
            print(table(outcomes(hub, Path(folder))))
        finally:
            hub.stop()
