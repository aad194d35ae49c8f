"""Import of tokenizers: GPT-2's `vocab.json` and `merges.txt`, and tiktoken's rank files.

Both become byte-level BPE of the `tokenizers` library and keep their ids. Special tokens of this package that are
missing are added after the largest id, and the chat template is that of
[`~hmm_datasets.text.tokenizers.bpe.train_bpe`].

tiktoken merges the neighbours whose union has the minimum rank, whichever two they are; `tokenizers` needs a list of
pairs. The pair of a token is the last two parts that remain when its bytes are merged by rank. No other pair can form
the token: as long as nothing is merged across the ends of the token, its bytes inside a text are merged as they are
alone. So both libraries agree on every text, for any ranks. A token that is not reached by merging its bytes can occur
only as a whole piece of text (`ignore_merges`). Time is linear in the number of tokens and quadratic in their lengths:
a few seconds for 200,000 tokens.
"""

import base64
import binascii
import math
import os
import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import InputError
from ...files import read_json
from ...foreign.text_files import opened_text
from .bpe import SPECIAL_TOKENS, byte_level_pieces, chat_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def import_file(name: str | os.PathLike, split_pattern: str) -> "PreTrainedTokenizerFast | None":
    """The tokenizer of a file: of tiktoken if its name ends in `.tiktoken`, of GPT-2 if it is `vocab.json`.

    Args:
        name (`str` or `os.PathLike`): a file, or another name of a tokenizer, for which None is returned.
        split_pattern (`str`): that of [`import_tiktoken`]; GPT-2's own belongs to its `vocab.json`.
    """
    path = Path(name)
    if path.suffix == ".tiktoken":
        return import_tiktoken(path, split_pattern)
    return import_gpt2(path, path.with_name("merges.txt")) if path.name == "vocab.json" else None


def import_gpt2(vocab_path: str | os.PathLike, merges_path: str | os.PathLike) -> "PreTrainedTokenizerFast":
    """Read a tokenizer in the format of GPT-2.

    Args:
        vocab_path (`str` or `os.PathLike`):
            JSON object that maps tokens, with bytes written as GPT-2 does, to ids.
        merges_path (`str` or `os.PathLike`):
            Two tokens per line, separated by a space, in the order of merging.

    Returns:
        `transformers.PreTrainedTokenizerFast` with the chat template and the ids of the file.

    Raises:
        `InputError`: a file cannot be read, or the files do not match; the message gives the line.
    """
    vocabulary = read_json(vocab_path)
    ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else []
    if not ids or not all(isinstance(number, int) and number >= 0 for number in ids) or len(set(ids)) < len(ids):
        raise InputError(f"{vocab_path}: expected a JSON object that maps tokens to ids, each id once")
    merges = []
    for number, line in enumerate(_lines(merges_path), start=1):
        if not line or (number == 1 and line.startswith("#version")):
            continue
        pair = tuple(line.split(" "))
        if len(pair) != 2 or not {*pair, "".join(pair)} <= vocabulary.keys():
            raise InputError(f"{merges_path}:{number}: expected two tokens of {vocab_path} whose union is in it too")
        merges.append(pair)
    special = {token: vocabulary.pop(token) for token in SPECIAL_TOKENS if token in vocabulary}
    return _assemble(vocabulary, merges, special, "gpt2", str(vocab_path))


def import_tiktoken(
    path: str | os.PathLike,
    split_pattern: str,
    *,
    special_tokens: Mapping[str, int] | None = None,
) -> "PreTrainedTokenizerFast":
    """Read a rank file of tiktoken.

    Args:
        path (`str` or `os.PathLike`):
            File with a token in base64 and its rank per line (`.tiktoken`); the rank is the id.
        split_pattern (`str`):
            `"gpt2"` for `r50k_base`, `"gpt4"` for `cl100k_base`, or a regular expression (Oniguruma syntax).
        special_tokens (mapping of `str` to `int`, *optional*):
            Ids of the special tokens that belong to the ranks, for example `{"<|endoftext|>": 100257}`. Unused ids
            between them become `<|unused_ID|>`.

    Returns:
        `transformers.PreTrainedTokenizerFast` with the chat template.

    Raises:
        `InputError`: the file is not a rank file (the message gives the line), or the two libraries read the split
            pattern differently.
    """
    if re.search(r"\}\+", split_pattern):
        raise InputError(
            f"split_pattern={split_pattern!r}: {{n,m}}+ is possessive in tiktoken, but a repetition here; "
            "write {n,m}, or pass split_pattern='gpt4' for that of cl100k_base"
        )
    ranks = _read_ranks(path)
    special = dict(special_tokens or {})
    taken = set(ranks.values()) & set(special.values())
    if taken or len(set(special.values())) < len(special):
        raise InputError(
            f"special_tokens={special}: expected distinct ids that {path} does not use, found {sorted(taken)} there"
        )
    characters = byte_characters()

    def written(token: bytes) -> str:
        return "".join(characters[byte] for byte in token)

    pairs = {token: _last_pair(token, ranks) for token in sorted(ranks, key=ranks.__getitem__) if len(token) > 1}
    merges = [tuple(map(written, pair)) for pair in pairs.values() if pair]
    vocabulary = {written(token): rank for token, rank in ranks.items()}
    whole = None in pairs.values()
    return _assemble(vocabulary, merges, special, split_pattern, str(path), ignore_merges=whole)


def byte_characters() -> list[str]:
    """The character that stands for each byte in a byte-level vocabulary, as in GPT-2.

    A byte that is a printable character of Latin-1 is written as that character. The other 68 bytes, in order, are
    written as the characters from U+0100 on.

    ```python
    >>> byte_characters()[32:35]
    ['Ġ', '!', '"']

    ```
    """
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def _lines(path: str | os.PathLike) -> list[str]:
    with opened_text(Path(path)) as file:
        return file.read().split("\n")


def _read_ranks(path: str | os.PathLike) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        try:
            encoded, rank = line.split()
            token = base64.b64decode(encoded, validate=True)
            if not token or token in ranks or int(rank) < 0:
                raise ValueError
            ranks[token] = int(rank)
        except (ValueError, binascii.Error):
            raise InputError(f"{path}:{number}: expected a token in base64 and its rank, each token once") from None
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        raise InputError(f"{path}: no rank for the bytes {missing}; byte-level BPE needs all 256")
    if len(set(ranks.values())) < len(ranks):
        raise InputError(f"{path}: two tokens have the same rank")
    return ranks


def _last_pair(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes] | None:
    """The last two parts when the bytes of `token` are merged by rank; None if merging never reaches the token."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        unions = [ranks.get(left + right, math.inf) for left, right in pairwise(parts)]
        lowest = min(unions)
        if lowest == math.inf:
            return None
        index = unions.index(lowest)
        parts[index : index + 2] = [parts[index] + parts[index + 1]]
    return parts[0], parts[1]


def _assemble(
    vocabulary: dict[str, int],
    merges: list[tuple[str, str]],
    special: dict[str, int],
    split_pattern: str,
    origin: str,
    ignore_merges: bool = False,
) -> "PreTrainedTokenizerFast":
    """Make the tokenizer. Unused ids become placeholder tokens, so that ids are contiguous."""
    from tokenizers import AddedToken, Tokenizer, decoders, models

    used = {**vocabulary, **special}
    names = {number: token for token, number in used.items()}
    top = max(names)
    if top >= 2 * len(names) + 1000:
        raise InputError(f"{origin}: ids reach {top}, but there are only {len(names)} tokens")
    names |= {number: f"<|unused_{number}|>" for number in range(top) if number not in names}
    missing = [token for token in SPECIAL_TOKENS if token not in used]
    names |= dict(enumerate(missing, start=top + 1))
    # Ids up to the last token of the model belong to the model; larger ids belong to added tokens.
    size = max(vocabulary.values()) + 1
    model = models.BPE({names[number]: number for number in range(size)}, merges, ignore_merges=ignore_merges)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = byte_level_pieces(split_pattern)
    tokenizer.decoder = decoders.ByteLevel()
    ordered = [names[number] for number in sorted(names) if number >= size or names[number] in special]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in ordered])
    return chat_tokenizer(tokenizer)
