"""GINC, the "generative in-context learning dataset": documents of a mixture of HMMs, and prompts of examples.

    python recipes/experiments/ginc/concepts.py FOLDER [EXAMPLE_LENGTH]

This writes the process of the documents, or that of prompts of examples of so many tokens, to a folder that every
command takes in place of a name.

Xie, Raghunathan, Liang and Ma, "An explanation of in-context learning as implicit Bayesian inference", ICLR 2022
(arXiv 2111.02080). A hidden state is a pair of a value (the paper's entity) and a property, which move independently.
A table with a row for each value and a column for each property, the same for all HMMs, has the symbol that a state
emits. Property 0 emits the delimiter, symbol 0, whatever the value. The HMMs, called concepts, differ in the chain of
their properties and in their first states.

What is taken from the authors' repository, github.com/p-lambda/incontext-learning at commit 84fab21 (lines of
`generate_data.py` where no other file is named):

- 10 values, 10 properties, 50 symbols, temperatures 0.1 and 10, weight 0.9 of the identity, 10 HMMs
  (`scripts/runner.sh`, lines 8 to 14), of which the first half is trained on (lines 396 and 437) with equal
  probabilities (line 322);
- symbols of the table: uniform over all but the delimiter (line 410), which has property 0 (line 412);
- first states: the softmax of uniform numbers by a temperature (line 79);
- a chain: the mean of as many random permutations as it has states, by weights that are the softmax of uniform numbers
  by a temperature (lines 45 to 48). That of the values, which all HMMs share, is mixed with the identity (lines 90 to
  94). Both chains move at every token (line 96);
- the seed, 1111 (line 387), that plus 3 for the chain of values (line 429), and the order of the draws, of NumPy's
  legacy generator, whose numbers do not change between versions. So the tables of the default are those that the
  authors published (`data/.../fixed_params.pkl` and `id_params.pkl`), up to rounding;
- prompts: concept and first property (not 0) are drawn once per prompt, the first value anew for each example, which
  is drawn from the concept and followed by the delimiter (lines 203 to 223). Examples have 3, 5, 8 or 10 tokens (line
  494). The answer is the most probable last token under the concept and the first property (lines 250 to 258).

What differs: sequences are drawn by this package's generator, so that documents and prompts have the distributions of
the published ones and are not the same. The authors concatenate documents of 10,240 tokens without anything between
them and cut them into windows of 1,024 tokens (line 399; `run_clm.py`, lines 461 to 474), whereas a sequence here is
a document. Their prompts of concepts that were not trained on (`OOD_sample`) are not built.
"""

import itertools
import sys
from string import ascii_lowercase

import numpy as np
from jaxtyping import Float

from hmm_datasets import HMM, HMMMixture
from hmm_datasets.errors import InputError
from hmm_datasets.hmm.families.mixture import ProcessMixture
from hmm_datasets.hmm.integers import integer
from hmm_datasets.hmm.processes import leaky
from hmm_datasets.hmm.structured.delimited import DelimitedProcess
from hmm_datasets.runtime.one_line_errors import one_line_errors

DELIMITER = 0
"""The symbol of property 0, which separates the examples of a prompt."""

_SEED_OF_VALUES = 3
"""What is added to the seed for the chain of values."""


def ginc(
    num_values: int = 10,
    num_properties: int = 10,
    num_symbols: int = 50,
    num_concepts: int = 5,
    *,
    transition_temperature: float = 0.1,
    start_temperature: float = 10.0,
    value_identity: float = 0.9,
    leak: float = 0.0,
    seed: int = 1111,
) -> HMMMixture:
    """The documents of GINC: a mixture of HMMs, equally likely, whose states are pairs of a value and a property.

    State `value * num_properties + property` emits one symbol with certainty. The defaults are those of the smallest
    data set of the authors, whose tables these are up to rounding; see the module for the source of each. With 100 and
    150 symbols they are those of the other two settings. Of 10 concepts the last five are those that the authors keep
    for prompts of unknown concepts.

    Args:
        num_values, num_properties, num_symbols, num_concepts (`int`, *optional*): sizes; 2 symbols or more.
        transition_temperature (`float`, *optional*, defaults to 0.1): of the weights of permutations; a low one makes
            a chain nearly deterministic.
        start_temperature (`float`, *optional*, defaults to 10.0): of the first state, which is nearly uniform.
        value_identity (`float`, *optional*, defaults to 0.9): probability that the value stays for certain.
        leak (`float`, *optional*, defaults to 0.0): probability per token that a concept shows a uniform symbol and
            then begins anew (see [`leaky`][hmm_datasets.hmm.processes.leaky]). Many prompts are impossible as
            documents, because few properties can be followed by the delimiter; with a leak none is, and the
            mixture predicts them all. The authors have none.
        seed (`int`, *optional*, defaults to 1111): of the tables.

    Raises:
        `InputError`: a size, a temperature or a probability is out of range.

    ```python
    >>> family = ginc()
    >>> family.hmms[0].num_states, family.num_symbols, len(family.hmms)
    (100, 50, 5)

    ```
    """
    sizes = {"num_values": num_values, "num_properties": num_properties, "num_concepts": num_concepts}
    values, properties, concepts = (integer(name, size, 1, 15) for name, size in sizes.items())
    symbols = integer("num_symbols", num_symbols, 2, 15)
    seed = integer("seed", seed, 0, 31)
    for name, temperature in (("transition", transition_temperature), ("start", start_temperature)):
        if not 0 < temperature < np.inf:
            raise InputError(f"{name}_temperature is {temperature}; expected a positive number")
    for name, probability in (("value_identity", value_identity), ("leak", leak)):
        if not 0 <= probability <= 1:
            raise InputError(f"{name} is {probability}; expected a probability")
    generator = np.random.RandomState(seed)
    table = generator.randint(low=1, high=symbols, size=(values, properties))
    table[:, 0] = DELIMITER
    emission = np.eye(symbols)[table.reshape(-1)]
    mixed = _chain(np.random.RandomState(seed + _SEED_OF_VALUES), values, transition_temperature)
    chain_of_values = (1 - value_identity) * mixed + value_identity * np.eye(values)
    hmms = []
    for _ in range(concepts):
        start = _weights(generator, values * properties, start_temperature)
        chain_of_properties = _chain(generator, properties, transition_temperature)
        tables = {"start": start, "transition": np.kron(chain_of_values, chain_of_properties), "emission": emission}
        hmm = HMM(**tables, vocabulary=_names(symbols), normalize=True)
        hmms.append(leaky(hmm, leak) if leak else hmm)
    return HMMMixture(tuple(hmms), (1 / concepts,) * concepts)


def ginc_prompts(concepts: HMMMixture, example_length: int) -> ProcessMixture:
    """The prompts of GINC: examples of one concept and one first property, each followed by the delimiter.

    A component is a concept and a first property, `concept * (num_properties - 1) + property - 1`, equally likely. A
    row of `k * (example_length + 1) + example_length - 1` tokens is a prompt of `k` examples and a last one without
    its answer. [`next_token_probs`][hmm_datasets.hmm.families.mixture.Mixture.next_token_probs] is the Bayes-optimal
    predictor of one who knows how prompts are made, whereas that of [`ginc`] takes them for documents. The authors'
    answer is the most probable token of `oracle_next_token_probs`.

    Args:
        concepts ([`HMMMixture`]): of [`ginc`], without a leak.
        example_length (`int`): tokens of an example, with its answer; 2 or more.

    Raises:
        `InputError`: the mixture is another one, or the examples are too short.

    ```python
    >>> prompts = ginc_prompts(ginc(), example_length=3)
    >>> rows = prompts.sample(4, 2 * 4 + 2, seed=0)  # two examples, and two tokens of the third
    >>> answers = prompts.oracle_next_token_probs(rows, seed=0)[:, -1].argmax(-1)
    >>> (prompts.next_token_probs(rows)[:, -1].argmax(-1) == answers).tolist()
    [True, True, True, True]

    ```
    """
    example_length = integer("example_length", example_length, 2, 31)
    components = []
    for hmm in concepts.hmms:
        num_properties = _num_properties(hmm)
        places = np.arange(hmm.num_states) % num_properties
        for first_property in range(1, num_properties):
            tables = hmm.tables() | {"start": (places == first_property) / np.sum(places == first_property)}
            components.append(DelimitedProcess(HMM(**tables), example_length, DELIMITER))
    if not components:
        raise InputError("concepts have one property, which emits the delimiter; expected two or more")
    weights = np.repeat(concepts.weights, len(components) // len(concepts.hmms))
    return ProcessMixture(components, weights / weights.sum())


def _chain(generator: np.random.RandomState, size: int, temperature: float) -> Float[np.ndarray, "N N"]:
    """The weighted mean of `size` random permutation matrices."""
    weights = _weights(generator, size, temperature)
    permutations = np.stack([np.eye(size)[generator.permutation(size)] for _ in range(size)])
    return np.sum(weights[:, None, None] * permutations, axis=0)


def _weights(generator: np.random.RandomState, size: int, temperature: float) -> Float[np.ndarray, "N"]:
    """The softmax of uniform numbers by a temperature, in the order in which the authors draw and round."""
    logits = (generator.rand(size) - 0.5) / temperature
    powers = np.exp(logits - logits.max())
    return powers / powers.sum()


def _names(count: int) -> list[str]:
    """The delimiter and the shortest words without a letter twice, in alphabetical order."""
    lengths = range(1, len(ascii_lowercase))
    words = itertools.chain.from_iterable(itertools.permutations(ascii_lowercase, length) for length in lengths)
    return ["/", *map("".join, itertools.islice(words, count - 1))]


def _num_properties(hmm: HMM) -> int:
    """The number of properties, from the states that emit the delimiter."""
    delimiters = [] if hmm.emission is None else np.flatnonzero(hmm.emission[:, DELIMITER] == 1)
    period = hmm.num_states // max(len(delimiters), 1)
    if not np.array_equal(delimiters, np.arange(0, hmm.num_states, period)):
        raise InputError("concepts are not those of GINC; expected ginc(...) without a leak")
    return period


if __name__ == "__main__":
    with one_line_errors():
        folder, *lengths = sys.argv[1:]
        process = ginc_prompts(ginc(), int(lengths[0])) if lengths else ginc()
        process.save_pretrained(folder)
