"""Comparing a model with the optimum and other predictors of its data, on held-out rows and on any number of ranks.

Each rank reduces the distributions of its rows to a few numbers per token (losses and divergences, float64), and only
these are gathered: `O(N T K)` memory for `K` predictors, whatever the number of symbols. The results are those of the
metric modules (`bayes_gap` and so on), computed by the same functions. Computing them with `evaluate.load` would store
whole distributions, which takes much more memory and many times as long.

Comparing a model with simple predictors of its data, token by token and during training.

A language model trained on sequences of a process at first predicts like the uniform
distribution, then like the unigram, the bigram, and finally like the Bayes-optimal predictor. Its divergence from
each, and its cross-entropy compared with theirs, show how far it has come.

Calibration: whether symbols to which a model gives probability 0.2 occur in 20% of the cases.

Every pair of a position and a symbol is put into a bin by the probability `q` that the model gave the symbol there.
For each bin there are three means: of `q`, of whether the symbol occurred (its frequency), and of its probability
under the true distribution. The expected calibration error (Naeini, Cooper and Hauskrecht, AAAI 2015, eq. 3) is the
mean over bins, weighted by their number of pairs, of the distance between the first and the second. Here the third is
used in place of the second, which it equals in expectation and without sampling noise. All symbols count, not only the
most likely one (Nixon et al., CVPR workshops 2019).

A calibrated model need not be good: the unigram of the process is calibrated too. So this does not replace the gap to
the optimum.

Bins have equal width in log-odds, half a nat, so that 0.001 and 0.01 are in different bins; this matters if there are
many symbols. Time is `O(B T E)` per batch, memory that of a few tables `(B, T, E)`.

The phases of learning: during training a model resembles the uniform predictor, unigram, bigram, and the optimum.

For every predictor two steps are reported. `closest_step` is where KL(predictor || model) is at its minimum, so where
the model predicts most like it. `passed_step` is the first step from which the model's held-out cross-entropy stays
below the predictor's. Both are steps of evaluations; what happened between two evaluations is not known.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import EvalPrediction

from ..data.windows import IGNORED
from ..errors import InputError
from ..hmm.analysis.divergence import kl_divergence, log_probabilities
from ..hmm.analysis.predictors import Predictor, predictors_of
from ..hmm.process import Process
from ..statistics import clustered_mean, cross_entropy_figures, final_token_figures, gap_figures
from .model_outputs import GivesLogits, OneProcess, check_inputs, logits_of
from .scoring import share_rows, shared_batches

if TYPE_CHECKING:
    from accelerate import Accelerator

    from ..data.sequences import HMMSequences


class PredictorRows(NamedTuple):
    """Per-token quantities of a batch, for the `T` symbols that the model predicts.

    Attributes:
        log_model (`torch.Tensor` of shape `(B, T, V)`): logarithms of the model's distributions.
        symbols (`torch.Tensor` of shape `(B, T)`): the observed symbols.
        distributions (`dict` of `torch.Tensor` of shape `(B, T, E)`): every predictor's distributions, by name.
    """

    log_model: Float[Tensor, "B T V"]
    symbols: Int[Tensor, "B T"]
    distributions: dict[str, Float[Tensor, "B T E"]]


class BaselineComparison:
    """Compares a model with the predictors of `source` on rows of [`~hmm_datasets.HMMSequences`].

    Its methods are arguments of the Trainer: [`BaselineComparison.reduce_logits`] as `preprocess_logits_for_metrics`
    reduces the logits to a few numbers per token on every rank, and [`BaselineComparison.summarize`] as
    `compute_metrics` averages them.

    Args:
        source ([`~hmm_datasets.hmm.process.Process`]): the distribution of the data. A process without an exact
            distribution has no Bayes-optimal predictor here.
        bos (`bool`, *optional*, defaults to `True`): whether rows begin with a beginning token. Without one the first
            symbol is not predicted, and its label is -100, so the Trainer must give tokens instead of labels:
            `TrainingArguments(label_names=["input_ids"])`.
        order (`int`, *optional*, defaults to 2): maximum order of the n-grams in context; 2 for the bigram.
    """

    def __init__(self, source: Process, *, bos: bool = True, order: int = 2):
        self.source = source
        self.bos = bos
        self.order = order
        predictors = predictors_of(source, order=order)
        self.names = list(predictors)
        self._predictors: dict[torch.device, dict[str, Predictor]] = {torch.device("cpu"): predictors}

    def rows(self, logits: Float[Tensor, "B R V"], labels: Int[Tensor, "B R"]) -> PredictorRows:
        """The distributions of the model and of the predictors, for rows of `R` tokens.

        Raises:
            `InputError`: rows have no beginning token, and `labels` does not have their first symbols.
        """
        if not self.bos and bool((labels[:, 0] == IGNORED).any()):
            raise InputError(
                "the first label is -100 and rows have no beginning token, so the first symbol is not known; expected "
                "tokens, pass label_names=['input_ids'] to TrainingArguments, or put a beginning token in front"
            )
        log_model = log_probabilities(logits[:, :-1])
        symbols = labels[:, 1:] if self.bos else labels
        skipped = 0 if self.bos else 1
        device = logits.device
        if device not in self._predictors:
            self._predictors[device] = predictors_of(self.source, device=device, order=self.order)
        predictors = self._predictors[device]
        distributions = {name: distribution(symbols)[:, skipped:-1] for name, distribution in predictors.items()}
        return PredictorRows(log_model, symbols[:, skipped:], distributions)

    def reduce_logits(self, logits: Tensor, labels: Tensor) -> Float[Tensor, "B T 1+2K"]:
        """Per token, in nats: cross-entropies of the model and the `K` predictors, and KL(predictor || model)."""
        return token_scores(self.rows(logits, labels)).float()

    def summarize(self, prediction: EvalPrediction) -> dict[str, float]:
        """Means over all tokens, in nats: `cross_entropy`, `cross_entropy_NAME`, `kl_NAME`, `bayes_gap`."""
        means = torch.as_tensor(prediction.predictions, dtype=torch.float64).mean(dim=(0, 1)).tolist()
        count = len(self.names)
        result = {"cross_entropy": means[0]}
        result |= {f"cross_entropy_{name}": means[1 + k] for k, name in enumerate(self.names)}
        result |= {f"kl_{name}": means[1 + count + k] for k, name in enumerate(self.names)}
        if "bayes" in self.names:
            result["bayes_gap"] = means[0] - result["cross_entropy_bayes"]
        return result


def token_scores(rows: PredictorRows) -> Float[Tensor, "B T 1+2K"]:
    """Per token, in nats: cross-entropies of the model and the `K` predictors, and KL(predictor || model)."""
    symbols = rows.symbols.unsqueeze(-1)
    columns = [-rows.log_model.gather(-1, symbols).squeeze(-1)]
    columns += [-distribution.gather(-1, symbols).squeeze(-1).log() for distribution in rows.distributions.values()]
    columns += [kl_divergence(distribution, rows.log_model) for distribution in rows.distributions.values()]
    return torch.stack(columns, dim=-1)


_INNER_EDGES = torch.linspace(-8, 8, 33, dtype=torch.float64).sigmoid()


class Calibration:
    """Sums over the pairs of each bin, collected batch by batch."""

    def __init__(self):
        self._sums = torch.zeros(len(_INNER_EDGES) + 1, 4, dtype=torch.float64)

    @staticmethod
    def sums(
        log_model: Float[Tensor, "B T V"], distribution: Float[Tensor, "B T E"], symbols: Int[Tensor, "B T"]
    ) -> Float[Tensor, "B K 4"]:
        """For each sequence and each of the `K` bins: the number of pairs, and the sums of the model's probability, of
        occurrences, and of the true probability.

        Tokens that the distribution does not have (`V > E`) are left out.
        """
        probability = log_model[..., : distribution.shape[-1]].double().exp()
        bins = torch.bucketize(probability, _INNER_EDGES.to(probability.device), right=True)
        observed = bins.gather(-1, symbols.unsqueeze(-1)).squeeze(-1)
        every, one = bins.flatten(1), probability.new_ones(1, 1)
        columns = (
            (every, one.expand_as(every)),
            (every, probability.flatten(1)),
            (observed, one.expand_as(observed)),
            (every, distribution.double().flatten(1)),
        )
        empty = probability.new_zeros(len(probability), len(_INNER_EDGES) + 1)
        return torch.stack([empty.scatter_add(1, indices, values) for indices, values in columns], dim=-1)

    def add(self, sums: Float[Tensor, "B K 4"]) -> None:
        """Add the sums of a batch of sequences."""
        self._sums += sums.sum(0).cpu()

    def result(self) -> dict[str, Any]:
        """The result over all batches.

        Returns:
            `dict`: `edges` of the `K` bins (`K + 1` numbers); `count`, the pairs in each; `predicted`, `observed` and
            `optimum`, the three means of each bin, None if it is empty; `error`, the expected calibration error.
        """
        count, predicted, observed, distribution = self._sums.unbind(1)
        return {
            "edges": [0.0, *_INNER_EDGES.tolist(), 1.0],
            "count": count.long().tolist(),
            "predicted": _means(predicted, count),
            "observed": _means(observed, count),
            "optimum": _means(distribution, count),
            "error": float((predicted - distribution).abs().sum() / count.sum()),
        }


def _means(sums: Float[Tensor, "K"], count: Float[Tensor, "K"]) -> list[float | None]:
    return [None if n == 0 else total / n for total, n in zip(sums.tolist(), count.tolist(), strict=True)]


_KL, _CROSS_ENTROPY = "kl_", "cross_entropy_"


def learning_phases(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Find which predictor a model was closest to at each evaluation, and when it passed each predictor.

    Args:
        rows (sequence of mappings): evaluations in the order of steps, with `step`, `tokens`, `cross_entropy`, and for
            every predictor `cross_entropy_NAME` and `kl_NAME`, KL(predictor || model), all in nats per token.

    Returns:
        `dict`: `rows`; `predictors`, for each name `closest_step`, `closest_kl` and `passed_step` (`None` if it is not
        passed by the end); `phases`, the runs of evaluations with the same nearest predictor, each with `predictor`,
        `first_step` and `last_step`.

    ```python
    >>> names = ("step", "cross_entropy", "cross_entropy_a", "kl_a", "cross_entropy_b", "kl_b")
    >>> table = [(1, 1.1, 1.0, 0.0, 0.5, 0.6), (2, 0.6, 1.0, 0.4, 0.5, 0.1)]
    >>> rows = [dict(zip(names, row)) for row in table]
    >>> found = learning_phases(rows)
    >>> found["predictors"]["a"]
    {'closest_step': 1, 'closest_kl': 0.0, 'passed_step': 2}
    >>> [phase["predictor"] for phase in found["phases"]]
    ['a', 'b']

    ```
    """
    names = [key.removeprefix(_KL) for key in rows[0] if key.startswith(_KL)]
    predictors = {}
    for name in names:
        closest = min(rows, key=lambda row: row[_KL + name])
        passed = None
        for row in reversed(rows):
            if not row["cross_entropy"] < row[_CROSS_ENTROPY + name]:
                break
            passed = row["step"]
        predictors[name] = {
            "closest_step": closest["step"],
            "closest_kl": closest[_KL + name],
            "passed_step": passed,
        }
    phases = []
    for name, run in groupby(rows, key=lambda row: min(names, key=lambda name: row[_KL + name])):
        steps = [row["step"] for row in run]
        phases.append({"predictor": name, "first_step": steps[0], "last_step": steps[-1]})
    return {"rows": [dict(row) for row in rows], "predictors": predictors, "phases": phases}


def evaluations_of(history: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a `history.jsonl` that have divergences, one per step, as [`learning_phases`] takes them."""
    rows = {}
    for row in history:
        found = {key.removeprefix("eval_"): value for key, value in row.items() if key.startswith("eval_")}
        if any(key.startswith(_KL) for key in found):
            wanted = {key: value for key, value in found.items() if key.startswith(("cross_entropy", _KL))}
            rows[row["step"]] = {"step": row["step"], "tokens": row["tokens"], **wanted}
    return [rows[step] for step in sorted(rows)]


def evaluation_of(measured: Mapping[str, Any]) -> dict[str, float]:
    """A row for [`learning_phases`], without `step` and `tokens`, from the result of
    [`~hmm_datasets.evaluation.optimum.measure_optimum`]."""
    row = {"cross_entropy": measured["cross_entropy"]["model"]["cross_entropy"]}
    for name, found in measured["cross_entropy"].items():
        if name != "model":
            row[_CROSS_ENTROPY + name] = found["cross_entropy"]
    return row | {_KL + name: found["kl"] for name, found in measured["kl"].items()}


def measure_optimum(
    model: GivesLogits,
    source: Process,
    rows: "HMMSequences",
    accelerator: "Accelerator | None" = None,
    *,
    batch_size: int = 32,
    order: int = 2,
) -> dict[str, Any]:
    """How far a model is from the optimum and from other predictors of a process.

    For a process with an oracle, such as a family, there is also the predictor `oracle`, which knows what varies
    from row to row, such as the HMM. No predictor that sees only the tokens has a lower expected loss. If the process
    has no exact distribution, the gap is measured from the oracle, and is larger than the gap to the optimum.

    Args:
        model ([`~transformers.PreTrainedModel`], `torch.nn.Module`, callable or array): gives logits of shape
            `(B, T, V)`, or an object that has them as `logits`, for tokens `(B, T)`: those of the next token after
            each token, the beginning token included. It is measured in eval mode. Or an array of shape `(N, T, V)`,
            the log-probabilities of all rows.
        source ([`~hmm_datasets.hmm.process.Process`]): the distribution of the rows.
        rows ([`~hmm_datasets.HMMSequences`]): held-out sequences of the source, 2 or more.
        accelerator ([`~accelerate.Accelerator`], *optional*): divides the rows among ranks; the model is on its
            device. By default one process measures on the device of the model; a function gets tokens on the CPU.
        batch_size (`int`, *optional*, defaults to 32): rows per rank in one forward pass.
        order (`int`, *optional*, defaults to 2): maximum order of the n-grams in context.

    Returns:
        `dict`: `cross_entropy` and `final_token`, the results of the metrics `token_cross_entropy` and
        `final_token_cross_entropy` for `model` and each predictor; `kl`, the result of `predictor_kl` for each
        predictor; `bayes_gap`, and `floor`, the predictor from which it is measured (`bayes` or `oracle`);
        `calibration`, see [`Calibration`]; `items`, for each sequence the nats of model and floor; and a description
        of the data. Empty on ranks other than the main one.

    Raises:
        `InputError`: fewer than 2 rows, a process with neither an exact distribution nor an oracle, a model whose
            vocabulary is smaller than the number of symbols, or logits of a wrong shape or with NaN.

    ```python
    >>> from hmm_datasets import HMMSequences, processes
    >>> hmm = processes.mess3()
    >>> rows = HMMSequences(hmm, length=8, first=2**63, num_sequences=100)
    >>> found = measure_optimum(lambda tokens: hmm.next_token_probs(tokens[:, 1:]).log(), hmm, rows)
    >>> abs(found["bayes_gap"]["bayes_gap"]) < 1e-12
    True

    ```
    """
    check_inputs(model, rows)
    logits = logits_of(model, rows)
    if len(rows) < 2:
        raise InputError(f"{len(rows)} sequence to measure on; expected 2 or more, for a standard error")
    if not (source.has_exact_distribution or source.has_oracle):
        raise InputError(f"{source!r} has neither an exact distribution nor an oracle, so that there is no floor")
    baselines = BaselineComparison(source, bos=rows.bos_token_id is not None, order=order)
    names = [*baselines.names, *["oracle"] * source.has_oracle]
    floor = "bayes" if "bayes" in names else "oracle"
    accelerator = accelerator or OneProcess(model)
    scores, calibration = [], Calibration()
    first = 0
    for batch in shared_batches(rows, batch_size, accelerator, "sequences"):
        labels = batch["input_ids"]
        # Every rank runs the same number of rows; those that pad the last batch are cut off after gathering.
        mine = share_rows(labels, accelerator)
        index = share_rows(torch.arange(first, first + len(labels)).unsqueeze(1), accelerator).squeeze(1)
        with torch.inference_mode():
            found = baselines.rows(logits(mine, index), mine)
            if "oracle" in names:
                found.distributions["oracle"] = _oracle(source, rows, mine, int(index[0]))
            tables = token_scores(found), Calibration.sums(found.log_model, found.distributions[floor], found.symbols)
        gathered = [accelerator.gather(table)[: len(labels)].cpu() for table in tables]
        scores.append(gathered[0].numpy())
        calibration.add(gathered[1])
        first += len(labels)
    if not accelerator.is_main_process:
        return {}
    return _figures(np.concatenate(scores), names, floor) | {
        "calibration": calibration.result(),
        "num_sequences": len(rows),
        "length": rows.length,
        "seed": rows.seed,
        "first": rows.first,
        "fingerprint": source.fingerprint(),
        "source": type(source).__name__,
        "num_states": getattr(source, "num_states", None),
        "num_symbols": source.num_symbols,
    }


def _oracle(source: Process, rows: "HMMSequences", mine: torch.Tensor, first: int) -> torch.Tensor:
    """The distributions of a predictor that knows the HMM of each row; `first` is the index of the first row."""
    skipped = 0 if rows.bos_token_id is not None else 1
    symbols = mine[:, 1 - skipped :]
    symbols = symbols if source.computes_on_devices else symbols.cpu()
    return source.oracle_next_token_probs(symbols, rows.seed, rows.first + first)[:, skipped:-1].to(mine.device)


def _figures(scores: np.ndarray, names: list[str], floor: str) -> dict[str, Any]:
    """Summaries of the columns of `token_scores`, (N, T, 1 + 2K)."""
    count = len(names)
    losses = {name: scores[..., k] for k, name in enumerate(["model", *names])}
    divergences = {name: scores[..., 1 + count + k] for k, name in enumerate(names)}

    totals = zip(*(losses[name].sum(axis=1).tolist() for name in ("model", floor)), strict=True)
    return {
        "cross_entropy": {name: cross_entropy_figures(nats) for name, nats in losses.items()},
        "final_token": {name: final_token_figures(nats) for name, nats in losses.items()},
        "kl": {name: clustered_mean(nats).report("kl") for name, nats in divergences.items()},
        "bayes_gap": gap_figures(losses["model"], losses[floor]),
        "floor": floor,
        "items": [
            {"sequence": index, "nats": nats, "floor_nats": floor_nats, "tokens": scores.shape[1]}
            for index, (nats, floor_nats) in enumerate(totals)
        ],
    }
