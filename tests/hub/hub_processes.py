"""A local Hub in a separate process, and child processes that use it with the real client.

The client reads its endpoint from the environment when it is imported, and keeps a cache: so all that pushes or
pulls runs in a child process with a fresh environment and home. Given the fixture `warm_python`, the child is forked.
"""

import json
import os
import shlex
import subprocess
import sys
import textwrap
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTHONPATH = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
START = (sys.executable, str(ROOT / "tests" / "local_hub"))

PUSH = """
    import dataclasses, json, sys
    import os
    from huggingface_hub import constants
    assert constants.ENDPOINT == os.environ["HF_ENDPOINT"]
    from hmm_datasets.errors import InputError
    from hmm_datasets.hub import push_folder
    folder, repo_id, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    try:
        print(json.dumps(dataclasses.asdict(push_folder(folder, repo_id, **options))))
    except InputError as error:
        print(json.dumps({"error": str(error)}))
"""


def variables_to_paste(process: subprocess.Popen) -> dict[str, str]:
    """The environment variables that the local Hub tells its users to set."""
    line = next(line for line in process.stdout if line.strip().startswith("export "))
    return dict(word.split("=", 1) for word in shlex.split(line)[1:])


PULL = """
    import json, sys
    from huggingface_hub import snapshot_download
    print(json.dumps(snapshot_download(sys.argv[1], repo_type=sys.argv[2])))
"""


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a folder by their relative paths."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _end(process: subprocess.Popen) -> None:
    """End a program that ends with its standard input."""
    process.stdin.close()
    try:
        process.wait(timeout=1)
    except subprocess.TimeoutExpired:  # a forked child of the tests holds the other end of its standard input
        process.kill()
        process.wait()
    process.stdout.close()


class LocalHub:
    """The server's address, and what tests ask of it."""

    def __init__(self, root: Path, *options: str, python: str = sys.executable):
        self.python = python
        command = [*START, "--testing", "--user", "tester"]
        # The server ends with its standard input, so that it does not outlive a killed test run.
        process = subprocess.Popen(
            [*command, "--port", "0", "--folder", str(root), "--stop-with-stdin", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": PYTHONPATH},
        )
        self._connect(process, root)

    @classmethod
    def of(cls, process: subprocess.Popen, root: Path, python: str = sys.executable) -> "LocalHub":
        """A server that somebody else has started."""
        hub = cls.__new__(cls)
        hub.python = python
        hub._connect(process, root)
        return hub

    def _connect(self, process: subprocess.Popen, root: Path) -> None:
        self.process, self.root, self.variables = process, root, variables_to_paste(process)
        self.endpoint, self.token = self.variables["HF_ENDPOINT"], self.variables["HF_TOKEN"]

    def stop(self) -> None:
        _end(self.process)

    def environment(self, home: Path, **changes: str | None) -> dict[str, str]:
        # DS_: what a test in this process has set there would keep the child from being forked.
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING", "DS_"))}
        environment = {
            **kept,
            **self.variables,
            "HF_HOME": str(home),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": PYTHONPATH,
            **changes,
        }
        return {name: value for name, value in environment.items() if value is not None}

    def child(self, code: str, home: Path, *arguments: object, python: str | None = None, **changes: str | None):
        """Run `code` in a process of its own, its `arguments` in `sys.argv`; return the JSON it prints last."""
        done = subprocess.run(
            [python or self.python, "-c", textwrap.dedent(code), *map(str, arguments)],
            env=self.environment(home, **changes),
            capture_output=True,
            text=True,
            timeout=500,
        )
        assert done.returncode == 0, f"child failed:\n{done.stdout}\n{done.stderr}"
        return json.loads(done.stdout.splitlines()[-1])

    def get(self, path: str):
        headers = {"Authorization": f"Bearer {self.token}"}
        request = urllib.request.Request(self.endpoint + path, headers=headers)
        with urllib.request.urlopen(request) as reply:
            return json.load(reply)

    def post(self, path: str, *lines: dict) -> None:
        """Send one JSON object, or lines of them."""
        content = b"\n".join(json.dumps(line).encode() for line in lines)
        headers = {"Authorization": f"Bearer {self.token}"}
        urllib.request.urlopen(urllib.request.Request(self.endpoint + path, content, headers)).close()

    def titles(self, repo: str, kind: str = "models") -> list[str]:
        """Titles of the commits of main, newest first; the last is the one that a new repository has."""
        return [row["title"] for row in self.get(f"/api/{kind}/{repo}/commits/main")]

    def order_fault(self, **fault: object) -> None:
        self.post("/faults", fault)

    def clear_faults(self) -> None:
        urllib.request.urlopen(urllib.request.Request(self.endpoint + "/faults", method="DELETE")).close()

    def requests(self) -> list[dict]:
        return [json.loads(line) for line in (self.root / "requests.jsonl").read_text().splitlines()]


class ForkedPushes:
    """The program `forked_pushes.py`: called with orders, it returns what came of them."""

    def __init__(self, hub: LocalHub, home: Path):
        program = str(Path(__file__).with_name("forked_pushes.py"))
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen([sys.executable, program], env=hub.environment(home), **streams)

    def __call__(self, orders: list[dict]) -> list[dict]:
        self.process.stdin.write(json.dumps(orders) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def __enter__(self) -> "ForkedPushes":
        return self

    def __exit__(self, *_: object) -> None:
        _end(self.process)
