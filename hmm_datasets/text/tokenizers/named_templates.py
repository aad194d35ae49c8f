"""Chat templates by name, for base models whose tokenizer has none, or one that cannot be trained on.

- `default`: that of [`~hmm_datasets.text.tokenizers.bpe.train_bpe`], which ends a turn with `<|end|>`;
- `chatml`: ChatML, with declarations and calls of tools as in Hermes and Qwen, which ends a turn with `<|im_end|>`;
- `llama3`: Llama 3, as TRL trains it, which ends a turn with `<|eot_id|>`;
- `qwen2.5`, `qwen3`: Qwen 2.5 and 3, as TRL trains them, which end a turn with `<|im_end|>`.

All mark what the assistant says, so that the loss can be restricted to it. That of Qwen 3 writes an empty `<think>`
where there is no reasoning.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...errors import InputError
from .bpe import CHAT_TEMPLATE

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_ROLE_TOKEN = re.compile(r"<\|(system|user|assistant|tool)\|>")
CHATML = _ROLE_TOKEN.sub(
    "<|im_start|>\\1\n",
    # The line break after an answer is not the assistant's to say.
    CHAT_TEMPLATE.replace(
        "{{ '<|end|>' }}{% endgeneration %}", "{{ '<|im_end|>' }}{% endgeneration %}{{ '\n' }}"
    ).replace("<|end|>", "<|im_end|>\n"),
)
"""The default template with the tokens of ChatML."""
NAMES = ("default", "chatml", "llama3", "qwen2.5", "qwen3")


def template_of(tokenizer: "PreTrainedTokenizerBase") -> str | None:
    """The chat template of a tokenizer; of several with names, that named `default`.

    Raises:
        `InputError`: it has several, and none is named `default`.
    """
    template = tokenizer.chat_template
    if not isinstance(template, Mapping):
        return template
    if "default" not in template:
        raise InputError(
            f"{tokenizer.name_or_path or 'the tokenizer'}: expected one chat template, or one named default, found "
            f"{', '.join(template)}; set tokenizer.chat_template to one of them, and save it"
        )
    return template["default"]


def chat_template(name: str) -> str:
    """The chat template of a name.

    Raises:
        `InputError`: there is no such name.
    """
    if name not in NAMES:
        raise InputError(f"chat_template is {name!r}; expected one of {', '.join(NAMES)}")
    if name in ("default", "chatml"):
        return CHAT_TEMPLATE if name == "default" else CHATML
    from trl import chat_template_utils

    return getattr(chat_template_utils, f"{name.replace('.', '_')}_training_chat_template")


def set_chat_template(tokenizer: "PreTrainedTokenizerBase", name: str) -> list[str]:
    """Give a tokenizer the chat template of a name, and the special tokens that it writes.

    Args:
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): a tokenizer; changed in place.
        name (`str`): one of `NAMES`.

    Returns:
        `list[str]`: the tokens that were new. The model needs as many new embeddings, see
        [`~hmm_datasets.training.vocabulary.add_embeddings`].

    Raises:
        `InputError`: there is no such name.

    ```python
    >>> from hmm_datasets.text.tokenizers.bpe import train_bpe
    >>> tokenizer = train_bpe(["low lower lowest"] * 9, 266, show_progress=False)
    >>> set_chat_template(tokenizer, "chatml"), len(tokenizer)
    (['<|im_start|>', '<|im_end|>'], 268)

    ```
    """
    template = chat_template(name)
    written = list(dict.fromkeys(re.findall(r"<\|\w+\|>", template)))
    known = tokenizer.get_vocab()
    new = [token for token in written if token not in known]
    special = [*tokenizer.extra_special_tokens, *written]
    tokenizer.add_special_tokens({"extra_special_tokens": list(dict.fromkeys(special))})
    tokenizer.chat_template = template
    return new
