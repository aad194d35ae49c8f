"""The four reference algorithms for mixtures of Markov chains (Park et al., arXiv:2412.01003).

They differ in what they know, the chains of the mixture (retrieval) or only that rows have a Dirichlet prior
(inference), and in what they count, single symbols (unigram) or pairs (bigram):

- retrieval, unigram: `sum_n P(n | counts) pi_n`, with `pi_n` the stationary distribution of chain `n`, and
  `P(n | counts)` proportional to its weight times `prod_x pi_n(x)^count(x)`;
- retrieval, bigram: `sum_n P(n | tokens) T_n(last, .)`, the Bayes-optimal predictor of the mixture;
- inference, unigram: `(count(x) + alpha) / (t + E alpha)`;
- inference, bigram: `(count(last, x) + alpha) / (count(last) + E alpha)`, the Bayes-optimal predictor of a new chain
  for every sequence.

The names and what each knows are those of the paper's abstract. The formulas are the Bayesian ones for this prior; we
have not compared them with the paper's own equations.
"""

from functools import partial

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from hmm_datasets.hmm.analysis.predictors import Predictor, unigram
from hmm_datasets.hmm.analysis.stationary import cesaro_limit
from hmm_datasets.hmm.families.chains import RandomChains
from hmm_datasets.hmm.families.mixture import ChainMixture


def mixture_predictors(mixture: ChainMixture, alpha: float = 1.0) -> dict[str, Predictor]:
    """The predictors by name: `unigram_retrieval`, `bigram_retrieval`, `unigram_inference`, `bigram_inference`.

    Each turns tokens `(B, T)` into distributions `(B, T+1, E)`, entry `t` given the tokens before `t`.

    Args:
        mixture ([`~hmm_datasets.hmm.families.mixture.ChainMixture`]): the chains.
        alpha (`float`, *optional*, defaults to 1.0): concentration per symbol of the prior of inference.

    ```python
    >>> import torch
    >>> from hmm_datasets.hmm.families.mixture import random_chain_mixture
    >>> found = mixture_predictors(random_chain_mixture(4, 3))
    >>> found["bigram_inference"](torch.tensor([[0, 1, 0]]))[0, 3].tolist()
    [0.25, 0.5, 0.25]

    ```
    """
    return {
        "unigram_retrieval": independent_mixture(mixture).next_token_probs,
        "bigram_retrieval": mixture.next_token_probs,
        "unigram_inference": partial(unigram, num_symbols=mixture.num_symbols, alpha=alpha),
        "bigram_inference": partial(bigram_inference, num_symbols=mixture.num_symbols, alpha=alpha),
    }


def bigram_inference(tokens: Int[Tensor, "B T"], num_symbols: int, alpha: float = 1.0) -> Float[Tensor, "B T+1 E"]:
    """The frequencies of the symbols that followed the last one, smoothed by `alpha` each."""
    return RandomChains(num_symbols, alpha=alpha).next_token_probs(tokens)


def independent_mixture(mixture: ChainMixture) -> ChainMixture:
    """The mixture in which each chain's tokens are drawn independently from its stationary distribution."""
    uniform = np.full(mixture.num_symbols, 1 / mixture.num_symbols)
    symbols = np.stack([cesaro_limit(uniform, table) for table in mixture.tables])
    tables = np.repeat(symbols[:, None, :], mixture.num_symbols, axis=1)
    return ChainMixture(tables, mixture.weights, symbols)
