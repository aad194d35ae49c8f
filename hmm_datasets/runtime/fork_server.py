"""Imported by a fork server before its first fork: it ends with the process that started it, and its forks with it."""

import os

from .parent_watch import end_with_parent

end_with_parent()
os.register_at_fork(after_in_child=end_with_parent)
