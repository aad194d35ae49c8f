"""Is assisted generation lossless? What it emits, beside the target's own distribution.

A draft proposes a token `y` of its distribution `q`, and the target takes it with probability `min(1, p(y) / q(y))`,
else draws from what is left of `p` (Leviathan et al., arXiv 2211.17192, algorithm 1). So what is emitted has the
target's distribution whatever the draft is, and the share of proposals that are taken is a sum of `min(p, q)`. Both
are computed here by going through all sequences, and compared with what transformers does.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from decoding import chance_of_variation, log_probs_of_all, next_log_probs, smallest_shown
from torch import Tensor
from transformers import PreTrainedModel

from hmm_datasets.runtime.progress import progress_bar


@dataclass(frozen=True)
class Assisted:
    """What assisted generation emitted, beside what it should.

    Attributes:
        variation (`float`): total variation between what was emitted and the target's distribution of sequences.
        by_position (tuple of floats): that of the tokens at each position.
        chance, most_by_chance (`float`): median and 99th percentile of `variation` of as many exact draws.
        accepted, proposed (`int`): proposals of a draft.
        expected (`float`): the share of them that should be taken.
        shown (`float`): the smallest difference that draws as many as these would show; see
            [`decoding.smallest_shown`].
    """

    variation: float
    by_position: tuple[float, ...]
    chance: float
    most_by_chance: float
    accepted: int
    proposed: int
    expected: float
    shown: float


def assisted(
    target: PreTrainedModel,
    draft: PreTrainedModel | None,
    num_symbols: int,
    length: int,
    count: int,
    seed: int,
    **settings: Any,
) -> Assisted:
    """Draw `count` sequences of `length` tokens with a draft that proposes one token at a time.

    Without a draft the proposals, two at a time, are what came after the same tokens earlier in the text ("prompt
    lookup").
    """
    next_p = next_log_probs(target, num_symbols, length, **settings)
    prompt = torch.full((1, 1), target.config.bos_token_id)
    # A draft gets no attention mask: it takes for padding what is `pad_token_id`, which therefore is in no text here.
    options = {"do_sample": True, "top_k": 0, "max_new_tokens": length, "pad_token_id": target.config.vocab_size}
    expected = 0.0
    if draft is None:
        options["prompt_lookup_num_tokens"] = 2
    else:
        expected = expected_acceptance(next_p, next_log_probs(draft, num_symbols, length, **settings))
        options["assistant_model"] = draft
        # Two settings that `generate` takes from the draft alone.
        draft.generation_config.update(num_assistant_tokens=1, assistant_confidence_threshold=0.0)
        draft.generation_config.num_assistant_tokens_schedule = "constant"
    calls = {"target": 0, "draft": 0}
    hooks = [
        model.register_forward_pre_hook(lambda *_, name=name: calls.__setitem__(name, calls[name] + 1))
        for name, model in (("target", target), ("draft", draft))
        if model is not None
    ]
    counts = np.zeros((num_symbols,) * length)
    torch.manual_seed(seed)
    try:
        with progress_bar(count, " sequences", desc="assisted") as bar:
            for _ in range(count):
                row = target.generate(prompt, **{**options, **settings})[0, 1:]
                counts[tuple(row.tolist())] += 1
                bar.update(1)
    finally:
        for hook in hooks:
            hook.remove()
    probs, found = log_probs_of_all(next_p).exp().numpy(), counts.ravel() / count
    axes = range(length)
    shares, wanted = counts / count, probs.reshape(counts.shape)
    by_position = tuple(
        0.5 * float(np.abs((shares - wanted).sum(tuple(axis for axis in axes if axis != place))).sum())
        for place in axes
    )
    chance, most = chance_of_variation(probs / probs.sum(), count)
    return Assisted(
        variation=0.5 * float(np.abs(found - probs).sum()),
        by_position=by_position,
        chance=chance,
        most_by_chance=most,
        accepted=count * length - calls["target"],
        proposed=calls["draft"],
        expected=expected,
        shown=smallest_shown(probs / probs.sum(), count, most),
    )


def expected_acceptance(next_p: list[Tensor], next_q: list[Tensor]) -> float:
    """The share of proposals that are taken, when one token is proposed at a time, over whole sequences.

    After a proposal that is taken the target adds a token of its own; the last token of a sequence is never proposed.

    Args:
        next_p, next_q: log-probabilities of target and draft; see [`decoding.next_log_probs`].
    """
    length, num_symbols = len(next_p), next_p[0].shape[1]
    begins = [torch.zeros(num_symbols**t).double() for t in range(length + 1)]
    begins[0][0] = 1.0
    taken = proposed = 0.0
    for t in range(length - 1):
        p, following = next_p[t].exp(), next_p[t + 1].exp()
        least = torch.minimum(p, next_q[t].exp())
        proposed, taken = proposed + float(begins[t].sum()), taken + float(begins[t] @ least.sum(1))
        begins[t + 1] += (begins[t][:, None] * (p - least)).flatten()
        begins[t + 2] += ((begins[t][:, None] * least).flatten()[:, None] * following).flatten()
    return taken / proposed
