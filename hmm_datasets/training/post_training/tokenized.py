"""Tokens of conversations, preferences and prompts as trainers read them, and how many of them a model has room for.

The plan of a run and its trainer use the same functions. What spells a control token in a message is encoded as text,
see `text.tokenizers.chat_encoding`. What does not fit is left out and printed with its count and first row numbers.
What the chat template leaves out is printed with its count.
"""

import contextlib
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from datasets import Dataset

from ...common_prefix import num_alike
from ...data.packing import IGNORED
from ...errors import InputError
from ...foreign.json import parse_json
from ...runtime import environment
from ...text.corpora.keys import weight_of
from ...text.corpora.local_files import without_fillers
from ...text.tokenizers.chat_encoding import encode_conversation, encode_marked
from ...text.tokenizers.chat_templates import marked_template
from ...text.tokenizers.unwritten_turns import print_unwritten
from ..model_configs import limit_length

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

    from ..settings import DPOSettings, SFTSettings

PAIR_COLUMNS = ("prompt_ids", "chosen_ids", "rejected_ids")
"""The columns of token ids of preference pairs."""

_OF_TRL = ("chat_template_kwargs", "image", "images")
"""Columns with which TRL prepares rows itself."""

_NAMED_ROWS = 5


def limit_rows(settings: "SFTSettings | DPOSettings", config: "PreTrainedConfig") -> None:
    """Limit the length of rows to the positions of a model; rank 0 prints a line if that changes it."""
    asked, settings.max_length = settings.max_length, limit_length(config, settings.max_length)
    if settings.max_length != asked and environment.rank() == 0:
        print(f"max_length {settings.max_length}, not {asked}: the model has {settings.max_length} positions")


def is_tokenized_here(rows: Any, columns: Sequence[str]) -> bool:
    """Whether rows are in memory and have lists of messages in these columns, and nothing that only TRL prepares."""
    if not isinstance(rows, Dataset) or not set(columns) <= set(rows.column_names) or not len(rows):
        return False
    first = rows[0]
    return not any(first.get(name) for name in _OF_TRL) and all(_is_conversation(first[name]) for name in columns)


def tokenized_conversations(
    rows: Dataset, tokenizer: "PreTrainedTokenizerBase", settings: "SFTSettings", *, packing: bool, name: str = "train"
) -> Dataset:
    """Conversations as tokens, cut to `max_length` unless they are packed later.

    Args:
        rows (`datasets.Dataset`): rows with `messages`, and optionally `weights` and `tools`.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): the tokenizer.
        settings ([`~hmm_datasets.training.settings.SFTSettings`]): the settings of the run.
        packing (`bool`): whether rows are packed later.
        name (`str`, *optional*, defaults to `"train"`): what the rows are, for messages.

    Returns:
        `datasets.Dataset`: rows with `input_ids` and `labels`, without those of which no label is left.

    Raises:
        `InputError`: a conversation has no label at all, or none has one within `max_length`.
    """
    template = marked_template(tokenizer) if settings.assistant_only_loss else None
    longest = None if packing else settings.max_length
    kept = slice(longest) if settings.truncation_mode == "keep_start" or longest is None else slice(-longest, None)
    types, unwritten = rows.features, Counter[str]()

    def tokenized(row: dict[str, Any], number: int) -> dict[str, list[int]]:
        row = without_fillers(row, types)
        messages = row["messages"]
        weights = row.get("weights")
        if weights is None:
            weights = [weight_of(message, message["role"], f"{name} row {number}") for message in messages]
        with _naming_row(name, number):
            encoding = encode_marked(tokenizer, messages, template, weights=weights, tools=_tools_of(row))
        unwritten.update(encoding.unwritten)
        labels = [token if said else IGNORED for token, said in zip(encoding.tokens, encoding.said, strict=True)]
        if not any(encoding.said):
            raise InputError(
                f"{name} row {number}: no word to learn from; expected a turn of the assistant, and a chat template "
                "that marks what it says"
            )
        return {"input_ids": encoding.tokens[kept], "labels": labels[kept]}

    encoded = rows.map(tokenized, with_indices=True, remove_columns=rows.column_names, desc=f"Tokenizing {name}")
    print_unwritten(name, unwritten)
    if longest is None:
        return encoded
    without = [number for number, labels in enumerate(encoded["labels"]) if all(label == IGNORED for label in labels)]
    remedy = f"raise max_length, now {longest}, where the model has more positions, or set truncation_mode to keep_end"
    return _without(encoded, without, f"{name} conversations have no word of the assistant within max_length", remedy)


def tokenized_pairs(
    rows: Dataset, tokenizer: "PreTrainedTokenizerBase", settings: "DPOSettings", *, name: str = "train"
) -> Dataset:
    """Preferences as tokens, without those whose prompt fills `max_length`, if its beginning is what is kept.

    Args:
        rows (`datasets.Dataset`): rows with `prompt`, `chosen` and `rejected` (messages), and optionally `tools`.
        tokenizer, settings, name: see [`tokenized_conversations`].

    Returns:
        `datasets.Dataset`: rows with `PAIR_COLUMNS`. A completion begins where both differ from the prompt alone, as
        in TRL.

    Raises:
        `InputError`: no prompt leaves room for a completion, or the chat template leaves out all turns of a kind.
    """
    types, unwritten = rows.features, Counter[str]()

    def tokenized(row: dict[str, Any], number: int) -> dict[str, list[int]]:
        row = without_fillers(row, types)
        tools = _tools_of(row)
        with _naming_row(name, number):
            prompt = encode_conversation(tokenizer, row["prompt"], add_generation_prompt=True, tools=tools)
            chosen, rejected = (
                encode_marked(tokenizer, row["prompt"] + row[side], None, tools=tools)
                for side in ("chosen", "rejected")
            )
        unwritten.update(chosen.unwritten | rejected.unwritten)
        sides = chosen.tokens, rejected.tokens
        shared = min(num_alike(prompt, side) for side in sides)
        return dict(zip(PAIR_COLUMNS, (prompt[:shared], *(side[shared:] for side in sides)), strict=True))

    encoded = rows.map(tokenized, with_indices=True, remove_columns=rows.column_names, desc=f"Tokenizing {name}")
    print_unwritten(name, unwritten)
    longest = settings.max_length
    if longest is None or settings.truncation_mode != "keep_start":
        return encoded
    without = [number for number, prompt in enumerate(encoded["prompt_ids"]) if len(prompt) >= longest]
    remedy = f"raise max_length, now {longest}, where the model has more positions, or set truncation_mode to keep_end"
    return _without(encoded, without, f"{name} pairs have a prompt that fills max_length", remedy)


def fitting_prompts(
    rows: Dataset,
    tokenizer: "PreTrainedTokenizerBase",
    config: "PreTrainedConfig",
    max_completion_length: int | None,
    *,
    name: str = "train",
) -> Dataset:
    """The prompts that leave room for a completion within the positions of a model.

    Args:
        rows (`datasets.Dataset`): rows with `prompt` (messages).
        config ([`~transformers.PreTrainedConfig`]): that of the model.
        max_completion_length (`int`, *optional*): tokens per completion.

    Raises:
        `InputError`: none does, or the chat template leaves out all turns of a kind.
    """
    positions, lengths = limit_length(config, None), []
    for number, prompt in enumerate(rows["prompt"]):
        with _naming_row(name, number):
            lengths.append(len(encode_conversation(tokenizer, prompt, add_generation_prompt=True)))
    if positions is None:
        return rows
    room = positions - (max_completion_length or 1)
    without = [number for number, length in enumerate(lengths) if length > room]
    remedy = (
        f"the model has {positions} positions, of which max_completion_length takes {max_completion_length}; lower it"
    )
    return _without(rows, without, f"{name} prompts leave no room for a completion", remedy)


def _without(rows: Dataset, numbers: Sequence[int], what: str, remedy: str) -> Dataset:
    """Rows without some of them, whose count and first numbers are printed; raises [`InputError`] if none is left."""
    if not numbers:
        return rows
    if len(numbers) == len(rows):
        raise InputError(f"all {len(rows):,} {what}; {remedy}")
    if environment.rank() == 0:
        named = ", ".join(map(str, numbers[:_NAMED_ROWS])) + (", ..." if len(numbers) > _NAMED_ROWS else "")
        print(f"{len(numbers):,} of {len(rows):,} {what} and are left out (rows {named}); {remedy}")
    left = set(numbers)
    return rows.select([number for number in range(len(rows)) if number not in left])


@contextlib.contextmanager
def _naming_row(name: str, number: int) -> Generator[None]:
    """A context whose errors name the row."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{name} row {number}: {error}") from None


def _is_conversation(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping) and "role" in value[0]


def _tools_of(row: Mapping[str, Any]) -> Any:
    tools = row.get("tools")
    return (parse_json(tools, "tools of a row") if isinstance(tools, str) and tools else tools) or None
