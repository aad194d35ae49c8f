"""datasets: the table of builders that `load_dataset` finds by a bare name.

`datasets` no longer runs loading scripts, and has no entry points for builders. The builders it finds by a bare name
are in `datasets.packaged_modules._PACKAGED_DATASETS_MODULES`, a dict from the name to `(module, hash)`. This module
adds builders to it. If `datasets` is not imported yet, a finder adds them right after its import and then removes
itself. We know of no issue upstream. This can be removed once `datasets` finds builders by entry points.

Checked against 5.2. Nothing is imported from `datasets`, so that `import hmm_datasets` stays fast.
"""

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

TABLE_MODULE = "datasets.packaged_modules"

Entries = Callable[[], dict[str, tuple[str, str]]]


def add_builders(entries: Entries) -> None:
    """Add builders to the table, now or when `datasets` is imported. Calling it twice does no harm.

    Args:
        entries (callable): returns for each name the module of the builder, and a version of its data, which becomes
            part of the name of their cache.
    """
    if TABLE_MODULE in sys.modules:
        _add(sys.modules[TABLE_MODULE], entries)
    elif not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport(entries))


def _add(module: ModuleType, entries: Entries) -> None:
    module._PACKAGED_DATASETS_MODULES.update(entries())


class _AfterImport(importlib.abc.MetaPathFinder):
    def __init__(self, entries: Entries):
        self.entries = entries

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != TABLE_MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        run_module = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run_module(module)
            _add(module, self.entries)

        loader.exec_module = exec_module
        return spec
