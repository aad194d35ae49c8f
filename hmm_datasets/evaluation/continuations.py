"""Log-probabilities of the ends of token rows of unequal length, computed in batches on any number of ranks.

Rows of similar length run in one batch, padded on the right, where no scored token sees the padding. Batches are made
before they are distributed over ranks, and their results gathered in order, so no result depends on the number of
ranks.

Rows of one group, for example the choices of a question, may have a common beginning. Where that saves more than it
costs, the beginning is run once, padded on the left as in generation, its last logits score the first token of every
choice, and its keys and values are reused for the tokens after it, if there are any. Because of rounding the results
then differ in their last digits from those of whole rows. Whole rows are run if the model's cache has more than plain
keys and values (sliding windows, state spaces), or if a trial gives wrong results.
"""

import inspect
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache, DynamicLayer

from ..common_prefix import num_alike
from ..compat.transformers_caches import CACHE_NAME, output_cache
from ..data.windows import IGNORED
from ..hmm.analysis.divergence import log_probabilities

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel
from .label_scores import logits_to_keep, score_labels
from .model_limits import check_vocabulary

PADDING = 0  # any token of the vocabulary, since padding is not attended to
_WORTH_SHARING = 64  # tokens that a group must save: a second pass takes the time of some dozens, however short it is
_TRIED: WeakKeyDictionary["PreTrainedModel", bool] = WeakKeyDictionary()


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
    accelerator: "Accelerator",
    *,
    batch_size: int,
    progress: Callable[[int], Any] = lambda done: None,
) -> ContinuationScores:
    """Score rows, those of a group in one batch.

    Args:
        model ([`~transformers.PreTrainedModel`]): a causal language model on the device of the accelerator, in eval
            mode.
        groups (sequence of sequences of [`Row`]): the rows to score; the rows of a group may have a common beginning.
        accelerator ([`~accelerate.Accelerator`]): divides the batches among ranks.
        batch_size (`int`): rows per rank in one forward pass; more if a group is larger.
        progress (callable, *optional*): called with the number of groups that were just done.

    Returns:
        [`ContinuationScores`] of all rows, group after group, on the CPU of every rank.

    Raises:
        `InputError`: a token that the model does not have.
    """
    starts = [0, *accumulate(len(group) for group in groups)]
    check_vocabulary(model, 1 + max((max(row.tokens) for group in groups for row in group), default=0), "tokens")
    shared = [_shared_length(group) for group in groups]
    if any(shared) and not _can_reuse_cache(model):
        shared = [0] * len(groups)
    batches = _batches(groups, shared, batch_size)
    scores = torch.zeros(2, starts[-1], dtype=torch.float64)
    for number, batch in enumerate(batches):
        if number % accelerator.num_processes == accelerator.process_index:
            columns = [column for index in batch for column in range(starts[index], starts[index + 1])]
            scores[:, columns] = _run_batch(
                model, [groups[index] for index in batch], [shared[index] for index in batch]
            )
        progress(len(batch))
    # Each row was scored on one rank and is zero on the others, so the sum collects all scores.
    scores = accelerator.reduce(scores.to(accelerator.device), "sum").cpu()
    return ContinuationScores(scores[0], scores[1] == 1)


def common_prefix(rows: Sequence[Sequence[int]]) -> int:
    """The length of the longest common prefix of all rows."""
    return num_alike(min(rows), max(rows))  # in lexicographic order, so their common prefix is that of all rows


def _shared_length(group: Sequence[Row]) -> int:
    """Number of tokens to run once for a group: common to all rows, and none of them scored; 0 for too few."""
    if len(group) < 2:
        return 0
    common = min(common_prefix([row.tokens for row in group]), *(min(row.first, len(row.tokens) - 1) for row in group))
    return common if common * (len(group) - 1) >= _WORTH_SHARING else 0


def _can_reuse_cache(model: "PreTrainedModel") -> bool:
    """Whether the cache has plain keys and values, and a trial with padding gives the same result as whole rows."""
    if model not in _TRIED:
        _TRIED[model] = _reuses_cache(model)
    return _TRIED[model]


def _reuses_cache(model: "PreTrainedModel") -> bool:
    tokens = [index % min(7, model.config.get_text_config().vocab_size) for index in range(16)]
    groups = [[Row(tokens[:size], size - 2), Row([*tokens[:size], 0], size - 2)] for size in (16, 6)]
    shared = [13, 4]  # one token less than those before the scored ones, and all of them
    with torch.no_grad():
        output = model(input_ids=torch.tensor([tokens], device=model.device), use_cache=True)
        cache = output_cache(output)
        if not isinstance(cache, DynamicCache) or any(type(layer) is not DynamicLayer for layer in cache.layers):
            return False
        reused = _run_shared(model, groups, shared)
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
    with torch.no_grad():
        if shared[0] > 0:
            return _run_shared(model, groups, shared).cpu()
        return _run(model, [row for group in groups for row in group]).cpu()


def _run(model: "PreTrainedModel", rows: Sequence[Row]) -> Float64[Tensor, "2 B"]:
    """Score whole rows."""
    tokens, mask = padded_rows([row.tokens[:-1] for row in rows], model.device)
    return _forward_and_score(model, rows, input_ids=tokens, attention_mask=mask, use_cache=False)


def _run_shared(
    model: "PreTrainedModel", groups: Sequence[Sequence[Row]], shared: Sequence[int]
) -> Float64[Tensor, "2 B"]:
    """Score groups: run each common beginning once, then the rest of every row with its keys and values."""
    takes_positions = "position_ids" in inspect.signature(model.forward).parameters
    beginnings = [group[0].tokens[:length] for group, length in zip(groups, shared, strict=True)]
    tokens, mask = padded_rows(beginnings, model.device, left=True)
    positions = {"position_ids": (mask.cumsum(dim=1) - 1).clamp(min=0)} if takes_positions else {}
    keep = logits_to_keep(model, 1)
    begun = model(input_ids=tokens, attention_mask=mask, use_cache=True, **positions, **keep)
    rows = [row for group in groups for row in group]
    owners = [owner for owner, group in enumerate(groups) for _ in group]
    ends = [Row(row.tokens[shared[k] :], row.first - shared[k]) for row, k in zip(rows, owners, strict=True)]
    scores = _score_first_tokens(begun.logits[:, -1], owners, ends)
    longer = [index for index, end in enumerate(ends) if len(end.tokens) > 1]
    if not longer:
        return scores
    ends = [Row(ends[index].tokens, max(1, ends[index].first)) for index in longer]
    index = torch.tensor([owners[index] for index in longer], device=model.device)
    cache = output_cache(begun)
    cache.batch_select_indices(index)
    tokens, end_mask = padded_rows([end.tokens[:-1] for end in ends], model.device)
    if takes_positions:
        # Padding gets position 0, since counting on could exceed the model's maximum position.
        before = mask[index].sum(dim=1, keepdim=True)
        positions = {"position_ids": (before + torch.arange(tokens.shape[1], device=model.device)) * end_mask}
    mask = torch.cat([mask[index], end_mask], dim=1)
    rest = _forward_and_score(
        model, ends, input_ids=tokens, attention_mask=mask, use_cache=True, **positions, **{CACHE_NAME: cache}
    )
    scores[0, longer] += rest[0]
    scores[1, longer] *= rest[1]
    return scores


def _score_first_tokens(
    logits: Float[Tensor, "G V"], owners: Sequence[int], ends: Sequence[Row]
) -> Float64[Tensor, "2 B"]:
    """Nats of each end's first token, and 1 if it was the most likely one, else 0; 0 and 1 if it is not scored."""
    scores = torch.tensor([[0.0], [1.0]], dtype=torch.float64, device=logits.device).repeat(1, len(ends))
    scored = [index for index, end in enumerate(ends) if end.first == 0]
    owner = torch.tensor([owners[index] for index in scored], dtype=torch.long, device=logits.device)
    first = torch.tensor([ends[index].tokens[0] for index in scored], dtype=torch.long, device=logits.device)
    scores[0, scored] = -log_probabilities(logits)[owner, first]
    scores[1, scored] = (logits.argmax(-1)[owner] == first).double()
    return scores


def _forward_and_score(model: "PreTrainedModel", rows: Sequence[Row], **inputs: Any) -> Float64[Tensor, "2 B"]:
    """Nats of each row's scored tokens, and 1 if each of them was the most likely one, else 0."""
    # The last token of a row predicts no scored token, so it is not among the inputs.
    labels = torch.full_like(inputs["input_ids"], IGNORED)
    for index, row in enumerate(rows):
        labels[index, row.first - 1 : len(row.tokens) - 1] = torch.tensor(row.tokens[row.first :], dtype=torch.long)
    scored = score_labels(model, labels, **inputs)
    return torch.stack([scored.nats.sum(1), scored.likeliest.all(1).double()])


def padded_rows(rows: Sequence[list[int]], device: torch.device, left: bool = False) -> tuple[Tensor, Tensor]:
    """Rows as one padded tensor, and a mask that is 0 on the padding."""
    how = {"batch_first": True, "padding_side": "left" if left else "right"}
    parts = [torch.tensor(row, dtype=torch.long) for row in rows]
    tokens = pad_sequence(parts, padding_value=PADDING, **how)
    mask = pad_sequence([torch.ones_like(part) for part in parts], **how)
    return tokens.to(device), mask.to(device)
