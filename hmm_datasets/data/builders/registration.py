"""Makes `load_dataset("hmm", ...)` and `"token_shards"` known, without importing `datasets` before the user does."""

from ...compat.datasets_table import enter_builders

_COLUMNS_VERSION = 3
"""Changes whenever prepared rows have other columns, or columns of other types."""


def register() -> None:
    """Have `datasets` know the builders of this package by name. Calling it twice does no harm."""
    enter_builders(_builders)


def _builders() -> dict[str, tuple[str, str]]:
    from ...hmm import format as hmm_format
    from ...text.stream import index as token_index

    # The version is part of the cache's name: data of another format version are prepared anew.
    return {
        "hmm": (
            "hmm_datasets.data.builders.hmm",
            f"hmm-datasets-format-{hmm_format.FORMAT_VERSION}-columns-{_COLUMNS_VERSION}",
        ),
        "token_shards": (
            "hmm_datasets.data.builders.token_shards",
            f"token-shards-format-{token_index.FORMAT_VERSION}-columns-{_COLUMNS_VERSION}",
        ),
    }
