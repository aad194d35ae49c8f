"""What a causal language model gives to the ends of token rows of unequal length, in batches, on every rank.

Rows of like length run together, padded on the right, where no scored token sees them; only the logits that score
something are computed, where the model lets one choose (`logits_to_keep`). Rows of one group (the choices of a
question, say) may share what they begin with: it is run once, padded on the left as in generation, and its keys and
values are lent to each of them. That saves the work, not the rounding: figures move in their last places. A model
whose cache is not one of plain keys and values (sliding windows, state spaces), or that fails a trial, runs whole
rows.

Cost: the tokens of all rows, of groups those that are not shared. Memory: a batch of logits, and of groups a batch of
keys and values. Batches are made before they are dealt out to ranks, so that no figure depends on their number.
"""

import inspect
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Bool, Float64
from torch import Tensor
from torch.nn.functional import cross_entropy

from .ranks import check_vocabulary

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

PADDING = 0  # any token of any model: what it stands for is not attended to


class Row(NamedTuple):
    """Tokens, of which those from `first` (1 or more) are scored, each from all before it."""

    tokens: list[int]
    first: int


class Scores(NamedTuple):
    """Of `N` rows.

    Attributes:
        nats (`torch.Tensor` of shape `(N,)`): the sum of -log P over the scored tokens of each.
        greedy (`torch.Tensor` of shape `(N,)`): whether each of them was the likeliest token in its place.
    """

    nats: Float64[Tensor, "N"]
    greedy: Bool[Tensor, "N"]


def score_rows(
    model: "PreTrainedModel",
    groups: Sequence[Sequence[Row]],
    accelerator: "Accelerator",
    *,
    batch_size: int,
    share: bool = True,
    progress: Callable[[int], Any] = lambda done: None,
) -> Scores:
    """Score rows, the members of a group in one batch; on every rank the scores of all.

    Args:
        model ([`~transformers.PreTrainedModel`]): a causal language model on the device of the accelerator, in eval
            mode.
        groups (sequence of sequences of [`Row`]): what to score; a group of more than one may share its beginning.
        accelerator ([`~accelerate.Accelerator`]): who shares the batches.
        batch_size (`int`): rows a rank runs at once; more where one group has more.
        share (`bool`, *optional*, defaults to `True`): run what a group shares once.
        progress (callable, *optional*): is told how many more groups are done.

    Returns:
        [`Scores`] of the rows, group after group, on the CPU.

    Raises:
        `InputError`: a token that the model does not know.
    """
    starts = [0, *accumulate(len(group) for group in groups)]
    check_vocabulary(model, 1 + max((max(row.tokens) for group in groups for row in group), default=0), "tokens")
    shared = [_shared_length(group) if share else 0 for group in groups]
    if any(shared) and not _lends_its_cache(model):
        shared = [0] * len(groups)
    batches = _batches(groups, shared, batch_size)
    found = torch.zeros(2, starts[-1], dtype=torch.float64)
    for first in range(0, len(batches), accelerator.num_processes):
        dealt = batches[first : first + accelerator.num_processes]
        for batch in dealt[accelerator.process_index : accelerator.process_index + 1]:
            columns = [column for place in batch for column in range(starts[place], starts[place + 1])]
            found[:, columns] = _run_batch(
                model, [groups[place] for place in batch], [shared[place] for place in batch]
            )
        progress(sum(map(len, dealt)))
    # Every row was run on one rank and is zero on the others.
    found = accelerator.reduce(found.to(accelerator.device), "sum").cpu()
    return Scores(found[0], found[1] == 1)


def context_limit(model: "PreTrainedModel") -> int | None:
    """The most tokens a model takes by its configuration; None where that says nothing."""
    config = model.config.get_text_config()
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length")
    limits = [getattr(config, name, None) for name in names]
    return min((limit for limit in limits if isinstance(limit, int) and limit > 0), default=None)


def beginning_token(tokenizer: "PreTrainedTokenizerBase") -> tuple[int | None, str | None]:
    """The token to put before a text, and what it is: BOS, else EOS, else nothing.

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
    """The ids of texts, none added; the names of special tokens are read as text."""
    if not texts:
        return []
    # verbose: it warns of texts longer than the model takes, which are cut here.
    return tokenizer(texts, add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"]


def common_prefix(rows: Sequence[Sequence[int]]) -> int:
    """How many tokens all rows begin with alike."""
    first, last = min(rows), max(rows)  # in the order of lists, so what these share all share
    shortest = min(len(first), len(last))
    return next((place for place in range(shortest) if first[place] != last[place]), shortest)


def _shared_length(group: Sequence[Row]) -> int:
    """Tokens that are run once for a group: alike in all rows, and before the last one that predicts."""
    if len(group) < 2:
        return 0
    return min(common_prefix([row.tokens for row in group]), *(row.first - 1 for row in group))


def _lends_its_cache(model: "PreTrainedModel") -> bool:
    """Whether the cache is of plain keys and values, and a trial with padding gives what whole rows give."""
    from transformers import DynamicCache, DynamicLayer

    tokens = [place % min(7, model.config.get_text_config().vocab_size) for place in range(16)]
    groups = [[Row(tokens[:size], size - 2), Row([*tokens[:size], 0], size - 2)] for size in (16, 6)]
    with torch.inference_mode():
        output = model(input_ids=torch.tensor([tokens], device=model.device), use_cache=True)
        cache = getattr(output, "past_key_values", None)
        if not isinstance(cache, DynamicCache) or any(type(layer) is not DynamicLayer for layer in cache.layers):
            return False
        lent = _run_shared(model, groups, [_shared_length(group) for group in groups])
        whole = _run(model, [row for group in groups for row in group])
    return torch.allclose(lent[0], whole[0], rtol=0.02, atol=0.05)  # bfloat16 too; a false one is NaN or far off


def _batches(groups: Sequence[Sequence[Row]], shared: list[int], batch_size: int) -> list[list[int]]:
    """Groups of like length together, the longest first, so that what does not fit into memory fails at once."""
    longest = [max((len(row.tokens) for row in group), default=0) for group in groups]
    order = sorted(range(len(groups)), key=lambda place: (shared[place] == 0, -longest[place], place))
    batches: list[list[int]] = []
    room = 0
    for place in order:
        if not groups[place]:
            continue
        if len(groups[place]) > room or (shared[place] == 0) != (shared[batches[-1][0]] == 0):
            batches.append([])
            room = batch_size
        batches[-1].append(place)
        room -= len(groups[place])
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
    """Score groups, what each shares once, then what is left of every row behind the keys and values of that."""
    takes_places = "position_ids" in inspect.signature(model.forward).parameters
    beginnings = [group[0].tokens[:length] for group, length in zip(groups, shared, strict=True)]
    tokens, mask = padded(beginnings, model.device, left=True)
    places = {"position_ids": (mask.cumsum(dim=1) - 1).clamp(min=0)} if takes_places else {}
    keep = _keeping(model, 1)
    cache = model(input_ids=tokens, attention_mask=mask, use_cache=True, **places, **keep).past_key_values
    owners = [place for place, group in enumerate(groups) for _ in group]
    index = torch.tensor(owners, device=model.device)
    cache.batch_select_indices(index)
    rows = [row for group in groups for row in group]
    ends = [Row(row.tokens[shared[k] :], row.first - shared[k]) for row, k in zip(rows, owners, strict=True)]
    tokens, own = padded([end.tokens[:-1] for end in ends], model.device)
    if takes_places:
        # Padding stands at 0: behind the longest beginning it would pass the last place that a model knows.
        begun = mask[index].sum(dim=1, keepdim=True)
        places = {"position_ids": (begun + torch.arange(tokens.shape[1], device=model.device)) * own}
    mask = torch.cat([mask[index], own], dim=1)
    return _forward_and_score(
        model, ends, input_ids=tokens, attention_mask=mask, past_key_values=cache, use_cache=True, **places
    )


def _forward_and_score(model: "PreTrainedModel", rows: Sequence[Row], **inputs: Any) -> Float64[Tensor, "2 B"]:
    """Nats of each row's scored tokens, and 1 where all of them were the likeliest, 0 where not."""
    # The last token of a row predicts nothing that is scored, and is not among the inputs.
    width = inputs["input_ids"].shape[1]
    keep = _keeping(model, width - min(row.first for row in rows) + 1)
    logits = model(**inputs, **keep).logits
    skipped = width - logits.shape[1]
    scores = torch.empty(2, len(rows), dtype=torch.float64, device=logits.device)
    for place, row in enumerate(rows):
        targets = torch.tensor(row.tokens[row.first :], device=logits.device)
        predicted = logits[place, row.first - 1 - skipped :][: len(targets)]
        scores[0, place] = cross_entropy(predicted.double(), targets, reduction="sum")
        scores[1, place] = (predicted.argmax(dim=-1) == targets).all()
    return scores


def _keeping(model: "PreTrainedModel", places: int) -> dict[str, int]:
    """The argument that has a model compute the last logits alone, where it takes one."""
    return {"logits_to_keep": places} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}


def padded(rows: Sequence[list[int]], device: torch.device, left: bool = False) -> tuple[Tensor, Tensor]:
    """Rows in one tensor, and a mask of what is theirs."""
    width = max(map(len, rows))
    tokens = torch.full((len(rows), width), PADDING)
    mask = torch.zeros_like(tokens)
    for place, row in enumerate(rows):
        own = slice(width - len(row), width) if left else slice(0, len(row))
        tokens[place, own] = torch.tensor(row, dtype=torch.long)
        mask[place, own] = 1
    return tokens.to(device), mask.to(device)
