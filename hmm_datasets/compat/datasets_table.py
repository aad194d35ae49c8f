"""datasets: the table of builders that `load_dataset` finds by a bare name, and builders that need no files.

`datasets` no longer runs loading scripts, and has no entry points for builders. The builders it finds by a bare name
are in `datasets.packaged_modules._PACKAGED_DATASETS_MODULES`, a dict from the name to `(module, hash)`. This module
adds builders to it. `datasets` looks for the files of such a builder in `data_dir` before it makes the builder;
`PackagedDatasetModuleFactory.get_module` is replaced by one that does not for a builder that understands `data_dir` by
itself. If `datasets` is not imported yet, a finder does both right after its modules are
imported and then removes itself. We know of no issue upstream. This can be removed once `datasets` finds builders by
entry points, and lets them look for their files.

Checked against 5.2. Nothing is imported from `datasets`, so that `import hmm_datasets` stays fast.
"""

import functools
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

TABLE_MODULE = "datasets.packaged_modules"
FACTORY_MODULE = "datasets.load"

Entries = Callable[[], dict[str, tuple[str, str]]]


def add_builders(entries: Entries, without_files: str) -> None:
    """Add builders to the table, now or when `datasets` is imported. Calling it twice does no harm.

    Args:
        entries (callable): returns for each name the module of the builder, and a version of its data, which becomes
            part of the name of their cache.
        without_files (`str`): name of the builder that gets `data_dir` without a look for files.
    """
    actions: dict[str, Callable[[ModuleType], None]] = {
        TABLE_MODULE: lambda module: module._PACKAGED_DATASETS_MODULES.update(entries()),
        FACTORY_MODULE: lambda module: _replace_get_module(module.PackagedDatasetModuleFactory, without_files),
    }
    for name in [name for name in actions if name in sys.modules]:
        actions.pop(name)(sys.modules[name])
    if actions and not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport(actions))


def _replace_get_module(factory: Any, without_files: str) -> None:
    original: Callable[[Any], Any] = vars(factory)["get_module"]
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def get_module(self: Any) -> Any:
        if self.data_files is None and self.name == without_files:
            self.data_files = {}
        return original(self)

    factory.get_module = get_module


class _AfterImport(importlib.abc.MetaPathFinder):
    def __init__(self, actions: dict[str, Callable[[ModuleType], None]]):
        self.actions = actions

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        action = self.actions.pop(fullname, None)
        if action is None:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            if self.actions:
                sys.meta_path.insert(0, self)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        run_module = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run_module(module)
            action(module)

        loader.exec_module = exec_module
        return spec
