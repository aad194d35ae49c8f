"""The heartbeats of this process: every part of the package may name its phase, whether any are written or not."""

import contextlib
import os
from collections.abc import Iterator

from ..errors import first_line
from .heartbeat_writer import BEAT_EVERY, HeartbeatWriter
from .rank_heartbeats import FAILED

_writer = HeartbeatWriter()  # of this process
enter, during, count, compiling = _writer.enter, _writer.during, _writer.count, _writer.compile
name_device, forget_earlier = _writer.name_device, _writer.forget_earlier
end, end_at_once = _writer.end, _writer.end_at_once


@contextlib.contextmanager
def heartbeat(folder: str | os.PathLike | None, every: float = BEAT_EVERY) -> Iterator[None]:
    """A context in which this process writes heartbeats; nothing happens without a folder, or inside another one.

    After an error the file has its name.

    Args:
        folder (path, *optional*): folder of the run.
        every (`float`, *optional*): seconds between two heartbeats.
    """
    if folder is None or _writer._file is not None:
        yield
        return
    _writer.begin(folder, every)
    try:
        yield
    except BaseException as error:
        _writer.end(FAILED, first_line(error), type(error).__name__)
        raise
    else:
        _writer.end()
    finally:
        _writer._file = None
