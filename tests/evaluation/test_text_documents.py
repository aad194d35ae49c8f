"""The loss on texts, compared with the definition, with lm-evaluation-harness, and with token streams."""

import math

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from hmm_datasets.data.windows import StridedWindows
from hmm_datasets.errors import InputError
from hmm_datasets.evaluation.document_windows import DocumentWindows
from hmm_datasets.evaluation.metrics import load_metric
from hmm_datasets.evaluation.text import measure_text
from hmm_datasets.intervals import t_quantile
from hmm_datasets.text.corpora.loading import load_corpus
from hmm_datasets.text.stream import TokenStream, tokenize_corpus
from hmm_datasets.text.tokenizers.bpe import train_bpe

LIMIT = 32  # tokens that the model takes


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Texts of different lengths, one of them empty and one not in ASCII."""
    stories = [row["text"] for row in load_corpus("tinystories-sample", split="test")][:5]
    return [story[: 12 + 45 * index] for index, story in enumerate(stories)] + ["", "Ça va, Zoë? 你好"]


@pytest.fixture(scope="module")
def tokenizer(texts):
    return train_bpe(texts, 300, min_frequency=1, show_progress=False)


@pytest.fixture(scope="module")
def model(tokenizer) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=len(tokenizer), n_positions=LIMIT, n_embd=16, n_layer=2, n_head=2)
    model = GPT2LMHeadModel(config).eval()
    torch.nn.init.normal_(model.transformer.wte.weight, std=0.5)
    return model.double()


@pytest.fixture(scope="module")
def accelerator() -> Accelerator:
    return Accelerator(cpu=True)


def scored_once(model, tokens: list[int], window: int, stride: int) -> list[float]:
    """The definition with one model call per token: the loss of each token but the first, given those before it in its
    window."""
    losses = []
    for position in range(1, len(tokens)):
        end = window
        while end <= position:
            end += stride
        begin = max(0, min(end, len(tokens)) - window)
        assert position - begin >= min(position, window - stride), "the minimum context"
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([tokens[begin:position]])).logits[0, -1]
        losses.append(-torch.log_softmax(logits, dim=-1)[tokens[position]].item())
    return losses


@pytest.mark.thorough
@pytest.mark.parametrize(("window", "stride"), [(33, 32), (16, 5), (20, 1)])
def test_every_token_is_scored_once_with_the_stated_context(model, tokenizer, texts, accelerator, window, stride):
    windows = DocumentWindows(texts, tokenizer, window, stride)
    found = measure_text(model, tokenizer, windows, accelerator, batch_size=5)
    documents = [scored_once(model, [0, *tokenizer(text)["input_ids"]], window, stride) for text in texts]
    assert [item["tokens"] for item in found["items"]] == [len(losses) for losses in documents]
    assert [item["nats"] for item in found["items"]] == pytest.approx([sum(losses) for losses in documents], rel=1e-9)
    assert [item["bytes"] for item in found["items"]] == [len(text.encode()) for text in texts]
    losses = np.concatenate(documents)
    assert found["num_tokens"] == len(losses)
    assert found["perplexity"] == pytest.approx(math.exp(losses.mean()), rel=1e-9)
    assert found["bits_per_byte"] == pytest.approx(losses.sum() / math.log(2) / found["bytes"], rel=1e-9)
    assert (found["least_context"], found["num_documents"]) == (window - stride, len(texts))


@pytest.mark.thorough
def test_windows_side_by_side_give_the_mean_loss_of_their_tokens(model, tokenizer, texts, accelerator, tmp_path):
    """What a script that cuts a text into blocks computes; the end of a text keeps the context that a block has."""
    window = 16
    windows = DocumentWindows(texts, tokenizer, window, window)
    found = measure_text(model, tokenizer, windows, accelerator)
    losses, sizes = [], []
    for text in texts:
        ids = [0, *tokenizer(text)["input_ids"]]
        whole = len(ids) // window * window
        losses.append(0.0)
        sizes.append(0)
        for begin in range(0, len(ids), window):
            block = ids[begin : begin + window] if begin < whole else ids[max(0, len(ids) - window) :]
            first = 1 if begin < whole or begin == 0 else len(block) - (len(ids) - begin)
            with torch.no_grad():
                logs = torch.log_softmax(model(input_ids=torch.tensor([block])).logits[0], dim=-1)
            losses[-1] -= sum(logs[t - 1, block[t]].item() for t in range(first, len(block)))
            sizes[-1] += len(block) - first
    assert [item["nats"] for item in found["items"]] == pytest.approx(losses, rel=1e-5, abs=1e-9)
    assert [item["tokens"] for item in found["items"]] == sizes
    filled = [text for text in texts if text]
    tokenize_corpus(filled, tokenizer, tmp_path / "tokens", "stories", show_progress=False)
    stream = TokenStream(tmp_path / "tokens")
    of_stream = measure_text(model, tokenizer, StridedWindows(stream, window, window, by_document=True), accelerator)
    in_one = measure_text(model, tokenizer, DocumentWindows(filled, tokenizer, window, window), accelerator)
    by_hand = [len(text.encode()) for text in filled]
    for item, other, size in zip(in_one["items"], of_stream["items"], by_hand, strict=True):
        assert item["bytes"] == other["bytes"] <= size
    assert found["bytes"] == in_one["bytes"] < sum(by_hand)


def test_sums_are_those_of_lm_evaluation_harness(model, tokenizer, texts, accelerator):
    """Its rolling log-likelihood scores as many tokens at once as the model takes, and the last tokens with as much
    context as fits. That equals windows of one token more, since they have a beginning token, and this stride. It also
    gives 0 for an empty text. It has no other strides."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    harness = HFLM(
        pretrained=model, tokenizer=tokenizer, max_length=LIMIT, batch_size=3, device="cpu", add_bos_token=False
    )
    requests = [Instance("loglikelihood_rolling", {}, (text,), index) for index, text in enumerate(texts)]
    theirs = harness.loglikelihood_rolling(requests, disable_tqdm=True)
    windows = DocumentWindows(texts, tokenizer, LIMIT + 1, LIMIT)
    found = measure_text(model, tokenizer, windows, accelerator)
    # The harness takes its logarithms in float32.
    assert [-item["nats"] for item in found["items"]] == pytest.approx(theirs, rel=1e-5)
    size = sum(len(text.encode()) for text in texts)
    assert found["bits_per_byte"] == pytest.approx(-sum(theirs) / math.log(2) / size, rel=1e-5)
    more = measure_text(model, tokenizer, DocumentWindows(texts, tokenizer, LIMIT + 1, 8), accelerator)
    assert [-item["nats"] for item in more["items"]] != pytest.approx(theirs, rel=1e-4)


def test_texts_and_a_stream_of_them_give_the_same_results(model, tokenizer, texts, accelerator, tmp_path):
    filled = [text for text in texts if text]
    tokenize_corpus(filled, tokenizer, tmp_path / "tokens", "stories", show_progress=False)
    stream = StridedWindows(TokenStream(tmp_path / "tokens"), 24, 10, by_document=True)
    found, other = (
        measure_text(model, tokenizer, windows, accelerator)
        for windows in (DocumentWindows(filled, tokenizer, 24, 10), stream)
    )
    # In a stream the EOS after a document is scored too.
    assert [item["tokens"] + 1 for item in found["items"]] == [item["tokens"] for item in other["items"]]
    assert [item["bytes"] for item in found["items"]] == [item["bytes"] for item in other["items"]]
    assert all(mine["nats"] < theirs["nats"] for mine, theirs in zip(found["items"], other["items"], strict=True))
    assert set(found) == set(other)


@pytest.mark.thorough
@pytest.mark.parametrize("by_document", [False, True])
def test_the_first_windows_are_those_of_the_whole_text(model, tokenizer, texts, accelerator, tmp_path, by_document):
    filled = [text for text in texts if text]
    tokenize_corpus(filled, tokenizer, tmp_path / "tokens", "stories", show_progress=False)
    stream = StridedWindows(TokenStream(tmp_path / "tokens"), 24, 10, by_document=by_document)
    count = len(DocumentWindows(filled[:2], tokenizer, 24, 10)) + 2  # the third document is cut
    for windows in (stream, DocumentWindows(texts[:5], tokenizer, 24, 10)):
        whole = measure_text(model, tokenizer, windows, accelerator)
        part = measure_text(model, tokenizer, windows, accelerator, max_windows=count)
        whole_ones = part["items"] if part["unit"] == "window" else part["items"][:2]
        assert whole_ones == whole["items"][: len(whole_ones)]
        assert part["num_tokens"] == sum(item["tokens"] for item in part["items"]) < whole["num_tokens"]
        assert part["bytes"] == sum(item["bytes"] for item in part["items"]) < whole["bytes"]
        if part["unit"] == "document":
            assert part["num_documents"] == len(part["items"]) == 3
            assert 0 < part["items"][2]["bytes"] < whole["items"][2]["bytes"]
        else:
            assert part["num_documents"] == len(read_of(tokenizer, filled, 24 + 10 * (count - 1)))
    assert measure_text(model, tokenizer, stream, accelerator, max_windows=10**6) == measure_text(
        model, tokenizer, stream, accelerator
    )


def read_of(tokenizer, texts: list[str], tokens: int) -> list[str]:
    """The texts that begin within so many tokens, each ending in EOS."""
    found = []
    for text in texts:
        if tokens > 0:
            found.append(text)
        tokens -= len(tokenizer(text)["input_ids"]) + 1
    return found


@pytest.mark.thorough
def test_without_a_beginning_token_the_first_token_is_only_context(model, tokenizer, texts, accelerator):
    bare = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer)
    found = measure_text(model, bare, DocumentWindows(texts, bare, 16, 5), accelerator)
    for text, item in zip(texts, found["items"], strict=True):
        tokens = tokenizer(text)["input_ids"]
        assert item["tokens"] == max(0, len(tokens) - 1)
        assert item["nats"] == pytest.approx(sum(scored_once(model, tokens, 16, 5)), rel=1e-9)
    first = texts[0]
    begun = len(tokenizer.decode(tokenizer(first)["input_ids"][:1]))
    assert found["items"][0]["bytes"] == len(first) - begun


def test_the_name_of_a_special_token_in_a_text_is_encoded_as_text(tokenizer):
    windows = DocumentWindows(["a<|endoftext|>b"], tokenizer, 64, 32)
    assert windows.rows[0][0].tokens.count(tokenizer.eos_token_id) == 1, "the beginning alone"
    assert windows.bytes.tolist() == [15]


# Intervals and the modules


def test_intervals_are_over_documents(model, tokenizer, texts, accelerator):
    """Student's t for a ratio of sums, from the residuals of the documents, widened for their unequal sizes."""
    found = measure_text(model, tokenizer, DocumentWindows(texts, tokenizer, 33, 16), accelerator)
    nats, sizes = (np.array([item[name] for item in found["items"]]) for name in ("nats", "bytes"))
    ratio, shares = nats.sum() / sizes.sum(), sizes / sizes.sum()
    influence = (nats - ratio * sizes) / sizes.sum()
    error = math.sqrt((influence**2 / (1 - shares)).sum()) / math.log(2)
    low, value, high = (found[f"bits_per_byte{end}"] for end in ("_low", "", "_high"))
    assert value == pytest.approx(ratio / math.log(2))
    assert high - value == pytest.approx(value - low)
    # Of as many documents of one size the half-width would be the quantile of Student's t.
    assert 1.0 < (high - value) / (t_quantile(0.95, len(texts) - 1) * error) < 2.0
    assert found["perplexity_low"] < found["perplexity"] < found["perplexity_high"]
    assert found["level"] == 0.95


def test_a_single_text_has_no_interval(model, tokenizer, texts, accelerator):
    found = measure_text(model, tokenizer, DocumentWindows(texts[:1], tokenizer, 33, 16), accelerator)
    bounds = ("perplexity_low", "perplexity_high", "bits_per_byte_low", "bits_per_byte_high", "standard_error")
    assert [found[name] for name in bounds] == [None] * 5


@pytest.mark.thorough
def test_the_metric_perplexity_gives_the_same_result(model, tokenizer, texts, accelerator, tmp_path):
    settings = {"window": 24, "stride": 12}
    found = load_metric("perplexity").compute(predictions=texts, model=model, tokenizer=tokenizer, **settings)
    assert found == measure_text(
        model, tokenizer, DocumentWindows(texts, tokenizer, 24, 12), accelerator, batch_size=8
    )
    for saved in (model, tokenizer):
        saved.save_pretrained(tmp_path)
    named = load_metric("perplexity").compute(predictions=texts, model=str(tmp_path), **settings)
    assert named["perplexity"] == pytest.approx(found["perplexity"], rel=1e-6)
    with pytest.raises(InputError, match="pass the tokenizer too"):
        load_metric("perplexity").compute(predictions=texts, model=model)


# What is refused


@pytest.mark.parametrize(
    ("given", "window", "stride", "said"),
    [
        (["a"], 1, 1, "length=1: a window needs at least 2 tokens"),
        (["a"], 8, 9, "stride=9: expected 1 to 8"),
        (["a"], 8, 0, "stride=0: expected 1 to 8"),
        (["", ""], 8, 4, "no token to score in 2 texts"),
        ([], 8, 4, "no token to score in 0 texts"),
        (["a", None], 8, 4, "text 1: expected text, found None"),
        (["\ud800"], 8, 4, "text 0: half a surrogate pair"),
    ],
)
def test_wrong_windows_are_refused(tokenizer, given, window, stride, said):
    with pytest.raises(InputError, match=said):
        DocumentWindows(given, tokenizer, window, stride)


def test_windows_longer_than_the_model_takes_are_refused(model, tokenizer, accelerator):
    windows = DocumentWindows(["a"], tokenizer, LIMIT + 2, 4)
    with pytest.raises(InputError, match=f"window={LIMIT + 2}: the model takes {LIMIT} tokens; set window to 33 or"):
        measure_text(model, tokenizer, windows, accelerator)
