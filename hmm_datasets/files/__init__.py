"""Files and folders that are whole or not there at all, their digests, and JSON and YAML in them."""

from .atomic import (
    atomic_file,
    atomic_folder,
    discard_unfinished,
    scratch_folder,
    size_of,
    unfinished,
    written_together,
)
from .check_write import before_write, check_may_write
from .containment import inside
from .digests import (
    DIGESTS_NAME,
    check_digests,
    digest_problems,
    file_digest,
    missing_files,
    recorded_digests,
    write_digests,
    written_with_digests,
)
from .json_files import read_bytes, read_json, write_json
from .json_lines import append_jsonl, read_jsonl, read_log, write_jsonl
from .overwriting import overwrite
from .replacing import move_into, put_folder, restore_all, restored
from .syncing import sync, sync_tree
from .temporary import discard, remove, tidy, unchanged_for
from .yaml_files import parse_yaml, read_yaml, write_yaml

__all__ = [
    "DIGESTS_NAME",
    "append_jsonl",
    "atomic_file",
    "atomic_folder",
    "before_write",
    "check_digests",
    "check_may_write",
    "digest_problems",
    "discard",
    "discard_unfinished",
    "file_digest",
    "inside",
    "missing_files",
    "move_into",
    "overwrite",
    "parse_yaml",
    "put_folder",
    "read_bytes",
    "read_json",
    "read_jsonl",
    "read_log",
    "read_yaml",
    "recorded_digests",
    "remove",
    "restore_all",
    "restored",
    "scratch_folder",
    "size_of",
    "sync",
    "sync_tree",
    "tidy",
    "unchanged_for",
    "unfinished",
    "write_digests",
    "write_json",
    "write_jsonl",
    "write_yaml",
    "written_together",
    "written_with_digests",
]
