"""Sentences and words of ten and more scripts."""

import unicodedata

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from hmm_datasets.errors import InputError
from hmm_datasets.text.tokenizers.sentences import as_text, fold, is_mark, split_sentences
from hmm_datasets.text.tokenizers.words import build_word_corpus

# Each has a plain sentence, a question, and another plain sentence.
TEXTS = {
    "Latin": ("L’été arrive. Où es-tu ? Je suis là.", ["l'été arrive .", "je suis là ."]),
    "Greek": (
        "Ο Σίσυφος ΉΡΘΕ. Πού είσαι! Είμαι εδώ. Γιατί; Να. Πού\u037e Εδώ.",
        ["ο σίσυφος ήρθε .", "είμαι εδώ .", "να .", "εδώ ."],
    ),
    "Cyrillic": ("Кот спит. Где он? Ёж ещё ест.", ["кот спит .", "ёж ещё ест ."]),
    "Arabic": ("القِطَّةُ نائمة. أين هي؟ هي هنا.", ["القِطَّةُ نائمة .", "هي هنا ."]),
    "Persian": ("گربه می‌خوابد. کجاست؟ او این‌جاست.", ["گربه می‌خوابد .", "او این‌جاست ."]),
    "Urdu": ("بلی سوتی ہے۔ وہ کہاں ہے؟ وہ یہاں ہے۔", ["بلی سوتی ہے ۔", "وہ یہاں ہے ۔"]),
    "Hebrew": ("צה״ל צבא. איפה הוא? הוא כאן.", ["צה״ל צבא .", "הוא כאן ."]),
    "Devanagari": ("बिल्ली बैठी है। वह कहाँ है? वह यहाँ है।", ["बिल्ली बैठी है ।", "वह यहाँ है ।"]),
    "Tamil": ("பூனை தூங்குகிறது. அது எங்கே? அது இங்கே.", ["பூனை தூங்குகிறது .", "அது இங்கே ."]),
    "Armenian": ("Սա թեստ է։ Ինչպե՞ս ես։ Լավ եմ։", ["սա թեստ է ։", "ինչպե՞ս ես ։", "լավ եմ ։"]),
    "Ethiopic": ("ድመቷ ተኝታለች። የት ነች፧ እዚህ፡ነች።", ["ድመቷ ተኝታለች ።", "እዚህ ነች ።"]),
    "Hangul": ("고양이가 잔다. 어디 있니? 여기 있다.", ["고양이가 잔다 .", "여기 있다 ."]),
    "Han": ("猫坐在垫子上。它在哪里？它在这里。", ["猫 坐 在 垫 子 上 。", "它 在 这 里 。"]),
    "Japanese": ("ネコはコーヒーを飲む。どこ？ここです。", ["ネコ は コーヒー を 飲 む 。", "こ こ で す 。"]),
    "Thai": ("แมวนอน มันอยู่ไหน?\nมันอยู่ที่นี่", ["แ ม ว น อ น .", "มั น อ ยู่ ที่ นี่ ."]),
    "Khmer": ("ឆ្មាដេក។ វានៅឯណា? វានៅទីនេះ។", ["ឆ្មា ដេ ក ។", "វា នៅ ទី នេះ ។"]),
    "Burmese": ("ကြောင်အိပ်။ ဘယ်မှာလဲ? ဒီမှာ။", ["ကြော င် အိ ပ် ။", "ဒီ မှာ ။"]),
    "Tibetan": ("ཞི་མི་ཉལ། གང་དུ? འདིར་ཡོད།", ["ཞི མི ཉལ །", "འདིར ཡོད །"]),
}


WITHOUT_RULES = {"Thai", "Khmer", "Burmese"}
"""Scripts whose words Unicode's rules leave to a dictionary."""


def plain(text: str, **rules) -> list[str]:
    return [" ".join(words) for words, lack in split_sentences(text, **rules) if lack is None]


def words(text: str) -> list[str]:
    return [word for sentence, _ in split_sentences(text) for word in sentence if not is_mark(word)]


@pytest.mark.outside(
    "https://github.com/nltk/nltk/issues/2409",
    "words of Hindi, Tamil and Sinhala, not their letters",
    "words keep their combining marks, in eighteen scripts",
)
@pytest.mark.outside(
    "https://github.com/codelibs/fess/issues/3228",
    "sentences that end in the marks of Hindi, Urdu, Khmer, Burmese, Armenian, Tibetan and Ethiopic",
    "they end there; Thai sentences, which have no mark, end at white space",
)
@pytest.mark.outside(
    "https://github.com/miso-belica/sumy/pull/169",
    "Greek questions that end in `;`, which its splitter adds to that of NLTK",
    "they end there, also where U+037E is written, which NFC makes `;`",
)
@pytest.mark.parametrize("script", TEXTS)
@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_sentences_and_words_of_a_script_in_either_normal_form(script, form):
    text, expected = TEXTS[script]
    assert plain(unicodedata.normalize(form, text)) == [unicodedata.normalize("NFC", line) for line in expected]


@pytest.mark.thorough
@settings(max_examples=300, deadline=None)
@given(
    st.text(
        # Letters that Python's Unicode has not may have small ones in that of tokenizers, such as U+16EA0.
        st.one_of(
            st.characters(exclude_categories=["Cs", "Cn"]), st.sampled_from("\u00ad’ΣIİẞK\u0301\u0307\u0345ÅJ\u030c")
        )
    )
)
def test_text_that_was_folded_is_folded(text):
    """Soft hyphens were left out, and letters lower-cased, after the text was composed."""
    folded = fold(text)
    assert fold(folded) == folded == unicodedata.normalize("NFC", folded)


@pytest.mark.parametrize("word", ["cafe\u00ad\u0301", "J\u030cx", "W\u030a\u00ada"])
def test_a_corpus_has_no_word_in_two_forms(word):
    """A vocabulary with café twice refused its own corpus. Case folding must be followed by composition:
    https://github.com/w3c/charmod-norm/issues/172."""
    plain = fold(word)
    corpus = build_word_corpus([f"the {word} {plain}. a {plain} {word}."], 4, 0.0)
    assert sorted(corpus.vocabulary) == sorted({".", "the", "a", plain})
    symbols = corpus.train[0]
    assert symbols[1] == symbols[2]


@pytest.mark.parametrize("script", sorted(TEXTS.keys() - WITHOUT_RULES - {"Tibetan"}))
def test_words_are_those_of_the_default_rules_of_unicode(script):
    """As `regex` implements them."""
    text = fold(TEXTS[script][0])
    assert words(text) == [word for word in regex.split(r"(?V1w)\b", text) if word and not is_mark(word)]


@pytest.mark.parametrize("script", ["Thai", "Khmer"])
def test_without_a_segmenter_words_of_scripts_without_spaces_are_grapheme_clusters(script):
    text = fold(TEXTS[script][0])
    assert words(text) == [cluster for cluster in regex.findall(r"\X", text) if not is_mark(cluster)]


@pytest.mark.outside(
    "https://github.com/explosion/spaCy/issues/5911",
    "Armenian and Amharic sentences, and questions in Arabic and Hebrew, cut where they end",
    "cut at ։ ። and ؟, and the Armenian mark of a question stays in its word",
)
@pytest.mark.outside(
    "https://github.com/nipunsadvilkar/pySBD/issues/113",
    "an Arabic sentence that is not cut at its comma",
    "it is one sentence, kept if the comma is named in marks",
)
def test_marks_inside_sentences_are_words_if_they_are_named():
    text = "هذه تجربة، للغة العربية. The cat, she sat; it ran. The cat, she sat."
    assert plain(text) == []
    assert plain(text, marks=",،") == ["هذه تجربة ، للغة العربية .", "the cat , she sat ."]
    corpus = build_word_corpus([text], 9, 0.0, marks=",،;")
    assert corpus.vocabulary[:3] == (".", ",", "cat")
    assert (len(corpus.train), corpus.dropped) == (2, {"a rarer word": 1})
    assert as_text(["the", "cat", ",", "she", "sat", "."]) == "the cat, she sat."


@pytest.mark.outside(
    "https://github.com/OpenNMT/Tokenizer/issues/35",
    "Chinese words cut by jieba",
    "any segmenter can be named, such as jieba:lcut; its words are the symbols",
)
def test_a_segmenter_cuts_runs_of_scripts_without_spaces():
    """This one knows three words, as jieba would."""
    text = "小猫坐在垫子上。OpenAI的小猫在垫子上。"

    def segmenter(run: str) -> list[str]:
        return regex.findall("小猫|垫子|.", run)

    corpus = build_word_corpus([text], 8, 0.0, segmenter=segmenter)
    assert plain(text, segmenter=segmenter) == ["小猫 坐 在 垫子 上 。", "openai 的 小猫 在 垫子 上 。"]
    assert "小猫" in corpus.vocabulary
    with pytest.raises(InputError, match="expected words that together are the text"):
        plain(text, segmenter=lambda run: run[1:])
