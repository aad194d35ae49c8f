"""Every recipe once, at the smallest size, on the bundled samples; at the end a push to a local Hub."""

import json

import pytest
from hub_processes import LocalHub

pytestmark = pytest.mark.thorough

CHAT = ("pretrain_text", "midtrain", "sft")
SAMPLES = ("--corpus", "tinystories-sample", "--conversations", "instructions-sample")
SMALL = ("--global_batch_size", 8, "--per_device_train_batch_size", 4, "--save_steps", 100, "--logging_steps", 1)


@pytest.fixture(scope="module")
def experiment(program, succeeded, tmp_path_factory):
    """Run all stages up to the answers; the output of each, by name."""
    root = tmp_path_factory.mktemp("experiment")
    printed = {}

    def run(name, *arguments):
        printed[name] = succeeded(program.run(*arguments)).stdout

    run(
        *("hmm", "recipes/fit_hmm.py", "--output_dir", root / "hmm", "--num_states", 8, "--max_epochs", 8),
        *("--length", 32, "--vocabulary_size", 100),
    )
    run(
        *("pretrain_hmm", "recipes/pretrain.py", "--hmm", root / "hmm" / "hmm", "--length", 16, "--model", "1m"),
        *("--output_dir", root / "pretrain_hmm", "--train_tokens", 17 * 8 * 30, "--num_test_sequences", 16, *SMALL),
        *("--evaluations_per_doubling", 2, "--eval_on_start", "true", "--learning_rate", 3e-3),
    )
    run(
        *("evaluate_hmm", "recipes/evaluate_model.py", "--model", root / "pretrain_hmm"),
        *("--output_dir", root / "evaluate_hmm", "--num_sequences", 40, "--batch_size", 16),
    )
    run("tokens", "recipes/tokenize_corpus.py", "--output_dir", root / "tokens", *SAMPLES, "--vocab_size", 600)
    run(
        *("pretrain_text", "recipes/pretrain.py", "--tokens", root / "tokens" / "text", "--length", 64),
        *("--tokenizer", root / "tokens" / "tokenizer", "--model", "1m", "--output_dir", root / "pretrain_text"),
        *("--max_steps", 4, *SMALL),
    )
    run(
        *("midtrain", "recipes/midtrain.py", "--model", root / "pretrain_text", "--length", 64),
        *("--streams", root / "tokens" / "text", root / "tokens" / "chat", "--weights", 0.6, 0.4),
        *("--output_dir", root / "midtrain", "--max_steps", 4, *SMALL),
    )
    run(
        *("sft", "recipes/sft.py", "--model", root / "midtrain", "--output_dir", root / "sft", "--max_steps", 3),
        *("--conversations", "story-questions", "--max_conversations", 40, "--max_length", 64),
        *("--num_questions", 12, "--max_new_tokens", 4, *SMALL),
    )
    run(
        *("evaluate_text", "recipes/evaluate_model.py", "--model", root / "midtrain", "--window", 64),
        *("--targets", root / "tokens" / "text" / "test", "--output_dir", root / "evaluate_text"),
    )
    run("report", "recipes/demo/report.py", "--experiment", root)
    return root, printed


def test_the_report_is_in_order_and_names_every_stage(experiment):
    root, said = experiment
    assert "optimal loss <= model <= unigram <= uniform: in order" in said["report"]
    report = json.loads((root / "report.json").read_text())
    assert set(report["runs"]) == {"hmm", "pretrain_hmm", "pretrain_text", "midtrain", "sft"}
    entropy = {name: value["cross_entropy"] for name, value in report["optimum"]["cross_entropy"].items()}
    assert entropy["bayes"] < entropy["model"] < entropy["unigram"] < entropy["uniform"]
    assert report["text"]["bits_per_byte"] > 1


def test_the_gap_of_the_evaluation_is_the_difference_of_its_cross_entropies(experiment):
    measured = json.loads((experiment[0] / "evaluate_hmm" / "report.json").read_text())["optimum"]
    entropy = measured["cross_entropy"]
    difference = entropy["model"]["cross_entropy"] - entropy["bayes"]["cross_entropy"]
    assert measured["bayes_gap"]["bayes_gap"] == pytest.approx(difference, abs=1e-9)
    assert len(entropy["model"]["by_position"]) == 16


def test_plots_and_cards_exist(experiment):
    root, _ = experiment
    for name in ("loss", "divergence", "positions", "text_loss"):
        assert (root / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
    cards = {}
    for folder in ("hmm/hmm", "dataset", "pretrain_hmm", "pretrain_text", "midtrain", "sft"):
        cards[folder] = (root / folder / "README.md").read_text()
        assert cards[folder].startswith("---\n")
    assert "Excess over the optimal loss" in cards["pretrain_hmm"]
    assert "bits/byte" in cards["midtrain"], "evaluated"
    assert "bits/byte" not in cards["sft"], "another model was"
    counts = [json.loads((root / name / "summary.json").read_text())["tokens"] for name in CHAT]
    assert f"| Tokens trained on | {sum(counts):,} |" in cards["sft"]


def test_midtraining_reads_its_sources_in_the_given_proportions(experiment):
    data = json.loads((experiment[0] / "midtrain" / "run.json").read_text())["data"]
    assert data["counts"] == [3, 2]


def test_the_chat_model_answers(experiment):
    root, said = experiment
    assert json.loads((root / "sft" / "answer.json").read_text())["prompt"] == "What is the capital of France?"
    assert "answer: " in said["sft"]


def test_held_out_questions_are_answered_before_and_after_and_shown(experiment):
    root, said = experiment
    found = json.loads((root / "sft" / "answers.json").read_text())
    rows = [json.loads(line) for line in (root / "sft" / "answers.jsonl").read_text().splitlines()]
    assert found == json.loads((root / "report.json").read_text())["answers"]
    assert set(found["after"]) == set(found["before"]) == {"order", "count", "spelling", "all"}
    assert found["after"]["all"]["questions"] == len(rows) == 12
    assert "Held-out questions, answered in exactly the right words" in said["sft"]
    assert said["sft"].count("user: ") == 3
    assert all(row["messages"][0]["content"] in said["sft"] for row in rows[:3])


def test_a_run_writes_its_record(experiment):
    record = json.loads((experiment[0] / "pretrain_hmm" / "run.json").read_text())
    assert record["settings"]["learning_rate"] == 3e-3
    assert json.loads((experiment[0] / "pretrain_hmm" / "tokenizer_config.json").read_text())["bos_token"] == "<bos>"
    assert record["command"].startswith("hmm-datasets pretrain ")
    assert {"torch", "transformers", "datasets", "hmm-datasets"} <= record["versions"].keys()


def test_a_finished_run_that_is_started_again_does_not_train(program, succeeded, experiment):
    root, _ = experiment
    before = json.loads((root / "pretrain_text" / "summary.json").read_text())
    succeeded(
        program.run(
            *("recipes/pretrain.py", "--tokens", root / "tokens" / "text", "--length", 64, "--model", "1m"),
            *("--tokenizer", root / "tokens" / "tokenizer", "--output_dir", root / "pretrain_text"),
            *("--max_steps", 4, *SMALL),
        )
    )
    after = json.loads((root / "pretrain_text" / "summary.json").read_text())
    assert after == before
    assert (before["steps"], before["tokens"]) == (4, 4 * 8 * 64)


def test_a_run_stopped_after_its_last_checkpoint_takes_no_further_step(program, succeeded, experiment):
    """From a checkpoint with no step left the Trainer itself would take one more step."""
    root, _ = experiment
    folder = root / "midtrain"
    before = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").unlink()
    succeeded(
        program.run(
            *("recipes/midtrain.py", "--model", root / "pretrain_text", "--length", 64),
            *("--streams", root / "tokens" / "text", root / "tokens" / "chat", "--weights", 0.6, 0.4),
            *("--output_dir", folder, "--max_steps", 4, *SMALL),
        )
    )
    after = json.loads((folder / "summary.json").read_text())
    assert (after["steps"], after["tokens"]) == (before["steps"], before["tokens"]) == (4, 4 * 8 * 64)
    assert after["evaluation"]["loss"] == pytest.approx(before["evaluation"]["loss"], abs=1e-6)


def test_everything_is_pushed_to_a_hub_and_read_back(program, succeeded, experiment, tmp_path):
    root, _ = experiment
    hub = LocalHub(tmp_path / "hub")
    try:
        environment = {
            **hub.variables,
            "HF_HUB_OFFLINE": "0",
            "NO_PROXY": "127.0.0.1,localhost",
            "HF_HOME": str(tmp_path / "home"),
        }
        for path, *target in (("hmm/hmm", "tester/hmm"), ("dataset", "tester/sequences", "--repo_type", "dataset"),
                              ("pretrain_hmm", "tester/llama")):  # fmt: skip
            command = ("-m", "hmm_datasets.cli", "push", root / path, *target)
            assert hub.endpoint in succeeded(program.run(*command, **environment)).stdout
        check = f"""
from datasets import load_dataset
from huggingface_hub import HfApi
from transformers import AutoModelForCausalLM
import hmm_datasets
from hmm_datasets import HMM
me = HfApi().whoami()["name"]
hmm = HMM.from_pretrained(me + "/hmm")
assert hmm == HMM.from_pretrained({str(root / "hmm" / "hmm")!r})
assert AutoModelForCausalLM.from_pretrained(me + "/llama").config.vocab_size == hmm.num_symbols + 1
rows = load_dataset(
    "hmm", "hf://datasets/" + me + "/sequences", length=12, split="train", streaming=True
)
assert next(iter(rows))["input_ids"][1:] == hmm.sample(1, 12)[0].tolist()
"""
        succeeded(program.run("-c", check, **environment))
    finally:
        hub.stop()
