"""Conversion of HMMs from and to pomegranate and hmmlearn.

Both keep the same three tables for a state-emitting HMM over symbols `0 .. E-1`, so a conversion is a copy.
Two things differ in pomegranate. It computes in float32, and each state has a probability of ending the sequence
(`ends`), so that the length of a sequence has a distribution: a row of `edges` plus its end sums to one. An [`HMM`]
has no end probabilities; it gives a distribution of sequences for any given length. Edge-emitting HMMs have no
counterpart in these libraries.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from ..compat.pomegranate import import_pomegranate, sparse_transition
from ..errors import InputError, needing_extra
from .model import HMM

if TYPE_CHECKING:
    from hmmlearn.hmm import CategoricalHMM
    from pomegranate.hmm import DenseHMM, SparseHMM

_TOLERANCE = 1e-5  # of the sum of a float32 row of a few hundred entries


def from_pomegranate(model: "DenseHMM | SparseHMM", *, ends: str = "refuse") -> HMM:
    """The HMM of a pomegranate (1.x) model with `Categorical` emissions.

    A `fit` of pomegranate learns end probabilities, about one over the mean length, which an [`HMM`] cannot represent.
    Ends are harmless if the rows of `edges` sum to one without them and they are equal for all states, as in a model
    made without `ends`. They then are no distribution of lengths, but a constant factor of every probability. Such
    ends are always left out, and `log_probability` differs by the logarithm of that constant.

    Args:
        model (`pomegranate.hmm.DenseHMM` or `pomegranate.hmm.SparseHMM`): a fitted model, or one made from tables.
        ends (`str`, *optional*, defaults to `"refuse"`):
            What to do with a model that has end probabilities. `"refuse"` raises an error. `"drop"` leaves them out
            and rescales the rows of `edges` to sum to one. The distribution of lengths is then lost, and the
            distribution of tokens becomes that of sequences conditioned at each step on not ending.

    Returns:
        [`HMM`] in float64; no vocabulary.

    Raises:
        `InputError`: pomegranate is not installed, the model is of another class or not fitted, or it has end
            probabilities.
    """
    with needing_extra("pomegranate", "pomegranate"):
        pomegranate = import_pomegranate()
    if ends not in ("refuse", "drop"):
        raise InputError(f'ends is {ends!r}; expected "refuse" or "drop"')
    if not isinstance(model, (pomegranate.hmm.DenseHMM, pomegranate.hmm.SparseHMM)):
        raise InputError(f"model is a {type(model).__name__}; expected a pomegranate DenseHMM or SparseHMM")
    emission = np.stack([_categorical(index, node) for index, node in enumerate(model.distributions or [])] or [[]])
    states = len(emission)
    if model.edges is None or emission.size == 0:
        raise InputError("the pomegranate model has no distributions or no edges yet; fit it first")
    if isinstance(model, pomegranate.hmm.SparseHMM):
        transition = sparse_transition(model, states)
        if transition is None:
            raise InputError("the pomegranate SparseHMM has no table of edges yet; fit it first")
    else:
        transition = np.exp(_numpy(model.edges))
    start = np.full(states, 1 / states) if model.starts is None else np.exp(_numpy(model.starts))
    stop = np.zeros(states) if model.ends is None else np.exp(_numpy(model.ends))
    whole = np.abs(transition.sum(axis=1) - 1).max() <= _TOLERANCE
    constant = np.ptp(stop) <= _TOLERANCE * stop.max()
    if stop.max() > 0 and not (whole and constant) and ends == "refuse":
        raise InputError(
            f"the pomegranate model has end probabilities (ends up to {stop.max():.3g}), which an HMM cannot "
            'represent; pass ends="drop" to leave them out and rescale the rows of edges'
        )
    return HMM(start=start, transition=transition, emission=emission, normalize=True if ends == "drop" else None)


def to_pomegranate(hmm: HMM) -> "DenseHMM":
    """A pomegranate `DenseHMM` with the tables of `hmm` in float32.

    Its `ends` are all one, so that a sequence may end anywhere without a factor. Then `log_probability`,
    `predict_proba` and `viterbi` are those of `hmm`. With ends of zero, which look more natural, pomegranate gives
    every sequence probability zero and NaN as posteriors. pomegranate's `sample` refuses such a model, since rows and
    ends sum to two; draw from the [`HMM`] instead. A `fit` replaces the ends by learned ones.

    Returns:
        `pomegranate.hmm.DenseHMM`: takes tokens as int64 of shape `(B, T, 1)`. The bytes that `sample` returns are a
            mask to torch: convert them with `torch.from_numpy(tokens.astype("int64"))`.

    Raises:
        `InputError`: pomegranate is not installed, or `hmm` is edge-emitting.
    """
    with needing_extra("pomegranate", "pomegranate"):
        pomegranate = import_pomegranate()
    _state_emitting(hmm, "pomegranate")
    import torch

    def table(values: np.ndarray) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32)

    return pomegranate.hmm.DenseHMM(
        [pomegranate.distributions.Categorical(probs=table(row[None])) for row in hmm.emission],
        edges=table(hmm.transition),
        starts=table(hmm.start),
        ends=torch.ones(hmm.num_states),
    )


def from_hmmlearn(model: "CategoricalHMM") -> HMM:
    """The HMM of a fitted hmmlearn `CategoricalHMM`.

    Returns:
        [`HMM`]: the same tables; no vocabulary.

    Raises:
        `InputError`: hmmlearn is not installed, the model is of another class, or it is not fitted.
    """
    with needing_extra("hmmlearn", "hmmlearn"):
        import hmmlearn.hmm
    if not isinstance(model, hmmlearn.hmm.CategoricalHMM):
        raise InputError(f"model is a {type(model).__name__}; expected an hmmlearn CategoricalHMM")
    missing = [n for n in ("startprob_", "transmat_", "emissionprob_") if not hasattr(model, n)]
    if missing:
        raise InputError(f"the hmmlearn model has no {missing[0]}; fit it first")
    return HMM(start=model.startprob_, transition=model.transmat_, emission=model.emissionprob_, normalize=None)


def to_hmmlearn(hmm: HMM) -> "CategoricalHMM":
    """An hmmlearn `CategoricalHMM` with the tables of `hmm`, from which its `fit` starts.

    Returns:
        `hmmlearn.hmm.CategoricalHMM`: takes tokens as integers of shape `(B * T, 1)` with `lengths`, all sequences in
            one column. Methods of an [`HMM`] take a padded `(B, T)` array; `(N, 1)` is `N` sequences of one symbol.

    Raises:
        `InputError`: hmmlearn is not installed, or `hmm` is edge-emitting.
    """
    with needing_extra("hmmlearn", "hmmlearn"):
        import hmmlearn.hmm
    _state_emitting(hmm, "hmmlearn")
    model = hmmlearn.hmm.CategoricalHMM(hmm.num_states, n_features=hmm.num_symbols, init_params="")
    model.startprob_ = hmm.start.copy()
    model.transmat_ = hmm.transition.copy()
    model.emissionprob_ = hmm.emission.copy()
    return model


def _categorical(index: int, node: Any) -> Float[np.ndarray, "E"]:
    from pomegranate.distributions import Categorical

    if not isinstance(node, Categorical):
        raise InputError(f"distributions[{index}] is a {type(node).__name__}; expected pomegranate's Categorical")
    if node.probs is None:
        raise InputError(f"distributions[{index}] has no probabilities yet; fit the model first")
    if node.probs.shape[0] != 1:
        raise InputError(f"distributions[{index}] emits {node.probs.shape[0]} features per step; expected 1")
    return _numpy(node.probs)[0]


def _numpy(tensor: Any) -> np.ndarray:
    return tensor.detach().cpu().double().numpy()


def _state_emitting(hmm: HMM, package: str) -> None:
    if hmm.edges is not None:
        raise InputError(
            f"{hmm} cannot be converted to {package}, whose HMMs emit from states only; "
            "make an HMM with transition= and emission= first"
        )
