"""The tokens that a model takes: how many at once, which ones, and which one begins a text."""

from typing import TYPE_CHECKING

from ..errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def check_vocabulary(model: "PreTrainedModel", needed: int, kind: str) -> None:
    """Raise [`InputError`] if the model has fewer tokens than the data."""
    if model.config.vocab_size < needed:
        raise InputError(
            f"the model has {model.config.vocab_size} tokens, but the data have {needed} {kind}; evaluate it on data "
            "like those it was trained on"
        )


def context_limit(model: "PreTrainedModel") -> int | None:
    """The maximum number of tokens that a model takes, from its configuration; None if that does not say."""
    config = model.config.get_text_config()
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length")
    limits = [getattr(config, name, None) for name in names]
    return min((limit for limit in limits if isinstance(limit, int) and limit > 0), default=None)


def check_context(model: "PreTrainedModel", length: int, what: str) -> None:
    """Raise [`InputError`] if a row of `length` tokens, of which the last is not read, is too long for the model."""
    limit = context_limit(model)
    if limit is not None and length - 1 > limit:
        raise InputError(
            f"{what} are {length} tokens, but the model reads at most {limit}; use shorter sequences or another model"
        )


def beginning_token(tokenizer: "PreTrainedTokenizerBase") -> tuple[int | None, str | None]:
    """The token to put before a text, and its kind: BOS, else EOS, else None.

    ```python
    >>> from hmm_datasets.text.tokenizers.bpe import train_bpe
    >>> beginning_token(train_bpe(["low lower lowest"] * 9, 265, show_progress=False))
    (0, 'BOS')

    ```
    """
    for kind in ("BOS", "EOS"):
        token = getattr(tokenizer, f"{kind.lower()}_token_id")
        if token is not None:
            return token, kind
    return None, None
