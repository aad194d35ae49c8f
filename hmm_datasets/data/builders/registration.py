"""Registration of the builders for `load_dataset`, without importing `datasets`."""

from ...compat.datasets_table import add_builders

_COLUMNS_VERSION = 4
"""Version of the columns of prepared rows. It must change when the columns or their types change."""


def register() -> None:
    """Register the builders of this package with `datasets`. Calling it twice does no harm."""
    add_builders(_builders, without_files="hmm")


def _builders() -> dict[str, tuple[str, str]]:
    from ...hmm import storage
    from ...text.stream import index

    # The version is part of the name of the cache, so data of another format version are prepared again.
    return {
        "hmm": (
            "hmm_datasets.data.builders.hmm",
            f"hmm-datasets-format-{storage.FORMAT_VERSION}-columns-{_COLUMNS_VERSION}",
        ),
        "token_shards": (
            "hmm_datasets.data.builders.token_shards",
            f"token-shards-format-{index.FORMAT_VERSION}-columns-{_COLUMNS_VERSION}",
        ),
    }
