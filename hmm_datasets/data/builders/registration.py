"""Makes `load_dataset("hmm", ...)` and `"token_shards"` known, without importing `datasets` before the user does.

`datasets` no longer runs loading scripts; what it loads by a bare name stands in a table of packaged modules. The
builders are entered there: at once if `datasets` is imported already, otherwise right after it is, by a finder that
steps aside as soon as its work is done.
"""

import importlib.abc
import importlib.util
import sys

_TABLE_MODULE = "datasets.packaged_modules"
_COLUMNS_VERSION = 2
"""Changes whenever prepared rows have other columns, or columns of other types."""


def register() -> None:
    """Enter the builders in the table of `datasets`, now or when it is imported. Calling it twice does no harm."""
    if _TABLE_MODULE in sys.modules:
        _enter(sys.modules[_TABLE_MODULE])
    elif not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport())


def _enter(table_module) -> None:
    from ...hmm import format as hmm_format
    from ...text.stream import index as token_index

    # The second entry is part of the cache key: data of another format version are prepared anew.
    versions = {
        name: f"{name}-format-{version}-columns-{_COLUMNS_VERSION}"
        for name, version in (
            ("hmm-datasets", hmm_format.FORMAT_VERSION),
            ("token-shards", token_index.FORMAT_VERSION),
        )
    }
    table_module._PACKAGED_DATASETS_MODULES |= {
        "hmm": ("hmm_datasets.data.builders.hmm", versions["hmm-datasets"]),
        "token_shards": ("hmm_datasets.data.builders.token_shards", versions["token-shards"]),
    }


class _AfterImport(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path, target=None):
        if fullname != _TABLE_MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        run_module = spec.loader.exec_module

        def exec_module(module):
            run_module(module)
            _enter(module)

        spec.loader.exec_module = exec_module
        return spec
