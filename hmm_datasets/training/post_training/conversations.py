"""Conversations and preferences to train on and to evaluate on."""

from typing import TYPE_CHECKING, Any

from transformers import AutoTokenizer, TrainingArguments

from ...errors import InputError
from ...runtime import environment
from ...text.corpora.conversations import learnt_turns
from ...text.corpora.loading import find_corpus, load_corpus, load_prompts
from ...text.corpora.local_files import shorten
from ...text.tokenizers.chat_templates import marked_template
from ...text.tokenizers.named_templates import NAMES, set_chat_template
from ..pretrained import load_pretrained
from ..sources import ConversationData, ConversationSettings, PreferenceData, PreferenceSettings
from ..template_time import fix_template_time
from .tokenized import tokenized_conversations, tokenized_pairs

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

    from ..settings import DPOSettings, SFTSettings


def conversation_splits(
    name: str,
    *,
    max_conversations: int | None = None,
    num_test_sequences: int = 256,
    test_fraction: float | None = None,
) -> tuple["Dataset", "Dataset | None"]:
    """Read the conversations to train on and to evaluate on; those without a turn of the assistant are left out.

    Args:
        name (`str`): a corpus, as [`~hmm_datasets.text.corpora.loading.load_corpus`] takes it.
        max_conversations (`int`, *optional*): maximum number to train on.
        num_test_sequences (`int`, *optional*, defaults to 256): maximum number to evaluate on.
        test_fraction (`float`, *optional*): see [`load_corpus`]; 0 for no evaluation.

    Returns:
        `tuple`: the rows to train on, and the rows to evaluate on. The latter is None if no held-out conversation has
        an answer; rank 0 then prints a line.

    Raises:
        `InputError`: no conversation to train on has an answer; the message shows the first row.
    """
    corpus, _ = find_corpus(name)
    if corpus.licence != "unknown" and environment.rank() == 0:
        print(f"{name}: licence {corpus.licence}")
    train = _answered(name, "train", test_fraction)
    if not len(train):
        rows = load_corpus(name, kind="conversations", streaming=False, test_fraction=test_fraction)
        first = rows[0]["messages"][0]
        raise InputError(
            f"{name}: row 0 of split 'train' has no turn of the assistant ({first['role']}: "
            f"{shorten(first['content'])}), and neither has any other of {len(rows):,} rows; expected answers to "
            "learn from"
        )
    if max_conversations is not None:
        train = train.select(range(min(len(train), max_conversations)))
    if test_fraction == 0:
        return train, None
    test = _answered(name, "test", test_fraction)
    return train, test.select(range(min(len(test), num_test_sequences))) if len(test) else None


def prompt_splits(
    name: str, *, max_prompts: int | None = None, num_test_sequences: int = 256, test_fraction: float | None = None
) -> tuple["Dataset", "Dataset | None"]:
    """Read the prompts to train on and to evaluate on, with all columns that rewards may use.

    Args:
        name (`str`): a corpus of conversations, or of prompts alone; see
            [`~hmm_datasets.text.corpora.loading.load_prompts`].
        max_prompts (`int`, *optional*): maximum number to train on.
        num_test_sequences (`int`, *optional*, defaults to 256): maximum number to evaluate on.
        test_fraction (`float`, *optional*): see [`load_corpus`]; 0 for no evaluation.

    Returns:
        `tuple`: the rows to train on, and the rows to evaluate on, None without held-out rows.

    Raises:
        `InputError`: the corpus cannot be read, or contains something else.
    """
    corpus, _ = find_corpus(name)
    if corpus.licence != "unknown" and environment.rank() == 0:
        print(f"{name}: licence {corpus.licence}")
    train = load_prompts(name, test_fraction=test_fraction)
    if max_prompts is not None:
        train = train.select(range(min(len(train), max_prompts)))
    if test_fraction == 0:
        return train, None
    try:
        test = load_prompts(name, split="test", test_fraction=test_fraction)
    except InputError as error:
        if "no documents in split 'test'" not in str(error):
            raise
        if environment.rank() == 0:
            print(f"{name}: so few prompts that none is held out; training continues without a held-out reward")
        return train, None
    return train, test.select(range(min(len(test), num_test_sequences)))


def prompts_of(rows: "Dataset", system: str | None = None) -> "Dataset":
    """The prompts of conversations: what precedes the first turn of the assistant to learn from, and it as the answer.

    A conversation that ends with another turn is a prompt as a whole, without an answer. A column `answer` of the rows
    is kept as it is, and so are all other columns.

    Args:
        rows (`datasets.Dataset`): rows with `messages`.
        system (`str`, *optional*): content of a system message to put first, in place of one that is there.

    Returns:
        `datasets.Dataset`: rows with `prompt` (messages), `answer` (`str`) unless no row has one, and the other
        columns.

    ```python
    >>> from datasets import Dataset
    >>> ask, say = {"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}
    >>> prompts_of(Dataset.from_list([{"messages": [ask, say], "level": 1}]))[0]
    {'level': 1, 'prompt': [{'role': 'user', 'content': '2 + 2?'}], 'answer': '4'}

    ```
    """
    has_answers = "answer" not in rows.column_names and any(learnt_turns(row) for row in rows)

    def prompt(row: dict[str, Any]) -> dict[str, Any]:
        messages = row["messages"]
        turn = next(iter(learnt_turns(row)), len(messages))
        asked = messages[:turn]
        if system is not None:
            asked = [
                {"role": "system", "content": system},
                *(message for message in asked if message["role"] != "system"),
            ]
        answer = {"answer": messages[turn]["content"] if turn < len(messages) else None} if has_answers else {}
        return {"prompt": asked} | answer

    return rows.map(prompt, remove_columns=[name for name in ("messages", "weights") if name in rows.column_names])


def preference_splits(chosen: PreferenceSettings) -> tuple["Dataset", "Dataset | None"]:
    """Read the preferences to train on and to evaluate on.

    Args:
        chosen ([`~hmm_datasets.training.sources.PreferenceSettings`]): the corpus, and how much of it.

    Returns:
        `tuple`: rows with `prompt`, `chosen` and `rejected` to train on, and to evaluate on; the latter is None if
        `test_fraction` is 0.

    Raises:
        `InputError`: the corpus cannot be read, or contains something else.
    """

    def split(part: str, count: int | None) -> "Dataset":
        rows = load_corpus(
            chosen.preferences, split=part, kind="preferences", streaming=False, test_fraction=chosen.test_fraction
        )
        return rows if count is None else rows.select(range(min(len(rows), count)))

    test = None if chosen.test_fraction == 0 else split("test", chosen.num_test_sequences)
    return split("train", chosen.max_preferences), test


def never_evaluate(settings: TrainingArguments) -> None:
    """Turn off every evaluation in the settings, because there are no held-out rows.

    Raises:
        `InputError`: the settings ask for the best checkpoint, which cannot be found without evaluations.
    """
    if settings.load_best_model_at_end:
        raise InputError("load_best_model_at_end needs held-out conversations with answers; leave it out, or add some")
    settings.eval_strategy = type(settings.eval_strategy)("no")
    settings.do_eval = settings.eval_on_start = False
    settings.evaluations_per_doubling = 0


def tokenizer_for_chat(
    chat: ConversationSettings, settings: "SFTSettings"
) -> tuple["PreTrainedTokenizerBase", list[str]]:
    """The tokenizer to fine-tune with, and the tokens that its chat template adds to those of the model.

    Raises:
        `InputError`: there is no tokenizer, no such template, or LoRA would have to train new embeddings.
    """
    tokenizer = load_pretrained(AutoTokenizer, chat.model)
    new = [] if chat.chat_template is None else set_chat_template(tokenizer, chat.chat_template)
    if new and settings.use_peft:
        raise InputError(
            f"use_peft: an adapter has no embeddings, but the chat template {chat.chat_template} needs the new tokens "
            f"{' '.join(new)}; choose a template whose tokens the model has, or train all weights"
        )
    return tokenizer, new


def conversation_data(chat: ConversationSettings, settings: "SFTSettings") -> ConversationData:
    """The conversations of a run, tokenized, cut and packed as TRL does it for training."""
    tokenizer, _ = tokenizer_for_chat(chat, settings)
    fix_template_time(settings.output_dir)
    if settings.assistant_only_loss:
        check_marks(tokenizer, chat.model)
    train, test = conversation_splits(
        chat.conversations,
        max_conversations=chat.max_conversations,
        num_test_sequences=chat.num_test_sequences,
        test_fraction=chat.test_fraction,
    )
    return ConversationData(
        prepared_rows(train, tokenizer, settings),
        tokenizer,
        max_length=settings.max_length,
        seed=settings.row_seed,
        test_rows=test,
    )


def preference_data(chosen: PreferenceSettings, settings: "DPOSettings") -> PreferenceData:
    """The preferences of a run, tokenized as TRL does it for training."""
    tokenizer = load_pretrained(AutoTokenizer, chosen.model)
    fix_template_time(settings.output_dir)
    train, test = preference_splits(chosen)
    return PreferenceData(
        tokenized_pairs(train, tokenizer, settings),
        tokenizer,
        max_length=settings.max_length,
        seed=settings.row_seed,
        test_rows=test,
    )


def prepared_rows(rows: "Dataset", tokenizer: "PreTrainedTokenizerBase", settings: "SFTSettings") -> "Dataset":
    """The rows that TRL's SFTTrainer makes of conversations, without a trainer.

    Args:
        rows (`datasets.Dataset`): conversations, with a column `messages` and optionally `tools`.
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): the tokenizer.
        settings ([`~hmm_datasets.training.settings.SFTSettings`]): the settings of the run.

    Returns:
        `datasets.Dataset`: rows with `input_ids` and `labels`; if packed, also `seq_lengths`.
    """
    from trl import pack_dataset

    rows = tokenized_conversations(rows, tokenizer, settings, packing=settings.packing)
    return pack_dataset(rows, settings.max_length, settings.packing_strategy) if settings.packing else rows


def check_marks(tokenizer: "PreTrainedTokenizerBase", name: str) -> None:
    """Raise [`InputError`] unless it is known which tokens of a conversation the assistant says.

    Its chat template has `generation` marks, TRL knows a marked version of it, or it is in ChatML.

    Args:
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): a tokenizer.
        name (`str`): name of the model, for the error.
    """
    remedy = f"choose another (--chat_template {' or '.join(NAMES)})"
    if tokenizer.chat_template is None:
        raise InputError(f"{name}: its tokenizer has no chat template, which conversations need; {remedy}")
    if marked_template(tokenizer) is None:
        raise InputError(
            f"{name}: its chat template has no {{% generation %}} marks around what the assistant says, TRL knows no "
            f"marked version of it, and none follows from it as from ChatML; add them, {remedy}, or train on all "
            "words (--assistant_only_loss false)"
        )


def _answered(name: str, split: str, test_fraction: float | None) -> "Dataset":
    """The conversations of a split that have a turn of the assistant; prints how many others there are."""
    rows = load_corpus(name, split=split, kind="conversations", streaming=False, test_fraction=test_fraction)
    numbers = [number for number, row in enumerate(rows) if learnt_turns(row)]
    missing = len(rows) - len(numbers)
    if missing == 0:
        return rows
    if environment.rank() == 0 and numbers:
        print(
            f"{name}: {missing:,} of {len(rows):,} conversations in split {split!r} have no turn of the assistant"
            f"{' to learn from' if 'weights' in rows.column_names else ''} and are left out"
        )
    elif environment.rank() == 0 and split == "test":
        print(
            f"{name}: none of the {missing:,} conversations in split {split!r} has a turn of the assistant; training "
            "continues without a held-out loss"
        )
    return rows.select(numbers)
