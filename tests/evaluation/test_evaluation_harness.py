"""The command of the guide that puts questions to a chat model by lm-evaluation-harness, with tiny data sets."""

import json

import pytest
from hub_processes import LocalHub
from local_hub.repositories import Repositories
from tiny_chat import save_tiny_chat

HARNESS = """
    import json, os, sys
    from pathlib import Path
    from lm_eval.__main__ import cli_evaluate
    sys.argv = ["lm_eval", "run", *json.loads(sys.argv[1])]
    cli_evaluate()
    folder = Path("results")
    (path,) = folder.rglob("results*.json")
    found = json.loads(path.read_text())
    prompts = {}
    for path in folder.rglob("samples*.jsonl"):
        task = path.name.removeprefix("samples_").rpartition("_")[0]
        rows = map(json.loads, path.read_text().splitlines())
        prompts[task] = [row["arguments"]["gen_args_0"]["arg_0"] for row in rows]
    print(json.dumps({"results": found["results"], "prompts": prompts}))
"""


def create(hub: Repositories, name: str, rows: dict[str, dict[str, list[dict]]]) -> None:
    """Create a data set whose configurations have splits of JSON Lines."""
    header, files = ["---", "configs:"], {}
    for config, splits in rows.items():
        header += [f"- config_name: {config}", "  data_files:"]
        for split, listed in splits.items():
            header += [f"  - split: {split}", f"    path: {config}/{split}.jsonl"]
            files[f"{config}/{split}.jsonl"] = "".join(json.dumps(row) + "\n" for row in listed).encode()
    hub.create("datasets", name, False, files | {"README.md": "\n".join([*header, "---", ""]).encode()})


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/EleutherAI/lm-evaluation-harness/issues/2310",
    "the chat template of a tokenizer in a folder used by the harness",
    "a folder of this package has the template where the harness reads it; its tasks run by their own names",
)
@pytest.mark.outside(
    "https://github.com/EleutherAI/lm-evaluation-harness/issues/1841",
    "know whether questions reached the model in its chat template",
    "each prompt is the template with one turn of the user, once",
)
def test_the_harness_asks_a_chat_model_of_ours_in_its_template(tmp_path, warm_python, monkeypatch):
    choices = {"text": ["one", "two", "three"], "label": ["A", "B", "C"]}
    arc = [{"id": f"{n}", "question": f"What is {n}?", "choices": choices, "answerKey": "ABC"[n]} for n in range(3)]
    mmlu = [{"question": f"The {n}?", "subject": "anatomy", "choices": list("wxyz"), "answer": n} for n in range(4)]
    gsm8k = [{"question": f"How many has {n}?", "answer": f"So.\n#### {n}"} for n in range(3)]
    repositories, splits = Repositories(tmp_path / "hub"), ("train", "validation", "test")
    configs = ("ARC-Easy", "ARC-Challenge")
    create(repositories, "allenai/ai2_arc", {name: dict.fromkeys(splits, arc) for name in configs})
    create(repositories, "cais/mmlu", {"anatomy": {"dev": mmlu, "test": mmlu}})
    create(repositories, "openai/gsm8k", {"main": {"train": gsm8k, "test": gsm8k}})
    tokenizer = save_tiny_chat(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    flags = "--model hf --model_args pretrained=model --apply_chat_template --num_fewshot 0 --batch_size 8"
    flags += " --tasks arc_easy arc_challenge mmlu_anatomy gsm8k --device cpu --output_path results --log_samples"
    hub = LocalHub(tmp_path / "hub", python=warm_python)
    try:
        words = [*flags.split(), "--gen_kwargs", "max_gen_toks=8"]
        found = hub.child(HARNESS, tmp_path / "home", json.dumps(words))
    finally:
        hub.stop()
    metrics = {"arc_easy": "acc,none", "arc_challenge": "acc,none", "mmlu_anatomy": "acc,none"}
    metrics |= {"gsm8k": "exact_match,flexible-extract"}
    assert all(0 <= found["results"][task][metric] <= 1 for task, metric in metrics.items())
    asked = [{"role": "user", "content": "Question: What is 0?\nAnswer:"}]
    prompt = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
    assert found["prompts"]["arc_easy"][0] == prompt
    assert all(text.count("<|user|>") == 1 for texts in found["prompts"].values() for text in texts)
