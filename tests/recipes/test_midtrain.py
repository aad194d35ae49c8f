"""The midtraining recipe, called in this process: the held-out loss of each stream and of all."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from hmm_datasets.data.windows import TokenWindows
from hmm_datasets.errors import InputError
from hmm_datasets.text.stream import TokenStream, tokenizer_hash, write_tokens
from hmm_datasets.text.tokenizers.bpe import train_bpe
from hmm_datasets.training.model_configs import model_config
from hmm_datasets.training.settings import PretrainSettings
from hmm_datasets.training.sources import MixtureSettings

RECIPES = Path(__file__).parents[2] / "recipes"
LENGTH = 16
WINDOWS = {"text": 11, "chat": 5}
"""Held-out windows of each stream."""


@pytest.fixture(scope="module")
def streams(tmp_path_factory):
    root = tmp_path_factory.mktemp("streams")
    tokenizer = train_bpe(["Once upon a time."] * 8, 270, show_progress=False)
    torch.manual_seed(0)
    config = model_config("1m", vocab_size=len(tokenizer), max_length=LENGTH)
    config.num_hidden_layers = 1
    LlamaForCausalLM(config).save_pretrained(root / "model")
    tokenizer.save_pretrained(root / "model")
    draw = np.random.default_rng(0)
    identity = {"vocab_size": len(tokenizer), "eos_id": tokenizer.eos_token_id}
    identity["tokenizer_hash"] = tokenizer_hash(tokenizer)
    for (name, count), low in zip(WINDOWS.items(), (20, 200), strict=True):
        for split, windows in (("train", 20), ("test", count)):
            document = draw.integers(low, 260, windows * LENGTH - 1)
            write_tokens([document], root / name / split, corpus=name, **identity)
    return root


@pytest.fixture
def midtrain(streams, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(RECIPES)
    recipe = importlib.import_module("midtrain")

    def midtrain(names=("text", "chat"), **settings):
        folders = [str(streams / name) for name in names]
        mixture = MixtureSettings(str(streams / "model"), folders, [1.0] * len(names), length=LENGTH, **settings)
        arguments = PretrainSettings(
            str(tmp_path / "run"),
            max_steps=2,
            global_batch_size=4,
            per_device_train_batch_size=4,
            per_device_eval_batch_size=3,
            eval_strategy="steps",
            eval_steps=1,
            eval_on_start=True,
            save_steps=1,
            load_best_model_at_end=True,
            metric_for_best_model="chat_loss",
            greater_is_better=False,
            report_to="none",
        )
        recipe.main(mixture, arguments)
        rows = [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
        summary = json.loads((tmp_path / "run" / "summary.json").read_text())
        return [row for row in rows if "eval_loss" in row], summary["evaluation"]

    return midtrain


def loss(folder, stream, count) -> float:
    """The mean over the tokens of the first held-out windows."""
    model = LlamaForCausalLM.from_pretrained(folder).eval()
    windows = TokenWindows(TokenStream(stream / "test"), LENGTH)
    ids = torch.stack([windows[number]["input_ids"] for number in range(count)])
    with torch.no_grad():
        return model(input_ids=ids, labels=ids).loss.item()


@pytest.mark.thorough
@pytest.mark.parametrize(("most", "counts"), [(256, (11, 5)), (4, (4, 4)), (7, (7, 5))])
def test_the_held_out_loss_is_reported_for_each_stream_and_for_all_tokens(midtrain, streams, tmp_path, most, counts):
    history, evaluation = midtrain(num_test_sequences=most)
    first = history[0]
    expected = [loss(streams / "model", streams / name, n) for name, n in zip(WINDOWS, counts, strict=True)]
    assert [first["eval_text_loss"], first["eval_chat_loss"]] == pytest.approx(expected, rel=1e-5)
    assert first["eval_loss"] == pytest.approx(np.average(expected, weights=counts), rel=1e-5)
    assert len(history) == 4, "one row for each evaluation: at the start, after every step, at the end"
    assert len({(row["step"], row["eval_chat_loss"]) for row in history}) >= 3
    found = [loss(tmp_path / "run", streams / name, n) for name, n in zip(WINDOWS, counts, strict=True)]
    assert [evaluation["text_loss"], evaluation["chat_loss"]] == pytest.approx(found, rel=1e-5)
    state = json.loads((tmp_path / "run" / "checkpoint-2" / "trainer_state.json").read_text())
    assert state["best_metric"] == min(row["eval_chat_loss"] for row in history[1:]), "a stream can choose the best"


@pytest.fixture
def conversations(streams, tmp_path):
    """A stream of documents of 3 to 15 tokens, as conversations are."""
    tokenizer = AutoTokenizer.from_pretrained(streams / "model")
    draw = np.random.default_rng(1)
    identity = {"vocab_size": len(tokenizer), "eos_id": tokenizer.eos_token_id}
    identity["tokenizer_hash"] = tokenizer_hash(tokenizer)
    for split, count in (("train", 60), ("test", 9)):
        documents = [draw.integers(20, 260, draw.integers(3, 15)) for _ in range(count)]
        write_tokens(documents, tmp_path / "conversations" / split, corpus="conversations", **identity)
    return str(tmp_path / "conversations")


@pytest.mark.thorough
def test_packed_conversations_and_windows_of_text_are_mixed_by_tokens_and_counted(
    streams, conversations, tmp_path, monkeypatch
):
    from hmm_datasets.training import trainer as trainers

    monkeypatch.syspath_prepend(RECIPES)
    seen, step = [], trainers.Pretrainer.training_step

    def noted(self, model, inputs, *rest):
        seen.append({name: value.clone() for name, value in inputs.items()})
        return step(self, model, inputs, *rest)

    monkeypatch.setattr(trainers.Pretrainer, "training_step", noted)
    mixture = MixtureSettings(
        *(str(streams / "model"), [str(streams / "text"), conversations], [0.7, 0.3]),
        weigh_by="tokens",
        length=LENGTH,
        packed_streams=[conversations],
    )
    settings = PretrainSettings(
        str(tmp_path / "run"),
        max_steps=10,
        global_batch_size=8,
        per_device_train_batch_size=4,
        save_strategy="no",
        report_to="none",
    )
    importlib.import_module("midtrain").main(mixture, settings)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    tokens = {True: 0, False: 0}
    for batch in seen:
        assert "attention_mask" not in batch, "positions alone keep documents apart"
        for labels, positions in zip(batch["labels"], batch["position_ids"], strict=True):
            padding = int(((labels == -100) & (positions == LENGTH - 1)).sum())
            tokens[int((positions == 0).sum()) + padding > 1] += LENGTH - padding
    assert summary["tokens"] == summary["planned_tokens"] == sum(tokens.values())
    assert tokens[False] / summary["tokens"] == pytest.approx(0.7, abs=0.03)


def test_an_unknown_packed_stream_is_refused():
    with pytest.raises(InputError, match="packed_streams: c is none of the streams a, b"):
        MixtureSettings("model", ["a", "b"], [1.0, 1.0], packed_streams=["c"])


def test_two_processes_report_the_same_losses_of_the_streams(program, succeeded, streams, tmp_path):
    arguments = (
        *("recipes/midtrain.py", "--model", streams / "model", "--streams", streams / "text", streams / "chat"),
        *("--weights", 1, 1, "--length", LENGTH, "--max_steps", 1, "--global_batch_size", 4, "--save_strategy", "no"),
        *("--per_device_train_batch_size", 2, "--per_device_eval_batch_size", 3, "--output_dir", tmp_path / "run"),
    )
    succeeded(program.launch("cpu2", *arguments))
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["world_size"] == 2
    expected = [loss(tmp_path / "run", streams / name, count) for name, count in WINDOWS.items()]
    found = summary["evaluation"]
    assert [found["text_loss"], found["chat_loss"]] == pytest.approx(expected, rel=1e-5)
    assert found["loss"] == pytest.approx(np.average(expected, weights=list(WINDOWS.values())), rel=1e-5)


@pytest.fixture(scope="module")
def two_stages(program, succeeded, streams, tmp_path_factory):
    """Pretrain and midtrain under a launch configuration, the optimizer carried over; return the losses of both."""
    root = tmp_path_factory.mktemp("stages")
    shared = (
        *("--length", LENGTH, "--max_steps", 4, "--save_steps", 4, "--logging_steps", 1, "--learning_rate", 3e-3),
        *("--lr_scheduler_type", "constant", "--warmup_steps", 0, "--global_batch_size", 4),
        *("--per_device_train_batch_size", 2),
    )

    def two_stages(config):
        base, run = root / config / "base", root / config / "run"
        text = ("--tokens", streams / "text", "--tokenizer", streams / "model", "--model", "1m")
        succeeded(program.launch(config, "recipes/pretrain.py", *text, *shared, "--output_dir", base))
        mixture = ("--streams", streams / "text", streams / "chat", "--weights", 0.7, 0.3, "--optimizer_from", base)
        mixture += ("--packed_streams", streams / "chat", "--model", base)
        succeeded(program.launch(config, "recipes/midtrain.py", *mixture, *shared, "--output_dir", run))
        rows = [json.loads(line) for folder in (base, run) for line in (folder / "history.jsonl").open()]
        return [row["loss"] for row in rows if "loss" in row]

    return two_stages


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("config", ["zero2", "zero3", "fsdp2"])
def test_sharded_processes_carry_the_optimizer_over_like_one(config, two_stages):
    found, expected = two_stages(config), two_stages("cpu1")
    assert len(found) == 8
    assert found == pytest.approx(expected, rel=1e-4)


def test_streams_of_the_same_name_are_distinguished_by_their_folders(streams, tmp_path):
    from hmm_datasets.training.sources import stream_names

    assert stream_names(["a/text", "a/chat"]) == ["text", "chat"]
    assert stream_names(["a/text", "b/text", "b/chat/one/"]) == ["a_text", "b_text", "one"]
    assert stream_names(["text", "text", "../text"]) == ["text", "text_2", "text_3"]


def test_fewer_than_one_held_out_window_is_refused(streams):
    with pytest.raises(InputError, match="num_test_sequences is 0; expected 1 or more"):
        MixtureSettings("model", ["text"], [1.0], num_test_sequences=0)


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/danish-foundation-models/site/issues/127",
    "to know how many times a model is trained on each of its corpora",
    "a run prints the epochs of each part first, and refuses a budget of tokens with more than `epochs_ok`",
)
def test_the_epochs_of_each_part_are_printed_and_refused_unless_they_are_allowed(
    streams, monkeypatch, tmp_path, capsys
):
    """Streams of 20 windows of 16 tokens: 40 rows, three of four from the first, are 1.5 epochs of it."""
    monkeypatch.syspath_prepend(RECIPES)
    recipe = importlib.import_module("midtrain")
    folders = [str(streams / name) for name in WINDOWS]
    mixture = MixtureSettings(str(streams / "model"), folders, [3.0, 1.0], length=LENGTH)

    def settings(**budget):
        common = {"global_batch_size": 4, "per_device_train_batch_size": 4, "report_to": "none", "save_strategy": "no"}
        return PretrainSettings(str(tmp_path / "run"), **common, **budget)

    parts = f"1.50 epochs of {folders[0]} (320 tokens), 0.50 epochs of {folders[1]} (320 tokens)"
    with pytest.raises(InputError) as refused:
        recipe.main(mixture, settings(train_tokens=40 * LENGTH))
    assert str(refused.value) == (
        f"train_tokens 640 makes {parts}; expected 1 at most: add text, lower the budget, or allow it with "
        "--epochs_ok 2"
    )
    assert not (tmp_path / "run").exists()
    recipe.main(mixture, settings(train_tokens=40 * LENGTH, epochs_ok=2))
    printed = capsys.readouterr().out
    assert all(f"run: {part}\n" in printed for part in parts.split(", 0.50")[:1])
    assert "run: 0.50 epochs of" in printed
    data = mixture.load()
    model = LlamaForCausalLM.from_pretrained(streams / "model")
    assert settings(max_steps=10, resume=False).plan(data, model).rows == 40  # steps are taken as they are
