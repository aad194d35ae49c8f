"""Comparing a model with simple predictors of its data, token by token and during training.

A language model trained on sequences of a process at first predicts like the uniform
distribution, then like the unigram, the bigram, and finally like the Bayes-optimal predictor. Its divergence from
each, and its cross-entropy compared with theirs, show how far it has come.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import EvalPrediction

from ..data.windows import IGNORED
from ..errors import InputError
from ..hmm.analysis.divergence import kl_divergence, log_probabilities
from ..hmm.analysis.predictors import Predictor, predictors_of
from ..hmm.process import Process


class PredictorRows(NamedTuple):
    """Per-token quantities of a batch, for the `T` symbols that the model predicts.

    Attributes:
        log_model (`torch.Tensor` of shape `(B, T, V)`): logarithms of the model's distributions.
        symbols (`torch.Tensor` of shape `(B, T)`): the observed symbols.
        distributions (`dict` of `torch.Tensor` of shape `(B, T, E)`): every predictor's distributions, by name.
        padding (`int`, *optional*): the symbol that fills rows after the end of their sequences.
    """

    log_model: Float[Tensor, "B T V"]
    symbols: Int[Tensor, "B T"]
    distributions: dict[str, Float[Tensor, "B T E"]]
    padding: int | None = None


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
        if self.source.padding is not None:
            labels = labels.masked_fill(labels == IGNORED, self.source.padding)  # the first one is not read
        symbols = labels[:, 1:] if self.bos else labels
        skipped = 0 if self.bos else 1
        device = logits.device
        if device not in self._predictors:
            self._predictors[device] = predictors_of(self.source, device=device, order=self.order)
        predictors = self._predictors[device]
        distributions = {name: distribution(symbols)[:, skipped:-1] for name, distribution in predictors.items()}
        return PredictorRows(log_model, symbols[:, skipped:], distributions, self.source.padding)

    def reduce_logits(self, logits: Tensor, labels: Tensor) -> Float[Tensor, "B T 1+2K"]:
        """Per token, in nats: cross-entropies of the model and the `K` predictors, and KL(predictor || model)."""
        return token_scores(self.rows(logits, labels)).float()

    def summarize(self, prediction: EvalPrediction) -> dict[str, float]:
        """Means over all tokens, in nats: `cross_entropy`, `cross_entropy_NAME`, `kl_NAME`, `bayes_gap`."""
        scores = torch.as_tensor(prediction.predictions, dtype=torch.float64).flatten(0, 1)
        if self.source.padding is not None:
            scores = scores[~scores.isnan().all(-1)]
        result = dict(zip(self.metric_names, scores.mean(dim=0).tolist(), strict=False))
        if "bayes" in self.names:
            result["bayes_gap"] = result["cross_entropy"] - result["cross_entropy_bayes"]
        return result

    @property
    def metric_names(self) -> list[str]:
        """The names of the means that [`summarize`] gives."""
        names = ["cross_entropy", *(f"cross_entropy_{name}" for name in self.names)]
        return [*names, *(f"kl_{name}" for name in self.names), *["bayes_gap"] * ("bayes" in self.names)]


def token_scores(rows: PredictorRows) -> Float[Tensor, "B T 1+2K"]:
    """Per token, in nats: cross-entropies of the model and the `K` predictors, and KL(predictor || model).

    NaN where the token is padding.
    """
    symbols = rows.symbols.unsqueeze(-1)
    columns = [-rows.log_model.gather(-1, symbols).squeeze(-1)]
    columns += [-distribution.gather(-1, symbols).squeeze(-1).log() for distribution in rows.distributions.values()]
    columns += [kl_divergence(distribution, rows.log_model) for distribution in rows.distributions.values()]
    scores = torch.stack(columns, dim=-1)
    return scores if rows.padding is None else scores.masked_fill(symbols == rows.padding, torch.nan)
