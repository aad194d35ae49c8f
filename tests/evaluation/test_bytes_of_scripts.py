"""Bytes and characters of documents in ten scripts are those of their text, whatever the tokenizer; -s prints them."""

import json
import math

import pytest
import torch
from accelerate import Accelerator
from character_tokenizer import character_tokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from hmm_datasets.data.windows import StridedWindows
from hmm_datasets.evaluation.document_windows import DocumentWindows
from hmm_datasets.evaluation.text import measure_text
from hmm_datasets.text.stream import TokenStream, tokenize_corpus
from hmm_datasets.text.tokenizers.bpe import train_bpe
from hmm_datasets.text.tokenizers.text_sizes import byte_characters, token_bytes, token_characters

DOCUMENTS = {
    "Latin": ("The small boat  waits at the quay.", "Zwölf Boxkämpfer — naïve façade."),
    "Greek": ("Η θάλασσα είναι ήρεμη σήμερα.", "Το παιδί διαβάζει ένα βιβλίο."),
    "Cyrillic": ("Мама мыла раму вчера вечером.", "Ёжик идёт в туманный лес."),
    "Arabic": ("القطة تنام تحت الشجرة الكبيرة.", "أين الطريق إلى السوق؟"),
    "Hebrew": ("הילד קורא ספר בגן.", "מחר נלך אל הים."),
    "Devanagari": ("बच्चा नदी के पास खेलता है।", "आज मौसम बहुत अच्छा है।"),
    "Han": ("小猫在窗台上睡觉。", "明天我们去河边钓鱼。"),
    "Hangul": ("아이가 강가에서 놀고 있다.", "오늘은 날씨가 맑습니다."),
    "Thai": ("เด็กอ่านหนังสือในสวน", "พรุ่งนี้เราจะไปทะเล"),
    "Emoji": ("Hi 👩‍👩‍👧 and 🇩🇪!", "🙂    ok\n\n👍🏽"),
}
TEXTS = [text for both in DOCUMENTS.values() for text in both]


def wrapped(backend: Tokenizer, beginning: bool = True, unknown: str | None = None) -> PreTrainedTokenizerFast:
    special = {"eos_token": "<eos>", "bos_token": "<eos>"} if beginning else {}
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token=unknown, **special)


def byte_tokens() -> list[str]:
    return [f"<0x{byte:02X}>" for byte in range(256)]


def llama_style(beginning: bool = True, with_space: bool = True) -> PreTrainedTokenizerFast:
    """BPE over characters with bytes for those that are unknown, which in these texts are all but some of Latin."""
    known = [*("▁" * with_space), *sorted(set("The small boat waits"))]
    names = ["<eos>", *byte_tokens(), *dict.fromkeys(name for name in known if name != " ")]
    names += ["th"] if {"t", "h"} <= set(names) else []
    backend = Tokenizer(
        models.BPE(
            {name: n for n, name in enumerate(names)}, [("t", "h")] if "th" in names else [], byte_fallback=True
        )
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return wrapped(backend, beginning)


def unigram() -> PreTrainedTokenizerFast:
    pieces = [("<eos>", 0.0), *((name, -9.0) for name in byte_tokens()), ("▁", -2.0)]
    pieces += [(letter, -3.0) for letter in sorted(set("".join(TEXTS[:8])) - {" "})]
    backend = Tokenizer(models.Unigram(pieces, 1, byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return wrapped(backend)


def word_piece() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.train_from_iterator(
        TEXTS[::2], trainers.WordPieceTrainer(vocab_size=400, special_tokens=["<eos>", "[UNK]"], show_progress=False)
    )
    return wrapped(backend, unknown="[UNK]")


def words() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.train_from_iterator(
        TEXTS[::2], trainers.WordLevelTrainer(special_tokens=["<eos>", "[UNK]"], show_progress=False)
    )
    return wrapped(backend, unknown="[UNK]")


def byte_level(white_space: bool = False, beginning: bool = True) -> PreTrainedTokenizerFast:
    tokenizer = train_bpe(TEXTS, 400, min_frequency=1, show_progress=False)
    if white_space:  # as in GPT-NeoX
        tokenizer.add_tokens([AddedToken(" " * count, special=False, normalized=True) for count in (2, 3, 4)])
    return tokenizer if beginning else PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer)


TOKENIZERS = {
    "byte-level BPE": byte_level,
    "byte-level BPE with added white space": lambda: byte_level(white_space=True),
    "byte-level BPE without BOS and EOS": lambda: byte_level(beginning=False),
    "characters": lambda: character_tokenizer(TEXTS),
    "characters, some unknown": lambda: character_tokenizer(TEXTS[::2]),
    "BPE with bytes as in Llama": llama_style,
    "BPE with bytes without BOS and EOS": lambda: llama_style(beginning=False),
    "BPE with bytes, none for a space": lambda: llama_style(with_space=False),
    "Unigram with bytes": unigram,
    "WordPiece in lower case": word_piece,
    "words": words,
}
LOSE = {"characters, some unknown", "BPE with bytes, none for a space", "WordPiece in lower case", "words"}
BARE = {name for name in TOKENIZERS if "without BOS" in name}


@pytest.mark.thorough
@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.outside(
    "https://github.com/karpathy/nanochat/pull/693",
    "bits per byte where a token is a part of a character, which decodes to U+FFFD",
    "bytes are those of the text, for ten scripts and eleven tokenizers, also of texts that are cut",
)
@pytest.mark.outside(
    "https://github.com/openai/parameter-golf/issues/897",
    "bits per byte of a SentencePiece model that spells a space as three bytes",
    "a space counts as one byte, however many tokens it takes",
)
def test_bytes_of_documents_are_those_of_their_text(name):
    tokenizer = TOKENIZERS[name]()
    windows = DocumentWindows(TEXTS, tokenizer, 5, 2)
    rows = []
    for text, found in zip(TEXTS, zip(windows.bytes, windows.characters, strict=True), strict=True):
        alone = first_token(tokenizer, text) if name in BARE else b""  # the first token is only context
        size = len(text.encode()) - len(alone)
        rows.append([size, found[0], len(text) - sum(byte & 0xC0 != 0x80 for byte in alone), found[1]])
    print(f"{name:40} {' '.join(f'{row[1]:3}/{row[0]:<3}' for row in rows)}")
    assert [row[0] for row in rows] == [row[1] for row in rows]
    assert [row[2] for row in rows] == [row[3] for row in rows]
    assert bool(windows.lost.describe()) == (name in LOSE), windows.lost.describe()


def first_token(tokenizer, text: str) -> bytes:
    """The bytes of the first token of a text, by definition: those that its name spells."""
    token = tokenizer.convert_ids_to_tokens(tokenizer(text, add_special_tokens=False)["input_ids"][0])
    if token == "▁":  # put before the text
        return b""
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    if backend["model"].get("byte_fallback"):
        return bytes([int(token[3:5], 16)]) if token.startswith("<0x") else token.encode()
    return bytes(byte_characters().index(letter) for letter in token)


@pytest.mark.thorough
@pytest.mark.parametrize("name", TOKENIZERS)
def test_bytes_of_the_first_windows_grow_to_those_of_the_text(name):
    windows = DocumentWindows(TEXTS, TOKENIZERS[name](), 5, 2)
    parts = [windows.first(count) for count in range(1, len(windows) + 1)]
    sizes = [int(part.bytes.sum()) for part in parts]
    assert sizes == sorted(sizes)
    assert sizes[-1] == windows.bytes.sum()
    if name == "byte-level BPE":  # a token is bytes, whatever they are a part of
        known = token_bytes(TOKENIZERS[name]())
        for part, size in zip(parts, sizes, strict=True):
            scored = [token for rows in part.rows for row in rows for token in row.tokens[row.first :]]
            assert known[scored].sum() == size


@pytest.fixture(scope="module")
def accelerator():
    return Accelerator(cpu=True)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["byte-level BPE with added white space", "characters, some unknown"])
@pytest.mark.outside(
    "https://github.com/ggml-org/llama.cpp/issues/7111",
    "perplexities that compare between models with different vocabularies",
    "bits per byte and per character of the same text, with what a tokenizer loses",
)
def test_a_stream_of_texts_has_the_bits_per_byte_and_per_character_of_the_texts(name, accelerator, tmp_path, capsys):
    tokenizer = TOKENIZERS[name]()
    tokenize_corpus(TEXTS, tokenizer, tmp_path / "tokens", "scripts", show_progress=False)
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes)).eval()
    stream = StridedWindows(TokenStream(tmp_path / "tokens"), 24, 10, by_document=True)
    found = measure_text(model, tokenizer, stream, accelerator)
    assert [item["bytes"] for item in found["items"]] == [len(text.encode()) for text in TEXTS]
    bits = sum(item["nats"] for item in found["items"]) / math.log(2)
    assert found["bits_per_byte"] == pytest.approx(bits / sum(len(text.encode()) for text in TEXTS))
    if name in LOSE:
        assert found["bits_per_character"] is None, "the characters of unknown bytes are not known"
    else:
        assert found["bits_per_character"] == pytest.approx(bits / sum(map(len, TEXTS)))
    printed = capsys.readouterr().err
    assert ("tokens stand for something unknown" in printed) == (name in LOSE) == bool(found["lost_text"])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("normalizer", "words"),
    [
        (
            normalizers.NFC(),
            "its normalizer (NFC) changes texts before they are encoded; tokens stand for 1 bytes less",
        ),
        (normalizers.Lowercase(), "its normalizer (Lowercase) changes texts"),
    ],
)
def test_a_stream_of_changed_texts_says_so(normalizer, words, accelerator, tmp_path, capsys):
    tokenizer = byte_level()
    tokenizer.backend_tokenizer.normalizer = normalizer
    tokenize_corpus(["Cafe\u0301", "A"], tokenizer, tmp_path / "tokens", "words", show_progress=False)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes)).eval()
    stream = StridedWindows(TokenStream(tmp_path / "tokens"), 24, 10, by_document=True)
    measure_text(model, tokenizer, stream, accelerator)
    assert words in capsys.readouterr().err


def test_what_a_tokenizer_loses_is_said_with_its_count(accelerator, capsys):
    tokenizer = word_piece()
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes)).eval()
    found = measure_text(model, tokenizer, DocumentWindows(["Hello THERE"], tokenizer, 16, 8), accelerator)
    assert (
        "6 of 11 characters, in 1 of 1 documents, are not in the decoded text (such as 'H' 'E'"
        in capsys.readouterr().err
    )
    assert found["lost_text"]["characters"] == 6


def test_characters_of_tokens_are_those_of_the_text():
    tokenizer = byte_level(white_space=True)
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        assert (token_bytes(tokenizer)[ids].sum(), token_characters(tokenizer)[ids].sum()) == (
            len(text.encode()),
            len(text),
        )
