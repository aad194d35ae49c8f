"""Log-probabilities of the ends of token rows of unequal length, computed in batches on any number of ranks.

Rows of similar length run in one batch, padded on the right, where no scored token sees the padding. Only the logits
of scored tokens are computed, and only some of them at a time (see `label_scores`).

Rows of one group, for example the choices of a question, may have a common beginning. It is run once, padded on the
left as in generation, and its keys and values are reused for each row of the group. Because of rounding the results
then differ in their last digits from those of whole rows. Whole rows are run if the model's cache has more than plain
keys and values (sliding windows, state spaces), or if a trial gives wrong results.

The cost is that of the tokens of all rows, with common beginnings counted once. Memory is that of the model on a
batch, and for groups also a batch of keys and values. Batches are made before they are distributed over ranks, so no
result depends on the number of ranks.
"""

import inspect
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from ..data.windows import IGNORED
from .label_scores import logits_to_keep, score_labels
from .ranks import check_vocabulary

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

PADDING = 0  # any token of the vocabulary, since padding is not attended to


class Row(NamedTuple):
    """A row of tokens. Those from index `first` (1 or more) are scored, each given all tokens before it."""

    tokens: list[int]
    first: int


class ContinuationScores(NamedTuple):
    """The scores of `N` rows.

    Attributes:
        nats (`torch.Tensor` of shape `(N,)`): for each row the sum of -log P over its scored tokens.
        greedy (`torch.Tensor` of shape `(N,)`): for each row whether every scored token was the most likely one at its
            position.
    """

    nats: Float64[Tensor, "N"]
    greedy: Bool[Tensor, "N"]


def score_rows(
    model: "PreTrainedModel",
    groups: Sequence[Sequence[Row]],
    accelerator: "Accelerator | None" = None,
    *,
    batch_size: int,
    share: bool = True,
    progress: Callable[[int], Any] = lambda done: None,
) -> ContinuationScores:
    """Score rows, those of a group in one batch.

    Args:
        model ([`~transformers.PreTrainedModel`]): a causal language model on the device of the accelerator, in eval
            mode.
        groups (sequence of sequences of [`Row`]): the rows to score; the rows of a group may have a common beginning.
        accelerator ([`~accelerate.Accelerator`], *optional*): divides the batches among ranks; without it this process
            scores all of them alone.
        batch_size (`int`): rows per rank in one forward pass; more if a group is larger.
        share (`bool`, *optional*, defaults to `True`): run the common beginning of a group only once.
        progress (callable, *optional*): called with the number of groups that were just done.

    Returns:
        [`ContinuationScores`] of all rows, group after group, on the CPU of every rank.

    Raises:
        `InputError`: a token that the model does not have.
    """
    starts = [0, *accumulate(len(group) for group in groups)]
    check_vocabulary(model, 1 + max((max(row.tokens) for group in groups for row in group), default=0), "tokens")
    shared = [_shared_length(group) if share else 0 for group in groups]
    if any(shared) and not _can_reuse_cache(model):
        shared = [0] * len(groups)
    batches = _batches(groups, shared, batch_size)
    found = torch.zeros(2, starts[-1], dtype=torch.float64)
    ranks, rank = (1, 0) if accelerator is None else (accelerator.num_processes, accelerator.process_index)
    for first in range(0, len(batches), ranks):
        dealt = batches[first : first + ranks]
        for batch in dealt[rank : rank + 1]:
            columns = [column for index in batch for column in range(starts[index], starts[index + 1])]
            found[:, columns] = _run_batch(
                model, [groups[index] for index in batch], [shared[index] for index in batch]
            )
        progress(sum(map(len, dealt)))
    if accelerator is not None:
        # Each row was scored on one rank and is zero on the others, so the sum collects all scores.
        found = accelerator.reduce(found.to(accelerator.device), "sum").cpu()
    return ContinuationScores(found[0], found[1] == 1)


def context_limit(model: "PreTrainedModel") -> int | None:
    """The maximum number of tokens that a model takes, from its configuration; None if that does not say."""
    config = model.config.get_text_config()
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length")
    limits = [getattr(config, name, None) for name in names]
    return min((limit for limit in limits if isinstance(limit, int) and limit > 0), default=None)


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


def encode(tokenizer: "PreTrainedTokenizerBase", texts: list[str]) -> list[list[int]]:
    """The token ids of texts, without added special tokens; names of special tokens in a text are encoded as text."""
    if not texts:
        return []
    # verbose=False: no warning about texts that are too long for the model, since they are cut later.
    return tokenizer(texts, add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"]


def common_prefix(rows: Sequence[Sequence[int]]) -> int:
    """The length of the longest common prefix of all rows."""
    first, last = min(rows), max(rows)  # in lexicographic order, so their common prefix is that of all rows
    shortest = min(len(first), len(last))
    return next((index for index in range(shortest) if first[index] != last[index]), shortest)


def _shared_length(group: Sequence[Row]) -> int:
    """Number of tokens to run once for a group: common to all rows, and leaving each row a token that predicts."""
    if len(group) < 2:
        return 0
    return min(common_prefix([row.tokens for row in group]), *(row.first - 1 for row in group))


def _can_reuse_cache(model: "PreTrainedModel") -> bool:
    """Whether the cache has plain keys and values, and a trial with padding gives the same result as whole rows."""
    from transformers import DynamicCache, DynamicLayer

    tokens = [index % min(7, model.config.get_text_config().vocab_size) for index in range(16)]
    groups = [[Row(tokens[:size], size - 2), Row([*tokens[:size], 0], size - 2)] for size in (16, 6)]
    with torch.inference_mode():
        output = model(input_ids=torch.tensor([tokens], device=model.device), use_cache=True)
        cache = getattr(output, "past_key_values", None)
        if not isinstance(cache, DynamicCache) or any(type(layer) is not DynamicLayer for layer in cache.layers):
            return False
        reused = _run_shared(model, groups, [_shared_length(group) for group in groups])
        whole = _run(model, [row for group in groups for row in group])
    return torch.allclose(reused[0], whole[0], rtol=0.02, atol=0.05)  # wide enough for bfloat16; errors are larger


def _batches(groups: Sequence[Sequence[Row]], shared: list[int], batch_size: int) -> list[list[int]]:
    """Indices of groups of similar length, in batches, longest first so that running out of memory shows at once."""
    longest = [max((len(row.tokens) for row in group), default=0) for group in groups]
    order = sorted(range(len(groups)), key=lambda index: (shared[index] == 0, -longest[index], index))
    batches: list[list[int]] = []
    room = 0
    for index in order:
        if not groups[index]:
            continue
        if len(groups[index]) > room or (shared[index] == 0) != (shared[batches[-1][0]] == 0):
            batches.append([])
            room = batch_size
        batches[-1].append(index)
        room -= len(groups[index])
    return batches


def _run_batch(
    model: "PreTrainedModel", groups: Sequence[Sequence[Row]], shared: Sequence[int]
) -> Float64[Tensor, "2 B"]:
    with torch.inference_mode():
        if shared[0] > 0:
            return _run_shared(model, groups, shared).cpu()
        return _run(model, [row for group in groups for row in group]).cpu()


def _run(model: "PreTrainedModel", rows: Sequence[Row]) -> Float64[Tensor, "2 B"]:
    """Score whole rows."""
    tokens, mask = padded([row.tokens[:-1] for row in rows], model.device)
    return _forward_and_score(model, rows, input_ids=tokens, attention_mask=mask, use_cache=False)


def _run_shared(
    model: "PreTrainedModel", groups: Sequence[Sequence[Row]], shared: Sequence[int]
) -> Float64[Tensor, "2 B"]:
    """Score groups: run each common beginning once, then the rest of every row with its keys and values."""
    takes_positions = "position_ids" in inspect.signature(model.forward).parameters
    beginnings = [group[0].tokens[:length] for group, length in zip(groups, shared, strict=True)]
    tokens, mask = padded(beginnings, model.device, left=True)
    positions = {"position_ids": (mask.cumsum(dim=1) - 1).clamp(min=0)} if takes_positions else {}
    keep = logits_to_keep(model, 1)
    cache = model(input_ids=tokens, attention_mask=mask, use_cache=True, **positions, **keep).past_key_values
    owners = [owner for owner, group in enumerate(groups) for _ in group]
    index = torch.tensor(owners, device=model.device)
    cache.batch_select_indices(index)
    rows = [row for group in groups for row in group]
    ends = [Row(row.tokens[shared[k] :], row.first - shared[k]) for row, k in zip(rows, owners, strict=True)]
    tokens, own = padded([end.tokens[:-1] for end in ends], model.device)
    if takes_positions:
        # Padding gets position 0, since counting on could exceed the model's maximum position.
        begun = mask[index].sum(dim=1, keepdim=True)
        positions = {"position_ids": (begun + torch.arange(tokens.shape[1], device=model.device)) * own}
    mask = torch.cat([mask[index], own], dim=1)
    return _forward_and_score(
        model, ends, input_ids=tokens, attention_mask=mask, past_key_values=cache, use_cache=True, **positions
    )


def _forward_and_score(model: "PreTrainedModel", rows: Sequence[Row], **inputs: Any) -> Float64[Tensor, "2 B"]:
    """Nats of each row's scored tokens, and 1 if each of them was the most likely one, else 0."""
    # The last token of a row predicts no scored token, so it is not among the inputs.
    labels = torch.full_like(inputs["input_ids"], IGNORED)
    for index, row in enumerate(rows):
        labels[index, row.first - 1 : len(row.tokens) - 1] = torch.tensor(row.tokens[row.first :], dtype=torch.long)
    found = score_labels(model, labels, **inputs)
    return torch.stack([found.nats.sum(1), found.likeliest.all(1).double()])


def padded(rows: Sequence[list[int]], device: torch.device, left: bool = False) -> tuple[Tensor, Tensor]:
    """Rows as one padded tensor, and a mask that is 0 on the padding."""
    width = max(map(len, rows))
    tokens = torch.full((len(rows), width), PADDING)
    mask = torch.zeros_like(tokens)
    for index, row in enumerate(rows):
        own = slice(width - len(row), width) if left else slice(0, len(row))
        tokens[index, own] = torch.tensor(row, dtype=torch.long)
        mask[index, own] = 1
    return tokens.to(device), mask.to(device)
