"""Programs that never import this package load an HMM by name."""

import json
import math
import subprocess
import sys

import pytest
from word_level import word_level_tokenizer

from hmm_datasets.hmm import processes
from hmm_datasets.hmm.causal_lm import HMMForCausalLM
from hmm_datasets.hmm.model import HMM

WORDS = ("the", "cat", "sat", "on", "mat", ".")

SCRIPT = """
import json, sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

for folder in sys.argv[1:]:
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    model.save_pretrained(f"{folder}-again")
    assert AutoTokenizer.from_pretrained(folder)("the cat sat")["input_ids"] == [0, 1, 2]
    print(json.dumps(model(torch.arange(6).unsqueeze(0)).logits.tolist()))
"""

TASK = """
task: drawn
dataset_path: json
dataset_kwargs: {{data_files: {{test: {documents}}}}}
output_type: loglikelihood_rolling
test_split: test
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list: [{{metric: word_perplexity, aggregation: weighted_perplexity, higher_is_better: false}}]
"""


@pytest.fixture
def hmm() -> HMM:
    return HMM(**processes.random(5, 6, alpha=0.4, seed=3).tables(), vocabulary=WORDS)


@pytest.mark.thorough
def test_transformers_loads_a_folder_of_either_kind_and_saves_it_again(hmm, child_environment, tmp_path):
    hmm.save_pretrained(tmp_path / "hmm")
    HMMForCausalLM.from_hmm(hmm).save_pretrained(tmp_path / "model")
    command = [sys.executable, "-c", SCRIPT, tmp_path / "hmm", tmp_path / "model"]
    done = subprocess.run(command, env=child_environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    logits = done.stdout.splitlines()[-2:]
    for name in ("hmm", "model"):
        again = tmp_path / f"{name}-again"
        files = {path.name for path in (tmp_path / name).iterdir()} - {"generation_config.json"}
        assert {path.name for path in again.iterdir()} - {"generation_config.json"} == files
        assert HMM.from_pretrained(again) == hmm
    assert logits[0] == logits[1]


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/EleutherAI/lm-evaluation-harness/issues/1659",
    "a task of the harness on local files, without a network",
    "a YAML file of ten lines measures a folder of this package on local JSON Lines, offline",
)
@pytest.mark.parametrize("tokenizer", [None, word_level_tokenizer(WORDS)], ids=["its own", "of words"])
def test_the_evaluation_harness_finds_the_likelihood_of_the_hmm(tokenizer, hmm, child_environment, tmp_path):
    tokens = hmm.sample(20, 30, seed=1)
    rows = ({"text": " ".join(WORDS[symbol] for symbol in row)} for row in tokens)
    (tmp_path / "documents.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "drawn.yaml").write_text(TASK.format(documents=tmp_path / "documents.jsonl"))
    HMMForCausalLM.from_hmm(hmm, bos_token_id=len(WORDS)).save_pretrained(tmp_path / "model")
    if tokenizer is not None:
        assert tokenizer.bos_token_id == len(WORDS)
        tokenizer.save_pretrained(tmp_path / "model")

    command = [sys.executable, "-m", "lm_eval", "run", "--model", "hf", "--device", "cpu", "--batch_size", "4"]
    command += ["--model_args", f"pretrained={tmp_path / 'model'},trust_remote_code=True", "--tasks", "drawn"]
    command += ["--include_path", tmp_path, "--output_path", tmp_path / "results.json"]
    done = subprocess.run(
        command,
        env=child_environment | {"HF_HUB_OFFLINE": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads(next(tmp_path.glob("results*.json")).read_text())["results"]["drawn"]
    assert results["word_perplexity,none"] == pytest.approx(
        math.exp(-hmm.log_likelihood(tokens).sum() / tokens.size), rel=1e-6
    )
