"""Execute the notebooks beside this file and keep what they show: `make notebooks`, or by name

    python docs/notebooks/execute.py hmm_to_trainer beliefs

Each runs in a fresh kernel and an empty temporary folder, so that it needs nothing but the installed package, and
without a network: `push_and_load` pushes to the Hub of the tests (`tests/hub/local_hub.py`), the others are offline.
Progress bars and the kernel's version are not kept, so that a second execution changes what differs alone.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).parent
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
_LOCAL_HUB = FOLDER.parents[1] / "tests" / "hub" / "local_hub.py"

# What libraries say of the machine and of the network has no place among the outputs.
_QUIET = {
    "DS_ACCELERATOR": "cpu",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_UPDATE_DOWNLOAD_COUNTS": "0",
    "PYTHONWARNINGS": "ignore:IProgress not found",
}

_PROGRESS = re.compile(r"[^|]*\d+%\|")


def execute(name: str, folder: str | os.PathLike, *, offline: bool = False) -> NotebookNode:
    """The notebook as executed in `folder`, an empty one; the file is left as it is.

    Args:
        name (`str`): which.
        folder (path): where it writes.
        offline (`bool`, *optional*, defaults to `False`): leave `push_and_load` without a Hub, as the others are.

    Raises:
        `nbclient.exceptions.CellExecutionError`: a cell ends in an error, an assertion of the last ones included.
    """
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    client = NotebookClient(
        notebook,
        timeout=1200,
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
        coalesce_streams=True,
    )
    has_hub = name == "push_and_load" and not offline
    with _local_hub(Path(folder).parent) if has_hub else nullcontext({"HF_HUB_OFFLINE": "1"}) as environment:
        client.execute(env={**os.environ, **_QUIET, **environment})
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if not _is_progress(output)]
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return notebook


@contextmanager
def _local_hub(root: Path) -> Generator[dict[str, str]]:
    """A Hub on this machine: the variables by which a kernel finds it."""
    with tempfile.TemporaryDirectory(dir=root) as scratch:
        command = [sys.executable, str(_LOCAL_HUB), "--port", "0", "--root", scratch, "--stop-with-stdin"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
            address, token = (server.stdout.readline().strip().partition("=")[2] for _ in range(2))
            yield {
                "HF_ENDPOINT": address,
                "HF_TOKEN": token,
                "HF_USER": "tester",
                "HF_HOME": scratch,
                "HF_HUB_OFFLINE": "0",
                "HF_HUB_DISABLE_XET": "1",
                "NO_PROXY": "127.0.0.1,localhost",
                "no_proxy": "127.0.0.1,localhost",
            }


def _is_progress(output: NotebookNode) -> bool:
    """Whether an output is progress bars alone; what else is written to stderr is kept, and seen."""
    if output.output_type != "stream" or output.name != "stderr":
        return False
    lines = re.split(r"[\r\n]+", output.text)
    return all(_PROGRESS.match(line) for line in lines if line.strip())


if __name__ == "__main__":
    for chosen in sys.argv[1:] or NAMES:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "notebook"
            folder.mkdir()
            executed = execute(chosen, folder)
        nbformat.write(executed, FOLDER / f"{chosen}.ipynb")
        print(f"{chosen}.ipynb: executed")
