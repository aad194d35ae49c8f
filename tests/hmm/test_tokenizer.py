"""The tokenizer in the folder of an HMM: names come back exactly, and nothing unknown passes."""

import json

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline
from word_level import word_level_tokenizer

from hmm_datasets.errors import InputError
from hmm_datasets.files import digest_problems
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.causal_lm import HMMForCausalLM
from hmm_datasets.hmm.model import HMM
from hmm_datasets.hmm.tilted import TiltedHMM
from hmm_datasets.hmm.tokenizer import check_symbols, hmm_tokenizer, reads_symbols
from hmm_datasets.training.pretrained import tokenizer_of


def uniform(names) -> HMM:
    return HMM(transition=[[1.0]], emission=[[1 / len(names)] * len(names)], vocabulary=names)


def texts(tokenizer, size: int) -> list[str]:
    return [tokenizer.decode([symbol]).removeprefix(" ") for symbol in range(size)]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("names", "written"),
    [
        (["sun", "rain", "."], ["sun", "rain", "."]),
        (["New York", "50%", "a%20b", "\t"], ["New%20York", "50%", "a%20b", "%09"]),
        (["100% sure", "☂️", "naïve", "##ing"], ["100%25%20sure", "☂️", "naïve", "##ing"]),
        (["n't", "do", "!", "'s"], ["n't", "do", "!", "'s"]),
        (["\u00a0", "\u2028x", "a\x1cb"], ["%C2%A0", "%E2%80%A8x", "a%1Cb"]),
        (["A", "a", "Ａ", "<bos>"], ["A", "a", "Ａ", "<bos>"]),
        (["a b", "a%20b"], ["0", "1"]),
        (["", "x"], ["0", "1"]),
    ],
)
@pytest.mark.parametrize("bos", [False, True])
def test_symbols_are_written_by_name_and_read_back(names, written, bos, tmp_path):
    hmm = uniform(names)
    if bos:
        HMMForCausalLM.from_hmm(hmm, bos_token_id=len(names)).save_pretrained(tmp_path)
    else:
        hmm.save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert len(tokenizer) == len(names) + bos
    assert texts(tokenizer, len(names)) == written
    symbols = [*range(len(names)), *reversed(range(len(names)))] * 2
    text = " ".join(written[symbol] for symbol in symbols)
    assert tokenizer(text, add_special_tokens=False)["input_ids"] == symbols
    assert tokenizer("\n".join(text.split(" ")), add_special_tokens=False)["input_ids"] == symbols
    assert tokenizer.decode(symbols) == f" {text}" == tokenizer.decode(symbols[:3]) + tokenizer.decode(symbols[3:])
    assert tokenizer(f" {text}", add_special_tokens=False)["input_ids"] == symbols
    assert tokenizer(text)["input_ids"] == symbols
    assert (
        hmm_tokenizer(names, len(names), bos=bos, prepend_bos=bos)(text)["input_ids"] == [len(names)] * bos + symbols
    )
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (len(names) if bos else None, None)
    assert hmm_tokenizer(names, len(names), bos=bos)(text)["input_ids"] == tokenizer(text)["input_ids"]


def test_symbols_without_names_are_numbers(tmp_path):
    processes.random(2, 12, seed=1).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer("0 11 3")["input_ids"] == [0, 11, 3]


def test_a_word_that_names_no_symbol_is_an_error_unless_a_symbol_stands_for_it(tmp_path):
    uniform(["a", "b"]).save_pretrained(tmp_path / "without")
    with pytest.raises(Exception, match="Missing \\[UNK\\] token"):
        AutoTokenizer.from_pretrained(tmp_path / "without")("a c")
    uniform(["a", "<unk>"]).save_pretrained(tmp_path / "with")
    assert AutoTokenizer.from_pretrained(tmp_path / "with")("a c")["input_ids"] == [0, 1]


def test_tilted_hmms_bring_it_too(tmp_path):
    TiltedHMM(uniform(["sun", "rain"]), [0, 1], 1.0, 4).save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path)("rain sun")["input_ids"] == [1, 0]


def test_a_batch_is_padded_on_the_left_with_the_beginning_token_hidden(tmp_path):
    hmm = processes.mess3(0.15, 0.6)
    HMMForCausalLM.from_hmm(hmm, bos_token_id=3).save_pretrained(tmp_path)
    tokenizer, model = AutoTokenizer.from_pretrained(tmp_path), AutoModelForCausalLM.from_pretrained(tmp_path)
    batch = tokenizer(["0 1 2 0", "1"], padding=True, return_tensors="pt")
    assert batch["input_ids"].tolist() == [[0, 1, 2, 0], [3, 3, 3, 1]]
    assert batch["attention_mask"].tolist() == [[1] * 4, [0, 0, 0, 1]]
    last = model(**batch).logits[:, -1, :3].exp()
    for row, symbols in zip(last, ([0, 1, 2, 0], [1]), strict=True):
        assert row.tolist() == pytest.approx(hmm.next_token_probs([symbols])[0, -1].tolist(), abs=1e-12)


def test_a_pipeline_takes_the_folder_as_it_is(tmp_path):
    weather = HMM(
        transition=[[0, 1], [1, 0]], emission=[[1, 0], [0, 1]], vocabulary=["New York", "rain"], start=[1, 0]
    )
    weather.save_pretrained(tmp_path)
    generate = pipeline("text-generation", model=str(tmp_path))
    (drawn,) = generate("New%20York", max_new_tokens=3, do_sample=True)
    assert drawn["generated_text"] == "New%20York rain New%20York rain"


def test_it_is_told_apart_from_tokenizers_of_text_when_saved_again_too(tmp_path):
    hmm_tokenizer(None, 3, bos=True, prepend_bos=True).save_pretrained(tmp_path / "again")
    again = AutoTokenizer.from_pretrained(tmp_path / "again")
    assert again("1 0")["input_ids"] == [3, 1, 0]
    assert again("")["input_ids"] == [3]
    assert reads_symbols(again)
    assert tokenizer_of(str(tmp_path / "again")) is None
    word_level_tokenizer(["a", "b"]).save_pretrained(tmp_path / "words")
    assert tokenizer_of(str(tmp_path / "words")) is not None


def test_the_tokenizer_is_one_of_the_files_that_are_verified(tmp_path):
    processes.mess3(0.15, 0.6).save_pretrained(tmp_path)
    assert not digest_problems(tmp_path)
    path = tmp_path / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"]["vocab"] = {"2": 0, "1": 1, "0": 2}
    path.write_text(json.dumps(content))
    (problem,) = digest_problems(tmp_path)
    assert problem.startswith("tokenizer.json: SHA-256 is")


def test_a_text_of_names_passes_and_a_word_that_is_none_is_named():
    tokenizer = hmm_tokenizer(["sun", "rain"], 2, bos=False)
    check_symbols(tokenizer, "rain sun\nrain")
    with pytest.raises(InputError, match="'snow' is not a symbol of this model; expected some of sun, rain"):
        check_symbols(tokenizer, "rain snow hail")
