"""The kinds of processes and their constructors: an entry of [`TABLE`] is all that a new one needs outside its module.

Functions of [`~hmm_datasets.hmm.processes`] whose arguments all have defaults are found without one. Nothing is
imported here, so that names are known without what they name.
"""

TABLE: tuple[tuple[str, str | None, str, str | None], ...] = (
    ("families.episodic_tasks:AssociativeRecall", "associative_recall", "8, 8, 4", "associative_recall"),
    ("families.episodic_tasks:Bijection", "bijection", "20", "bijection"),
    ("families.episodic_tasks:Copying", "copying", "8, 8", "copying"),
    ("families.chains:RandomChains", "random_chains", "3, alpha=1.0", "RandomChains"),
    ("families.chains:HigherOrderChains", "higher_order_chains", "2, 3", "HigherOrderChains"),
    ("families.chains:ContextTrees", "context_trees", "3, 2", "context_trees"),
    ("families.automata:RandomAutomata", "random_automata", "8, 18", "RandomAutomata"),
    ("families.permuted:PermutedEmissions", "permuted_emissions", "dishonest_casino()", "PermutedEmissions"),
    ("families.permuted:PermutedSymbols", "permuted_symbols", "mess3()", "PermutedSymbols"),
    ("families.mixture:HMMMixture", "hmm_mixture", "[golden_mean(), even()], [0.25, 0.75]", "Mixture"),
    ("families.mixture:ProcessMixture", "mixture", "[golden_mean(), even()]", "process_mixture"),
    ("families.mixture:ChainMixture", None, "", "chain_mixture"),
    ("families.mixture:random_chain_mixture", "chain_mixture", "16, 10", None),
    ("generalized:GeneralizedHMM", None, "", "generalized"),
    ("grammar.pcfg:PCFG", None, "", "pcfg"),
    ("grammar.pcfg:PCFG.from_rules", "grammar", "'S -> a S b | a b'", None),
    ("grammar.hierarchical:physics_of_language_models", "physics_of_language_models", "'cfg3f'", None),
    ("grammar.hierarchical:random_hierarchy", "random_hierarchy", "8, 2", None),
    ("loading:load_source", "load", "", None),
    ("processes:dyck", "dyck", "4, kinds=2", None),
    ("processes:leaky", "leaky", "mess3(), 0.1", None),
    ("processes:left_right", "left_right", "4, 8", None),
    ("processes:noisy", "noisy", "mess3(), 0.1", None),
    ("processes:random", "random", "8, 16", None),
    (
        "structured.blocked:BlockedHMM",
        "blocked",
        "[0.5, 0.5], [[0.7, 0.3], [0.2, 0.8]], [[1, 0], [0.4, 0.6]], [[0.5], [0.5], [1]], [0, 0, 1]",
        "blocked",
    ),
    ("structured.delimited:DelimitedProcess", "delimited", "umbrella(), 2", "delimited"),
    ("structured.ended:EndedProcess", "ended", "mess3(), 2", "ended"),
    ("structured.factored:FactoredProcess", "factored", "[mess3(), golden_mean()]", "factored"),
    ("structured.markov:MarkovChain", "markov_chain", "[[0.9, 0.1], [0.2, 0.8]]", "markov_chain"),
    ("structured.markov:random_markov_chain", "random_markov_chain", "2, 4", None),
    ("structured.tokenized:TokenizedProcess", None, "", "tokenized"),
    ("structured.tokenized:tokenized", "tokenized", "mess3(), 8", None),
)
"""What folders and commands name, an entry each:

- module, relative to this package, and attribute, of a class of processes or a function that makes one;
- its name in commands, or None for a class that has none;
- arguments of an example, for tables of processes and for tests;
- of a class, its `stored_name`, which is in the folders of its processes, else None.
"""
