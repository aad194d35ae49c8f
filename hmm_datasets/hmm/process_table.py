"""The kinds of processes and their constructors: an entry of [`TABLE`] is all that a new one needs outside its module.

Functions of [`~hmm_datasets.hmm.processes`] whose arguments all have defaults are found without one. Nothing is
imported here, so that names are known without what they name.
"""

from typing import NamedTuple


class Entry(NamedTuple):
    """A class of processes, or a function that makes one.

    Attributes:
        where (`str`): module, relative to this package, and attribute.
        name (`str`, *optional*): its name in commands; the same attribute may have its name in another entry.
        example (`str`, *optional*): arguments of an example, for tables of processes and tests.
        kind (`str`, *optional*): of a class, its `stored_name`, which is in the folders of its processes.
    """

    where: str
    name: str | None = None
    example: str = ""
    kind: str | None = None


TABLE = (
    Entry("families.tasks:AssociativeRecall", "associative_recall", "8, 8, 4", "associative_recall"),
    Entry("families.tasks:Bijection", "bijection", "20", "bijection"),
    Entry("families.tasks:Copying", "copying", "8, 8", "copying"),
    Entry("families.chains:RandomChains", "random_chains", "3, alpha=1.0", "RandomChains"),
    Entry("families.chains:HigherOrderChains", "higher_order_chains", "2, 3", "HigherOrderChains"),
    Entry("families.automata:RandomAutomata", "random_automata", "8, 18", "RandomAutomata"),
    Entry("families.permuted:PermutedEmissions", "permuted_emissions", "dishonest_casino()", "PermutedEmissions"),
    Entry("families.permuted:PermutedSymbols", "permuted_symbols", "mess3()", "PermutedSymbols"),
    Entry("families.mixture:HMMMixture", "hmm_mixture", "[golden_mean(), even()], [0.25, 0.75]", "Mixture"),
    Entry("families.mixture:ProcessMixture", "mixture", "[golden_mean(), even()]", "process_mixture"),
    Entry("families.mixture:ChainMixture", kind="chain_mixture"),
    Entry("families.mixture:random_chain_mixture", "chain_mixture", "16, 10"),
    Entry("families.ginc:ginc", "ginc"),
    Entry("families.ginc:ginc_prompts", "ginc_prompts", "ginc(3, 3, 6), 3"),
    Entry("generalized:GeneralizedHMM", kind="generalized"),
    Entry("grammar.pcfg:PCFG", kind="pcfg"),
    Entry("grammar.pcfg:PCFG.from_rules", "grammar", "'S -> a S b | a b'"),
    Entry("grammar.hierarchical:physics_of_language_models", "physics_of_language_models", "'cfg3f'"),
    Entry("grammar.hierarchical:random_hierarchy", "random_hierarchy", "8, 2"),
    Entry("loading:load_source", "load"),
    Entry("processes:dyck", "dyck", "4, kinds=2"),
    Entry("processes:leaky", "leaky", "random_markov_chain(1, 3), 0.1"),
    Entry("processes:left_right", "left_right", "4, 8"),
    Entry("processes:noisy", "noisy", "mess3(), 0.1"),
    Entry("processes:random", "random", "8, 16"),
    Entry(
        "structured.blocked:BlockedHMM",
        "blocked",
        "[0.5, 0.5], [[0.7, 0.3], [0.2, 0.8]], [[1, 0], [0.4, 0.6]], [[0.5], [0.5], [1]], [0, 0, 1]",
        "blocked",
    ),
    Entry("structured.delimited:DelimitedProcess", "delimited", "umbrella(), 2", "delimited"),
    Entry("structured.ended:EndedProcess", "ended", "mess3(), 2", "ended"),
    Entry("structured.factored:FactoredProcess", "factored", "[mess3(), golden_mean()]", "factored"),
    Entry(
        "structured.input_output:InputOutputHMM",
        "input_output",
        "edges=[[[[0, 1], [0, 0]], [[0, 0], [1, 0]]], [[[1, 0], [0, 0]], [[0, 0], [0, 1]]]]",
        "input_output",
    ),
    Entry("structured.leaky:LeakyProcess", kind="leaky"),
    Entry("structured.markov:MarkovChain", "markov_chain", "[[0.9, 0.1], [0.2, 0.8]]", "markov_chain"),
    Entry("structured.markov:random_markov_chain", "random_markov_chain", "2, 4"),
)
"""What folders and commands name."""
