"""A fresh HMM for every sequence, or for every `group` sequences: data to study learning in context.

- [`PermutedSymbols`]: one HMM, its symbols renamed;
- [`PermutedEmissions`]: one HMM, the rows of its emission table shuffled among its states;
- [`RandomChains`]: chains with tables drawn from a prior, observed or hidden;
- [`HMMMixture`]: one of finitely many HMMs, by their weights.

A family is a pure function: sequence `i` of the stream `seed` depends on `(family, seed, i)` alone, whatever the
batch, rank or worker, as with one HMM; see `family` for the random numbers behind it. `family.save_pretrained(folder)`
writes it; [`load_source`] reads it, or an HMM.
"""

from .chains import RandomChains
from .family import Family
from .mixture import HMMMixture
from .permuted import PermutedEmissions, PermutedSymbols
from .storage import load_source

__all__ = ["Family", "HMMMixture", "PermutedEmissions", "PermutedSymbols", "RandomChains", "load_source"]
