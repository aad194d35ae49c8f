"""Probabilistic context-free grammars: sentences with an exact next-token distribution.

- [`PCFG`]: any grammar, from rules;
- [`physics_of_language_models`]: the hierarchical grammars `cfg3b` .. `cfg3k`;
- [`random_hierarchy`]: the random hierarchy model.
"""

from .hierarchical import physics_of_language_models, random_hierarchy
from .pcfg import PCFG

__all__ = ["PCFG", "physics_of_language_models", "random_hierarchy"]
