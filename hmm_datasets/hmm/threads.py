"""Parts of a task side by side, in threads of this process."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def in_parallel(work: Callable[[Any], None], parts: Sequence[Any], num_threads: int) -> None:
    """Call `work(part)` for every part, in so many threads; for one thread, or one part, in this one.

    Compiled kernels that release Python's global lock run side by side. These are Python's threads, because numba's
    own pools of threads do not survive the fork of a DataLoader's worker.
    """
    if num_threads == 1 or len(parts) == 1:
        for part in parts:
            work(part)
        return
    with ThreadPoolExecutor(num_threads) as pool:
        list(pool.map(work, parts))
