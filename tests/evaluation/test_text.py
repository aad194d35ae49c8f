import math

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from transformers import LlamaConfig, LlamaForCausalLM

from hmm_datasets.cli import main
from hmm_datasets.data.windows import StridedWindows, TokenWindows
from hmm_datasets.evaluation import text as text_module
from hmm_datasets.evaluation.text import measure_text
from hmm_datasets.files import write_digests
from hmm_datasets.text.corpora.loading import load_corpus
from hmm_datasets.text.stream import TokenStream, tokenize_corpus
from hmm_datasets.text.tokenizers.bpe import train_bpe
from hmm_datasets.text.tokenizers.text_sizes import token_bytes


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [row["text"] for row in load_corpus("tinystories-sample", split="test")][:6]


@pytest.fixture(scope="module")
def tokenizer(texts):
    return train_bpe(texts, 300, min_frequency=1, show_progress=False)


@pytest.fixture(scope="module")
def stream(texts, tokenizer, tmp_path_factory) -> TokenStream:
    folder = tmp_path_factory.mktemp("tokens") / "a"
    tokenize_corpus([text[:150] for text in texts], tokenizer, folder, "stories", show_progress=False)
    return TokenStream(folder)


@pytest.fixture(scope="module")
def model(tokenizer) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        initializer_range=0.5,
    )
    return LlamaForCausalLM(config).double().eval()


@pytest.fixture
def accelerator() -> Accelerator:
    return Accelerator(cpu=True)


def nats_one_token_at_a_time(model, text: np.ndarray, length: int, stride: int) -> float:
    """The definition with one model call per token, on the window in which the token is scored."""
    total = 0.0
    for position in range(1, len(text)):
        strides = max(0, -(-(position + 1 - length) // stride))
        end = min(length + strides * stride, len(text))
        context = torch.tensor([text[max(0, end - length) : position].tolist()])
        with torch.no_grad():
            logits = model(input_ids=context).logits[0, -1]
        total -= torch.log_softmax(logits, dim=-1)[int(text[position])].item()
    return total


@pytest.mark.thorough
@pytest.mark.parametrize(("length", "stride"), [(16, 15), (24, 7), (300, 1)])
def test_the_nats_of_strided_windows_are_those_of_a_loop_over_tokens(
    model, tokenizer, stream, accelerator, length, stride
):
    length = min(length, stream.num_tokens)
    windows = StridedWindows(stream, length, stride)
    found = measure_text(model, tokenizer, windows, accelerator, batch_size=5)
    text = stream.read(0, stream.num_tokens)
    assert found["num_tokens"] == len(text) - 1
    expected = nats_one_token_at_a_time(model, text, length, stride)
    assert found["nats_per_token"] == pytest.approx(expected / (len(text) - 1), rel=1e-9)
    assert found["bytes"] == token_bytes(tokenizer)[text[1:].astype(int)].sum()
    assert found["bits_per_byte"] == pytest.approx(expected / math.log(2) / found["bytes"], rel=1e-9)
    assert (found["window"], found["stride"], found["unit"]) == (length, stride, "window")
    assert sum(item["tokens"] for item in found["items"]) == found["num_tokens"]


@pytest.mark.thorough
def test_documents_are_scored_separately_and_only_scored_tokens_have_bytes(
    model, tokenizer, stream, accelerator, monkeypatch
):
    sizes = np.arange(7, 7 + len(tokenizer))
    monkeypatch.setattr(text_module, "token_bytes", lambda tokenizer: sizes)
    windows = StridedWindows(stream, 40, 10, by_document=True)
    found = measure_text(model, tokenizer, windows, accelerator, batch_size=5)
    documents = [stream.document(number) for number in range(stream.num_documents)]
    begun = [np.concatenate([[stream.index.eos_id], text]) for text in documents]
    expected = [nats_one_token_at_a_time(model, text, 40, 10) for text in begun]
    assert found["num_tokens"] == stream.num_tokens
    assert found["nats_per_token"] == pytest.approx(sum(expected) / stream.num_tokens, rel=1e-9)
    assert found["unit"] == "document"
    assert [item["document"] for item in found["items"]] == list(range(len(documents)))
    assert [item["nats"] for item in found["items"]] == pytest.approx(expected, rel=1e-9)
    assert [item["tokens"] for item in found["items"]] == [len(text) for text in documents]
    assert [item["bytes"] for item in found["items"]] == [sizes[text.astype(int)].sum() for text in documents]
    assert found["bytes"] == sum(item["bytes"] for item in found["items"])
    assert (found["num_documents"], found["least_context"]) == (len(documents), 30)


@pytest.mark.thorough
def test_first_tokens_of_adjacent_windows_are_not_scored(model, tokenizer, stream, accelerator):
    windows = TokenWindows(stream, 25)
    found = measure_text(model, tokenizer, windows, accelerator, batch_size=4)
    rows = stream.read(0, len(windows) * 25).reshape(-1, 25)
    expected = sum(nats_one_token_at_a_time(model, row, 25, 1) for row in rows)
    assert found["num_tokens"] == rows[:, 1:].size
    assert found["nats_per_token"] == pytest.approx(expected / rows[:, 1:].size, rel=1e-9)
    assert found["bytes"] == token_bytes(tokenizer)[rows[:, 1:].astype(int)].sum()


@pytest.mark.thorough
def test_results_do_not_depend_on_the_batch_size(model, tokenizer, stream, accelerator):
    windows = StridedWindows(stream, 32, 8)
    first, second = (measure_text(model, tokenizer, windows, accelerator, batch_size=size) for size in (3, 64))
    assert first["bytes"] == second["bytes"]
    assert first["bits_per_byte"] == pytest.approx(second["bits_per_byte"], rel=1e-12)


def test_a_tokenizer_that_was_edited_is_named_by_its_digest(model, tokenizer, texts, tmp_path, capsys):
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    write_digests(tmp_path / "model")
    with (tmp_path / "model" / "tokenizer.json").open("a") as file:
        file.write(" ")
    (tmp_path / "text.txt").write_text("\n\n".join(texts))
    words = ["--targets", str(tmp_path / "text.txt"), "--test_fraction", "1", "--tasks", "text"]
    with pytest.raises(SystemExit):
        main(["evaluate", "--model", str(tmp_path / "model"), *words, "--output_dir", str(tmp_path / "evaluation")])
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert f"{tmp_path}/model/tokenizer.json: SHA-256 is " in line
