"""Modules of the folders of experiments, for tests that call them in this process.

An experiment runs as a program, and imports `measure` and `plot` from its own folder. All experiments have modules of
these names, so a test that calls several of them must not find those of another.
"""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType

from hmm_datasets.runtime.shipped import EXPERIMENTS, shipped

_loaded: dict[str, dict[str, ModuleType]] = {}
"""The modules of each experiment by name, imported once."""


def load(experiment: str, module: str = "run") -> ModuleType:
    """A module of an experiment: `load("icll", "compare")` is that of `recipes/experiments/icll/compare.py`."""
    with imports_of(experiment):
        return importlib.import_module(module)


@contextlib.contextmanager
def imports_of(experiment: str) -> Iterator[None]:
    """Within this context modules are imported from the folder of the experiment, as in its program."""
    folder = (
        next(one for one in (shipped(EXPERIMENTS), shipped("recipes")) if (one / experiment).is_dir()) / experiment
    )
    names = {path.stem for path in folder.glob("*.py")}
    hidden = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    sys.modules.update(_loaded.setdefault(experiment, {}))
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        _loaded[experiment] |= {name: sys.modules.pop(name) for name in names if name in sys.modules}
        sys.modules.update(hidden)
