"""Faults that tests order from the local Hub, and the log in which they see what was asked of it.

With `--testing`, the server accepts `POST /faults` with a JSON object, the arguments of [`Fault`], and writes one line
for each request to `requests.jsonl` in its folder.
"""

import json
import os
import re
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Moment = Literal["before", "half", "data", "reply"]


@dataclass
class Fault:
    """What happens to a request instead of an answer.

    Args:
        method (`str`): method of the requests, as a regular expression.
        path (`str`): a regular expression that is searched for in their paths.
        client (`str`, *optional*): a text in their header `User-Agent`; by default requests of all clients.
        action (`str`, *optional*, defaults to `"status"`): `"status"` answers with `status`, `body` and `headers`;
            `"drop"` closes the connection; `"kill"` ends `process` with SIGKILL and closes the connection.
        moment (`str`, *optional*, defaults to `"before"`): when a connection is closed or a process killed:
            `"before"` anything is read, after `"half"` of the data, after all `"data"` but before anything is done,
            or after everything is done, before the `"reply"`.
        times (`int`, *optional*, defaults to 1): the number of requests.
    """

    method: str
    path: str
    client: str = ""
    action: Literal["status", "drop", "kill"] = "status"
    moment: Moment = "before"
    status: int = 503
    times: int = 1
    body: str = '{"error": "ordered fault"}'
    headers: dict[str, str] = field(default_factory=dict)
    process: int = 0

    def strike(self) -> None:
        """Kill the process, if that is what was ordered."""
        if self.action == "kill":
            os.kill(self.process, signal.SIGKILL)


class Testing:
    """The ordered faults, and the log of requests."""

    def __init__(self, log: Path):
        self._log, self._faults, self._lock = log, list[Fault](), threading.Lock()
        log.touch()

    def order(self, fault: Fault) -> None:
        """Add a fault; it is looked for after those that were ordered before it."""
        with self._lock:
            self._faults.append(fault)

    def clear(self) -> None:
        """Forget all faults."""
        with self._lock:
            self._faults.clear()

    def fault(self, method: str, path: str, client: str) -> Fault | None:
        """The fault for a request, if there is one; it is then used up by one."""
        with self._lock:
            for fault in self._faults:
                is_meant = re.fullmatch(fault.method, method) and re.search(fault.path, path)
                if is_meant and fault.client in client and fault.times > 0:
                    fault.times -= 1
                    return fault
        return None

    def log(self, **row: Any) -> None:
        """Write one line, with the time."""
        with self._lock, self._log.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**row, "time": time.time()}) + "\n")
