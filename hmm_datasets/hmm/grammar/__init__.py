"""Probabilistic context-free grammars: sentences with an exact next-token distribution.

- [`PCFG`]: any grammar, from rules;
- [`physics_of_language_models`]: the hierarchical grammars `cfg3b` .. `cfg3k`;
- [`random_hierarchy`]: the random hierarchy model.
"""

from .hierarchical import physics_of_language_models as physics_of_language_models
from .hierarchical import random_hierarchy as random_hierarchy
from .pcfg import PCFG as PCFG
