"""Families of HMMs: a new HMM for every sequence, or for every `group` sequences, to study learning in context.

- [`PermutedSymbols`]: one HMM with its symbols renamed;
- [`PermutedEmissions`]: one HMM with the rows of its emission table shuffled among its states;
- [`RandomChains`]: chains with tables drawn from a prior, observed or hidden;
- [`HigherOrderChains`]: chains of order `k`;
- [`ContextTrees`]: chains of variable order, the prior of context-tree weighting;
- [`HMMMixture`]: one of finitely many HMMs, drawn by their weights;
- [`RandomAutomata`]: random probabilistic finite automata.

As with a single HMM, sequence `i` of the stream `seed` depends on `(family, seed, i)` alone, and not on the batch,
rank or worker. See `family` for the random numbers. `family.save_pretrained(folder)` writes a family; [`load_source`]
reads a family or an HMM.
"""

from ..loading import load_source as load_source
from .automata import RandomAutomata as RandomAutomata
from .chains import ContextTrees as ContextTrees
from .chains import HigherOrderChains as HigherOrderChains
from .chains import RandomChains as RandomChains
from .family import Family as Family
from .mixture import HMMMixture as HMMMixture
from .permuted import PermutedEmissions as PermutedEmissions
from .permuted import PermutedSymbols as PermutedSymbols
