"""The command that evaluates a model, and the folder that it writes."""

import json
import math
import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from hmm_datasets.cli import main
from hmm_datasets.errors import InputError
from hmm_datasets.evaluation.targets import held_out_part, open_target
from hmm_datasets.evaluation.tasks import TASKS
from hmm_datasets.evaluation.trained_on import trained_on
from hmm_datasets.files import read_json, read_jsonl, write_json, write_jsonl
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.families import RandomChains
from hmm_datasets.hmm.model import HMM
from hmm_datasets.text.corpora.loading import read_splits
from hmm_datasets.text.stream import TokenStream, tokenize_corpus
from hmm_datasets.text.tokenizers.bpe import train_bpe
from hmm_datasets.training.lineage import base_model, lineage

LENGTH, SEED = 12, 5
STORIES = [f"Once there was a {animal}. The {animal} ran home." for animal in ("cat", "dog", "hen", "cow", "fox")]


def llama(vocab_size: int, seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=vocab_size, **sizes, max_position_embeddings=64))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run that trained on sequences of an HMM."""
    folder = tmp_path_factory.mktemp("trained")
    hmm = folder / "hmm"
    processes.mess3(0.15, 0.6).save_pretrained(hmm)
    model = folder / "model"
    llama(4).save_pretrained(model)
    write_json(model / "run.json", {"data": {"length": LENGTH, "seed": SEED}, "settings": {"hmm": str(hmm)}})
    for step in (2, 10):
        llama(4, seed=step).save_pretrained(model / f"checkpoint-{step}")
        state = {"global_step": step, "num_input_tokens_seen": 13 * step}
        write_json(model / f"checkpoint-{step}" / "trainer_state.json", state)
    return model


@pytest.fixture(scope="module")
def evaluated(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluated")
    assert main(["evaluate", str(run), "--output_dir", str(folder), "--num_sequences", "40", "--checkpoints", "true",
                 "--checkpoint_sequences", "8"]) == 0  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def writer(tmp_path_factory):
    """A model with a tokenizer, and a token stream."""
    folder = tmp_path_factory.mktemp("writer")
    tokenizer = train_bpe(STORIES, 290, show_progress=False)
    llama(len(tokenizer)).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    tokenize_corpus(STORIES, tokenizer, folder / "stream", "stories", show_progress=False)
    (folder / "stories.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in STORIES))
    return folder


def failing(capsys, *argv) -> str:
    with pytest.raises(SystemExit) as caught:
        main(["evaluate", *map(str, argv)])
    assert caught.value.code == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    return lines[0]


@pytest.mark.thorough
def test_a_run_is_evaluated_on_the_distribution_it_was_trained_on(run, evaluated):
    report = read_json(evaluated / "report.json")
    assert [task for task in TASKS if task in report] == ["optimum", "beliefs", "training"]
    optimum = report["optimum"]
    assert (optimum["length"], optimum["seed"], optimum["num_sequences"]) == (LENGTH, SEED, 40)
    assert optimum["fingerprint"] == processes.mess3(0.15, 0.6).fingerprint()
    assert report["settings"]["targets"] == [str(run.parent / "hmm")]


def test_a_report_names_the_weights_the_seeds_and_the_versions(run, evaluated):
    report = read_json(evaluated / "report.json")
    assert report["model"]["name"] == str(run)
    assert report["model"]["parameters"] == llama(4).num_parameters()
    assert report["seeds"] == {"stream": SEED, "evaluation": 0}
    assert {"torch", "transformers", "hmm-datasets"} <= report["versions"].keys()
    assert len(report["model"]["sha256"]) == 64
    assert report["hashes"] == {"optimum": processes.mess3(0.15, 0.6).fingerprint()}


def test_items_add_up_to_the_results(evaluated):
    optimum = read_json(evaluated / "report.json")["optimum"]
    rows = read_jsonl(evaluated / "items" / "optimum.jsonl")
    assert len(rows) == 40
    tokens = sum(row["tokens"] for row in rows)
    gap = sum(row["nats"] - row["floor_nats"] for row in rows) / tokens
    assert gap == pytest.approx(optimum["bayes_gap"]["bayes_gap"], abs=1e-9)


def test_figures_are_written_as_png_and_pdf_and_into_the_page(evaluated):
    plots = {path.name for path in (evaluated / "plots").iterdir()}
    for name in ("positions", "training", "simplex"):
        assert {f"{name}.png", f"{name}.pdf"} <= plots
    assert (evaluated / "report.html").read_text().startswith("<!")


def test_every_checkpoint_is_a_point_of_the_curve(evaluated):
    training = read_json(evaluated / "report.json")["training"]
    assert training["from"] == "checkpoints"
    assert [(row["step"], row["tokens"]) for row in training["rows"]] == [(2, 26), (10, 130)]
    assert training["rows"][0]["cross_entropy_bayes"] == training["rows"][1]["cross_entropy_bayes"]


@pytest.mark.thorough
def test_an_hmm_measured_against_itself_has_no_gap(run, tmp_path, capsys):
    hmm = str(run.parent / "hmm")
    assert main(["evaluate", hmm, "--targets", hmm, "--output_dir", str(tmp_path), "--num_sequences", "30",
                 "--bos", "false"]) == 0  # fmt: skip
    report = read_json(tmp_path / "report.json")
    assert abs(report["optimum"]["bayes_gap"]["bayes_gap"]) < 1e-6
    assert "beliefs" not in report
    assert "0.0000" in capsys.readouterr().out


@pytest.mark.thorough
def test_a_stream_and_a_file_of_the_same_documents_have_the_same_number_of_bytes(writer, tmp_path):
    model = str(writer / "model")
    for name, target in (("stream", writer / "stream"), ("file", writer / "stories.jsonl")):
        command = ["evaluate", model, "--targets", str(target), "--tasks", "text", "--window", "16"]
        command += ["--test_fraction", "1"]
        assert main([*command, "--by_document", "true", "--output_dir", str(tmp_path / name)]) == 0
    stream, file = (read_json(tmp_path / name / "report.json")["text"] for name in ("stream", "file"))
    assert stream["num_documents"] == file["num_documents"] == len(STORIES)
    assert file["bytes"] == sum(len(text.encode()) for text in STORIES)
    assert read_json(tmp_path / "stream" / "report.json")["hashes"] == {
        "text": TokenStream(writer / "stream").index.sha256
    }
    assert len(file["sha256"]) == 64
    for text in (stream, file):
        nats = text["nats_per_token"] * text["num_tokens"]
        assert text["bits_per_byte"] == pytest.approx(nats / math.log(2) / text["bytes"], rel=1e-9)
    assert open_target(str(writer / "stories.jsonl"), 2, test_fraction=1).texts == STORIES[:2]
    assert len(read_jsonl(tmp_path / "file" / "items" / "text.jsonl")) == len(STORIES)


@pytest.mark.thorough
def test_of_a_file_that_was_trained_on_only_held_out_documents_are_scored(tmp_path):
    file = str(tmp_path / "stories.jsonl")
    stories = [f"Story {number} of a file is told here." for number in range(200)]
    Path(file).write_text("".join(json.dumps({"text": text}) + "\n" for text in stories))
    tokenizer = train_bpe(stories, 290, show_progress=False)
    for share in (0.05, 0.3):
        folder = tmp_path / str(share)
        rows = list(read_splits(file, kind="text", test_fraction=share))
        tokens = folder / "tokens" / "text" / "train"
        trained = [row["text"] for split, row in rows if split == "train"]
        index = tokenize_corpus(trained, tokenizer, tokens, file, show_progress=False)
        write_json(folder / "tokens" / "run.json", {"data": {"test_fraction": share}})
        stage = asdict(lineage(None, stage="pretraining", data=file))
        record = {"data": {"tokens": index.sha256}, "settings": {"tokens": str(tokens)}, "lineage": stage}
        (folder / "model").mkdir()
        write_json(folder / "model" / "run.json", record)
        write_json(folder / "model" / "summary.json", {"tokens": index.num_tokens})
        (folder / "tuned").mkdir()
        tuned = asdict(lineage(base_model(str(folder / "model")), stage="midtraining", data=None))
        write_json(folder / "tuned" / "run.json", {"data": {}, "settings": {}, "lineage": tuned})
        for model in ("model", "tuned"):
            known = trained_on(str(folder / model))
            assert open_target(file, known=known).texts == [row["text"] for split, row in rows if split == "test"]
            with pytest.raises(InputError, match="the model was trained on these tokens"):
                open_target(str(tokens), known=known)
            with pytest.raises(InputError, match=f"training held out {share}; expected a share above 0 and at most"):
                open_target(file, test_fraction=0.4, known=known)
    # Conversations are split like texts, by a share in the settings of the run.
    write_json(tmp_path / "run.json", {"data": {}, "settings": {"test_fraction": 0.05}})
    known = trained_on(str(tmp_path))
    assert held_out_part(file, None, known) == {"split": "test", "test_fraction": 0.05}
    unknown = open_target(file).texts
    assert unknown == [row["text"] for split, row in read_splits(file, kind="text") if split == "test"]


def test_a_folder_of_splits_is_measured_on_its_test_split_not_on_a_share_of_what_was_trained_on(tmp_path):
    """A share of the files for training was taken, as of a folder without splits."""
    for split in ("train", "test"):
        (tmp_path / f"{split}.txt").write_text(f"{split} one<|endoftext|>{split} two")
    assert open_target(str(tmp_path)).texts == ["test one", "test two"]
    assert open_target(str(tmp_path), test_fraction=1).texts == ["train one", "train two"]


@pytest.mark.thorough
def test_a_model_with_a_tokenizer_completes_prompts(writer, tmp_path):
    assert main(["evaluate", str(writer / "model"), "--output_dir", str(tmp_path)]) == 0
    report = read_json(tmp_path / "report.json")
    assert report["completions"]["prompts"]
    assert "optimum" not in report


@pytest.mark.thorough
def test_runs_are_compared_on_the_same_sequences(run, evaluated, tmp_path, capsys):
    command = ["evaluate", str(run / "checkpoint-2"), "--targets", str(run.parent / "hmm"), "--tasks", "optimum"]
    settings = ["--length", str(LENGTH), "--data_seed", str(SEED), "--num_sequences", "40"]
    assert main([*command, *settings, "--output_dir", str(tmp_path / "other")]) == 0
    capsys.readouterr()
    assert main(["compare", str(evaluated), str(tmp_path / "other"), "--output_dir", str(tmp_path / "both")]) == 0
    first, second = (
        np.array([row["nats"] for row in read_jsonl(folder / "items" / "optimum.jsonl")])
        for folder in (evaluated, tmp_path / "other")
    )
    difference = (second - first).sum() / (40 * LENGTH)
    assert f"{difference:+.4f}" in capsys.readouterr().out
    assert (tmp_path / "both" / "comparison.json").exists()


@pytest.mark.thorough
def test_a_second_evaluation_replaces_the_first(run, tmp_path):
    command = ["evaluate", str(run), "--output_dir", str(tmp_path), "--num_sequences", "8"]
    assert main([*command, "--tasks", "optimum", "beliefs"]) == 0
    assert main([*command, "--tasks", "optimum"]) == 0
    assert not (tmp_path / "items" / "beliefs.jsonl").exists()
    assert not (tmp_path / "plots" / "simplex.png").exists()


@pytest.mark.thorough
def test_a_quick_evaluation_reads_less(writer, tmp_path):
    found = {}
    for name, flags in (("whole", ()), ("quick", ("--quick",))):
        folder = tmp_path / name
        model, text = str(writer / "model"), str(writer / "stories.jsonl")
        assert main(["evaluate", model, "--targets", text, "--test_fraction", "1", "--window", "9", "--stride", "1",
                     "--output_dir", str(folder), *flags]) == 0  # fmt: skip
        found[name] = read_json(folder / "report.json")
    assert found["quick"]["text"]["num_documents"] == 2 < found["whole"]["text"]["num_documents"]
    assert found["quick"]["completions"]["prompts"][0]["sampled"] == []
    assert found["quick"]["settings"]["num_sequences"] == 64


@pytest.mark.thorough
def test_a_task_that_does_not_apply_says_what_it_needs(run, writer, tmp_path, capsys):
    bare = tmp_path / "bare"
    llama(4).save_pretrained(bare)
    chains = tmp_path / "chains"
    RandomChains(3, alpha=1.0).save_pretrained(chains)
    hmm = run.parent / "hmm"
    for argv, said in (
        ([bare], "no distribution to measure it against; give a process with --targets"),
        ([bare, "--targets", chains, "--tasks", "beliefs"], "task beliefs: it needs one HMM"),
        ([bare, "--targets", hmm, "--tasks", "text"], "task text: no held-out text"),
        ([bare, "--tasks", "poetry"], "tasks has 'poetry'; expected some of optimum, beliefs, training"),
        ([bare, "--targets", hmm, chains], "targets has 2 processes and 0 texts; expected at most one of each"),
        ([bare, "--targets", hmm, "--checkpoints", "true"], "has no checkpoint-*"),
        (
            [bare, "--targets", tmp_path],
            "no config.json of an HMM, family.json of a family, process.json of another process, index.json",
        ),
        ([writer / "model", "--tasks", "core"], "task core: no questions; give their folder with --core_data"),
        ([bare, "--targets", hmm, "--num_sequences", "0"], "num_sequences is 0; expected 1 or more"),
        ([tmp_path / "none"], "none: AutoConfig finds nothing to load"),
        ([bare, "--tragets", hmm], "unknown flag --tragets; did you mean --targets?"),
    ):
        assert said in failing(capsys, *argv), argv
    assert not (bare / "evaluation").exists()


def test_a_broken_evaluation_leaves_no_report_behind(run, tmp_path, capsys):
    folder = tmp_path / "out"
    write_jsonl(folder / "items" / "optimum.jsonl", [])
    write_json(folder / "report.json", {})
    other = tmp_path / "other"
    shutil.copytree(run, other)
    (other / "model.safetensors").write_bytes(b"torn")
    assert "its weights are not a complete safetensors file" in failing(capsys, other, "--output_dir", folder)
    assert read_json(folder / "report.json") == {}, "nothing was measured, so what was there stays"


def test_names_of_distributions_and_of_texts_are_distinguished(run, writer, tmp_path):
    assert isinstance(open_target(str(run.parent / "hmm")), HMM)
    assert isinstance(open_target(str(writer / "stream")), TokenStream)
    RandomChains(3, alpha=1.0).save_pretrained(tmp_path / "chains")
    assert open_target(str(tmp_path / "chains")) == RandomChains(3, alpha=1.0)
    assert len(open_target("tinystories-sample", max_documents=3).texts) == 3
