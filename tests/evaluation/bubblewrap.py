"""A mark for tests that run code in bubblewrap."""

import pytest

from hmm_datasets.errors import InputError
from hmm_datasets.evaluation.chat_core.sandbox import check_sandbox

try:
    check_sandbox()
    WORKS, _REASON = True, ""
except InputError as error:
    WORKS, _REASON = False, str(error)

needs_bubblewrap = pytest.mark.skipif(not WORKS, reason=_REASON)
