"""Small models of several architectures, for experiments and for comparisons between architectures."""

from typing import TYPE_CHECKING

from hmm_datasets.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

ARCHITECTURES = ("llama", "lstm", "gru", "mamba")
"""A transformer, two recurrent networks, and a state-space model."""

_HEAD_WIDTH = 32


def architecture_config(
    kind: str,
    *,
    vocab_size: int,
    length: int,
    width: int,
    layers: int,
    heads: int | None = None,
    bos_token_id: int | None = None,
) -> "PreTrainedConfig":
    """The configuration of a small model.

    A Llama has feed-forward layers of 4 times its width in three matrices; a Mamba has states of 16 numbers for each
    of twice its width channels.

    Args:
        kind (`str`): one of `ARCHITECTURES`.
        vocab_size (`int`): `V`.
        length (`int`): maximum number of tokens per row.
        width (`int`): `D`.
        layers (`int`): number of layers.
        heads (`int`, *optional*): attention heads of a Llama; by default as many as have 32 features each.
        bos_token_id (`int`, *optional*): the beginning token.

    Raises:
        `InputError`: there is no such architecture, or no heads of a Llama with this width.

    ```python
    >>> architecture_config("gru", vocab_size=8, length=16, width=64, layers=2).cell
    'gru'

    ```
    """
    from recurrent import RecurrentConfig
    from transformers import LlamaConfig, MambaConfig

    heads = max(1, width // _HEAD_WIDTH) if heads is None else heads
    if kind not in ARCHITECTURES or heads < 1 or width < 2 or width % (2 * heads):
        raise InputError(
            f"architecture {kind!r} of width {width} with {heads} heads; expected one of {', '.join(ARCHITECTURES)}, "
            "and an even number of features per head"
        )
    shared = {"vocab_size": vocab_size, "hidden_size": width, "num_hidden_layers": layers, "use_cache": False}
    shared |= {"bos_token_id": bos_token_id, "eos_token_id": None, "pad_token_id": None}
    if kind == "llama":
        sizes = {"num_attention_heads": heads, "num_key_value_heads": heads, "intermediate_size": 4 * width}
        return LlamaConfig(**shared, **sizes, max_position_embeddings=length, initializer_range=width**-0.5)
    if kind == "mamba":
        return MambaConfig(**shared, state_size=16, tie_word_embeddings=False)
    return RecurrentConfig(**shared, cell=kind)
