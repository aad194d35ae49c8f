"""Whether a model represents the beliefs of the process whose sequences it reads: linear probes of its hidden states.

The belief of an HMM is the distribution of its state given the symbols so far; the future depends on the past only
through it. Shai, Marzen, Teixeira, Oldenziel and Riechers ("Transformers represent belief state geometry in their
residual stream", 2024) found that a transformer trained on the sequences represents an affine image of it. Other
processes have predictive vectors in its place (Riechers, Elliott and Shai, arXiv 2507.07432), or one belief for each
factor. Here the exact belief is regressed on the hidden state at the same position, for every layer and for all layers
together. The regression is fitted on half of the sequences and tested on the others
([`~hmm_datasets.evaluation.linear_probes`]).

There are three controls: the same regression to the beliefs at other positions; the same regression from the hidden
states of an untrained model of the same configuration, since its random features of the last symbols explain a part
too; and beliefs of Markov order `k`, which know the last `k` symbols alone
([`~hmm_datasets.evaluation.markov_beliefs`]). The model and the untrained model each run once over all rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedModel

from ..errors import InputError
from ..hmm.process import Process
from ..training.fused_loss import without_adapter
from ..training.model_configs import new_model
from .linear_probes import LinearProbe, partners, shuffled_positions, split_sequences
from .markov_beliefs import Starts
from .model_outputs import GivesActivations, OneProcess, Reader, activations_of, check_inputs
from .rank_batches import share_rows, shared_batches

if TYPE_CHECKING:
    from accelerate import Accelerator

    from ..data.sequences import HMMSequences

ORDERS = (1, 2, 3)


_MAX_ITEMS = 4000
_MAX_DRAWN = 16  # numbers in a predictive vector whose components are drawn
_ORDER = ("r2", "rmse", "shuffled_r2", "shuffled_rmse", "untrained_r2", "untrained_rmse")


def probe_beliefs(
    model: GivesActivations,
    process: Process,
    rows: "HMMSequences",
    accelerator: "Accelerator | None" = None,
    *,
    layers: Sequence[str] | str | None = None,
    untrained: GivesActivations | None = None,
    batch_size: int = 32,
    seed: int = 0,
    controls: bool = True,
) -> dict[str, Any]:
    """How well the beliefs of an HMM are predicted from a model's activations by linear regression.

    The activation after `t` symbols is paired with the belief after these symbols, for `t` in `0 .. T` with a
    beginning token and in `1 .. T` without. By default activations are the hidden states that a model of transformers
    returns; that of the last layer is the one after the final norm, unless its config has
    `tie_last_hidden_states=False`.

    Args:
        model ([`~transformers.PreTrainedModel`], `torch.nn.Module`, callable or array): a causal language model, which
            is run in eval mode; a function of tokens `(B, T)` that gives activations `(B, T, D)`, a sequence or a
            mapping of them; an array of shape `(N, T, D)` with the activations of all rows; or a sequence or a
            mapping of such functions or arrays, one for each layer.
        process ([`~hmm_datasets.hmm.process.Process`]): the distribution of the rows, a process with beliefs.
        rows ([`~hmm_datasets.HMMSequences`]): held-out sequences of the process, with several times as many
            positions as there are features.
        accelerator ([`~accelerate.Accelerator`], *optional*): divides the rows among ranks; the model is on its
            device, and the main rank regresses. By default one process works on the device of the model; a function
            gets tokens on the CPU.
        layers (sequence of `str`, *optional*): names of submodules of the model, as `named_modules` gives them, whose
            outputs are probed in place of hidden states; of several outputs of one submodule the first.
        untrained (as `model`, *optional*): the model of the control. By default a model of transformers with the
            same configuration and initial weights is made; for others this control is left out.
        batch_size (`int`, *optional*, defaults to 32): rows per rank in one forward pass.
        seed (`int`, *optional*, defaults to 0): seed of the split, the shuffle, and the untrained model's weights.
        controls (`bool`, *optional*, defaults to `True`): also probe the untrained model and compute beliefs of Markov
            order `k`, which takes twice as long.

    Returns:
        `dict`: `layers`, with `r2`, `rmse`, `shuffled_r2`, `shuffled_rmse`, `untrained_r2` and `untrained_rmse` for
        each layer (`"0"` is the embedding, then `"1"`, ..; or the names of `layers` or of a mapping) and for `"all"`
        layers together; the untrained figures only if there is an untrained model; `parts`, for each part of
        the belief and each layer the same figures without the shuffled ones, if the process has `belief_parts`;
        `markov`, for each order `k` the `r2` and `rmse` of beliefs of order `k` as predictions of the belief, and
        `probe_r2` and `probe_rmse` of the regression from all layers to them; counts; and where there are few enough
        numbers to draw `items`, held-out beliefs and their predictions from all layers. Without `controls` neither
        the untrained model nor `markov`. Empty on ranks other than the main one.

    Raises:
        `InputError`: a process without beliefs, such as a family of several HMMs; a model that returns no hidden
            states; a layer that does not exist; activations of a wrong shape or with NaN; fewer than 4 rows.

    ```python
    >>> from hmm_datasets import HMMSequences, processes
    >>> hmm = processes.mess3()
    >>> rows = HMMSequences(hmm, length=8, first=2**63, num_sequences=100)
    >>> found = probe_beliefs(lambda tokens: hmm.beliefs(tokens[:, 1:]), hmm, rows, controls=False)
    >>> round(found["layers"]["0"]["r2"], 9)
    1.0

    ```
    """
    if process.belief_width is None:
        raise InputError(f"{type(process).__name__} has no beliefs; expected an HMM or another process with beliefs")
    check_inputs(model, rows)
    halves = [_Half(rows, sequences, seed) for sequences in split_sequences(len(rows), seed)]
    starts = Starts(process)
    run = partial(_probe, process=process, halves=halves, accelerator=accelerator, batch_size=batch_size)
    probe, markov, items = run(model, layers, starts=starts if controls else None)
    if controls and untrained is None:
        untrained = _untrained(model, seed)
    control = None
    if untrained is not None:
        control, _, _ = run(untrained, layers if isinstance(untrained, torch.nn.Module) else None)
    if probe is None:
        return {}
    by_layer = _figures(probe, control)
    for name, shuffled in probe.figures("shuffled").items():
        by_layer[name] |= {f"shuffled_{figure}": value for figure, value in shuffled.items()}
    parts = {name: _figures(probe, control, columns) for name, columns in process.belief_parts().items()}
    return {
        "layers": {
            name: {key: figures[key] for key in _ORDER if key in figures} for name, figures in by_layer.items()
        },
        **({"parts": parts} if parts else {}),
        **({"markov": _markov_figures(probe, markov)} if markov else {}),
        "num_states": process.max_states,
        "belief_width": process.belief_width,
        "num_sequences": len(rows),
        "fitted_on": len(halves[0]),
        "tested_on": len(halves[1]),
        "seed": seed,
        "fingerprint": process.fingerprint(),
        **({"items": items} if items else {}),
    }


def row_of(measured: Mapping[str, Any]) -> dict[str, float | None]:
    """R2 and RMSE of the belief and of its parts from all layers, as a row of figures by checkpoint.

    Args:
        measured (mapping): the result of [`probe_beliefs`], empty on ranks other than the main one.
    """
    if not measured:
        return {}
    parts = {"belief": measured["layers"]} | {
        f"belief_{name}": part for name, part in measured.get("parts", {}).items()
    }
    return {f"{name}_{key}": layers["all"][key] for name, layers in parts.items() for key in ("r2", "rmse")}


def _figures(probe: LinearProbe, untrained: LinearProbe | None, columns: slice = slice(None)) -> dict[str, Any]:
    """Figures of the belief, or of a part of it, by layer, with those of the untrained model."""
    of_probe = probe.figures("belief", columns)
    if untrained is not None:
        control = untrained.figures("belief", columns)
        if control.keys() != of_probe.keys():
            raise InputError(
                f"the untrained model has the layers {', '.join(control)}, but the model {', '.join(of_probe)}; "
                "expected the same, pass a model of the same kind as untrained"
            )
        for name, figures in control.items():
            of_probe[name] |= {f"untrained_{figure}": value for figure, value in figures.items()}
    return of_probe


def _markov_figures(probe: LinearProbe, markov: dict[int, float]) -> dict[str, dict[str, float | None]]:
    """For each order, the figures of its beliefs as predictions, and those of the probe of all layers for them."""
    figures = {}
    for order, error in markov.items():
        probed = probe.figures(f"markov_{order}")["all"]
        figures[str(order)] = probe.compared("belief", error) | {
            f"probe_{key}": value for key, value in probed.items()
        }
    return figures


class _Half:
    """The rows of one half, each with a partner row of that half and an order in which to shuffle its beliefs."""

    def __init__(self, rows: "HMMSequences", sequences: np.ndarray, seed: int):
        self.rows = rows
        self.bos = rows.bos_token_id is not None
        self._sequences, self._partners, self._seed = sequences, partners(sequences), seed

    def __len__(self) -> int:
        return len(self._sequences)

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, torch.Tensor]]:
        rows, others = (self.rows.__getitems__(chosen[list(indices)]) for chosen in (self._sequences, self._partners))
        num_positions = self.rows.length + self.bos
        orders = (shuffled_positions(i, num_positions, self._seed) for i in self._sequences[list(indices)])
        return [
            {
                "input_ids": row["input_ids"],
                "partner": other["input_ids"],
                "order": torch.from_numpy(order),
                "index": torch.tensor([index]),
            }
            for row, other, order, index in zip(rows, others, orders, self._sequences[list(indices)], strict=True)
        ]


def _probe(
    model: GivesActivations,
    layers: Sequence[str] | str | None,
    process: Process,
    halves: list[_Half],
    accelerator: "Accelerator | None",
    batch_size: int,
    starts: Starts | None = None,
) -> tuple[LinearProbe | None, dict[int, float], list[dict[str, list[float]]]]:
    """The probe; with `starts` the squared errors of beliefs of each Markov order; and points to draw.

    On ranks other than the main one there is no probe.
    """
    probe, items, draws = None, [], _is_drawn(process)
    orders = ORDERS if starts is not None else ()
    markov = dict.fromkeys(orders, 0.0)
    activations = activations_of(model, halves[0].rows, layers)
    accelerator = accelerator or OneProcess(model)
    for half, held_out in zip(halves, (False, True), strict=True):
        for widths, features, targets, tokens in _positions(activations, process, half, accelerator, batch_size):
            if starts is not None:
                for order in orders:
                    markov_beliefs = starts.markov_beliefs(tokens, order)
                    targets[f"markov_{order}"] = (markov_beliefs if half.bos else markov_beliefs[:, 1:]).to(
                        features.device
                    )
            features, targets = features.flatten(0, 1), {name: table.flatten(0, 1) for name, table in targets.items()}
            if probe is None:
                probe = LinearProbe(widths, {name: table.shape[1] for name, table in targets.items()})
            if not held_out:
                probe.fit(features, targets)
                continue
            probed, beliefs = probe.test(features, targets), targets["belief"]
            for order in orders:
                markov[order] += (targets[f"markov_{order}"] - beliefs).square().sum().item()
            if draws:
                pairs = zip(*(table[: _MAX_ITEMS - len(items)].tolist() for table in (beliefs, probed)), strict=True)
                items += [{"belief": _rounded(belief), "probed": _rounded(prediction)} for belief, prediction in pairs]
    return probe, markov, items


def _is_drawn(process: Process) -> bool:
    """Whether beliefs are drawn: those over 3 or 4 states, and predictive vectors by principal components."""
    if process.max_states is not None or process.belief_parts():
        return process.belief_width in (3, 4)
    return 2 <= (process.belief_width or 0) <= _MAX_DRAWN


def _positions(
    activations: Reader, process: Process, half: _Half, accelerator: "Accelerator | OneProcess", batch_size: int
) -> Iterator[tuple[dict[str, int], torch.Tensor, dict[str, torch.Tensor], torch.Tensor]]:
    """Widths of the layers, their concatenated activations, targets `belief` and `shuffled`, and the symbols.

    Only on the main rank.
    """
    for batch in shared_batches(half, batch_size, accelerator, "sequences"):
        mine, index = (share_rows(batch[name], accelerator) for name in ("input_ids", "index"))
        layers = activations(mine, index.squeeze(1))
        features = accelerator.gather(torch.cat(list(layers.values()), dim=-1))[: len(batch["input_ids"])]
        if not accelerator.is_main_process:
            continue
        device = features.device if process.computes_on_devices else "cpu"
        rows, partner = (batch[name][:, int(half.bos) :].to(device) for name in ("input_ids", "partner"))
        # After a beginning token the belief is that before any symbol.
        first = 0 if half.bos else 1
        beliefs, others = (process.beliefs(tokens)[:, first:].to(features.device) for tokens in (rows, partner))
        shuffled = others.gather(1, batch["order"].to(others.device).unsqueeze(-1).expand_as(others))
        widths = {name: layer.shape[-1] for name, layer in layers.items()}
        yield widths, features, {"belief": beliefs, "shuffled": shuffled}, rows


def _untrained(model: GivesActivations, seed: int) -> PreTrainedModel | None:
    """A model of the same configuration with initial weights, which transformers can make; None for others.

    The state of torch's random numbers is restored.
    """
    model = without_adapter(model)
    if not isinstance(model, PreTrainedModel) or type(model.config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return None
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        fresh = new_model(deepcopy(model.config))
    return fresh.to(model.device, model.dtype).eval()


def _rounded(values: list[float]) -> list[float]:
    return [round(value, 6) for value in values]
