"""The tokenizer of an HMM, so that tools that take text take its models: symbols by name, separated by white space.

Symbol `x` has id `x`. Its name is that in the HMM's vocabulary, or its number. White space in a name is written as a
percent sign and two hexadecimal digits per byte of UTF-8 (`New York` becomes `New%20York`), and so are the percent
signs of that name. If two names would then be the same, or one is empty, all symbols are written as their numbers.
Decoding puts a space before every name, so that the texts of two runs of tokens joined are the text of both, which is
how pipelines and streamers put a prompt and its continuation together.

A word that names no symbol is an error of the tokenizers library ("WordLevel error: Missing [UNK] token from the
vocabulary"), unless a symbol is called `<unk>`, which then stands for all of them.

For a model with a beginning-of-sequence token the tokenizer has it too, with id `E`, as `<bos>` (with underscores,
where that occurs in a name); it also pads, on the left. The tokenizer of a model that was trained on sequences after
that token puts it before every text. The one in the folder of an HMM does not, because the HMM starts without it, and
evaluation harnesses put it there themselves. There is no end-of-sequence token, because an HMM has none.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError
from ..files import atomic_file, write_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

TOKENIZER_NAME = "tokenizer.json"
TOKENIZER_SETTINGS_NAME = "tokenizer_config.json"

_UNKNOWN = "<unk>"


_MARK = "symbols_of_an_hmm"  # in `tokenizer_config.json`, which keeps settings that transformers does not know
_SETTINGS = {
    _MARK: True,
    "padding_side": "left",
    "clean_up_tokenization_spaces": False,
    "model_input_names": ["input_ids", "attention_mask"],
}


def written_names(vocabulary: Sequence[str] | None, num_symbols: int) -> list[str]:
    """How the symbols are written in text.

    ```python
    >>> written_names(["rain", "New York", "5%"], 3)
    ['rain', 'New%20York', '5%']
    >>> written_names(["a", "a"], 2)
    ['0', '1']

    ```
    """
    if vocabulary is not None:
        names = [_without_spaces(name) for name in vocabulary]
        if all(names) and len(set(names)) == len(names):
            return names
    return [str(symbol) for symbol in range(num_symbols)]


def write_tokenizer(
    folder: str | os.PathLike, vocabulary: Sequence[str] | None, num_symbols: int, *, bos: bool
) -> None:
    """Write the tokenizer's two files, each atomically.

    Args:
        folder (path): the folder of the HMM or of its causal language model.
        vocabulary (sequence of `str`, *optional*): names of the symbols.
        num_symbols (`int`): `E`.
        bos (`bool`): whether the model has a beginning-of-sequence token.
    """
    folder = Path(folder)
    tokenizer, special = _build(vocabulary, num_symbols, bos=bos, prepend_bos=False)
    with atomic_file(folder / TOKENIZER_NAME) as temporary:
        temporary.write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **special, **_SETTINGS}
    write_json(folder / TOKENIZER_SETTINGS_NAME, settings)


def hmm_tokenizer(
    vocabulary: Sequence[str] | None, num_symbols: int, *, bos: bool, prepend_bos: bool = False
) -> "PreTrainedTokenizerFast":
    """The tokenizer that [`write_tokenizer`] writes; with `prepend_bos` that of a model trained after that token.

    ```python
    >>> tokenizer = hmm_tokenizer(["sun", "rain"], 2, bos=True, prepend_bos=True)
    >>> tokenizer("rain sun")["input_ids"], tokenizer.decode([1, 0])
    ([2, 1, 0], ' rain sun')

    ```
    """
    from transformers import PreTrainedTokenizerFast

    tokenizer, special = _build(vocabulary, num_symbols, bos=bos, prepend_bos=prepend_bos)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special, **_SETTINGS)


def reads_symbols(tokenizer: "PreTrainedTokenizerBase") -> bool:
    """Whether a tokenizer is that of an HMM, which reads the names of symbols and no other text."""
    return bool(tokenizer.init_kwargs.get(_MARK))


def check_symbols(tokenizer: "PreTrainedTokenizerBase", text: str, what: str = "") -> None:
    """Check that a text consists of names of symbols, if the tokenizer is that of an HMM.

    Args:
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): any tokenizer; one of other text passes.
        text (`str`): the text.
        what (`str`, *optional*, defaults to `""`): opening words of the error, which say where the text stands.

    Raises:
        `InputError`: a word is no name; the message lists some that are.
    """
    if not reads_symbols(tokenizer):
        return
    names = tokenizer.get_vocab()
    unknown = [] if _UNKNOWN in names else [word for word in text.split() if word not in names]
    if unknown:
        symbols = sorted(names.keys() - set(tokenizer.all_special_tokens), key=lambda name: names[name])
        some = ", ".join(symbols[:8]) + ", ..." * (len(symbols) > 8)
        raise InputError(f"{what}{unknown[0]!r} is not a symbol of this model; expected some of {some}")


def _build(
    vocabulary: Sequence[str] | None, num_symbols: int, *, bos: bool, prepend_bos: bool
) -> "tuple[Tokenizer, dict[str, str]]":
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

    names = written_names(vocabulary, num_symbols)
    tokenizer = Tokenizer(models.WordLevel({name: symbol for symbol, name in enumerate(names)}, unk_token=_UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Replace(Regex("^"), " ")
    if not bos:
        return tokenizer, {}
    token = "<bos>"
    while any(token in name for name in names):
        token = f"<{token[1:-1]}_>"
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
    if prepend_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{token} $A", pair=f"{token} $A {token} $B", special_tokens=[(token, num_symbols)]
        )
    return tokenizer, {"bos_token": token, "pad_token": token}


def _without_spaces(name: str) -> str:
    if not any(character.isspace() for character in name):
        return name
    return "".join(
        "".join(f"%{byte:02X}" for byte in character.encode())
        if character.isspace() or character == "%"
        else character
        for character in name
    )
