"""Execute the notebooks in this folder and save them with their outputs: `make notebooks`, or by name

    python docs/notebooks/execute.py hmm_to_trainer beliefs

Each notebook runs in a new kernel and an empty temporary folder, so that it needs only the installed package, and
without a network: `push_and_load` pushes to the local Hub of the tests (`tests/local_hub`), the others are offline.
Progress bars and the kernel's version are not saved, so that executing a notebook again changes only what differs.
"""

import os
import re
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

# Keeps messages of libraries about the machine and the network out of the outputs.
_QUIET = {
    "DS_ACCELERATOR": "cpu",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_UPDATE_DOWNLOAD_COUNTS": "0",
    "PYTHONWARNINGS": "ignore:IProgress not found",
}

_PROGRESS = re.compile(r"[^|]*\d+%\|")


def execute(name: str, folder: str | os.PathLike, *, offline: bool = False) -> NotebookNode:
    """Execute a notebook in an empty folder and return it; its file is not changed.

    Args:
        name (`str`): name of the notebook.
        folder (path): the folder in which it runs.
        offline (`bool`, *optional*, defaults to `False`): run `push_and_load` without a Hub, like the others.

    Raises:
        `nbclient.exceptions.CellExecutionError`: a cell raises an error, for example a failed assertion.
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
        client.execute(env={**os.environ, **_QUIET, **environment, "PATH": _path()})
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if not _is_progress(output)]
            for output in cell.outputs:
                if output.output_type == "stream":  # commands write as to a terminal
                    output.text = output.text.replace("\r\n", "\n")
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return notebook


def _path() -> str:
    """The search path of commands, with those of this environment first."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


@contextmanager
def _local_hub(root: Path) -> Generator[dict[str, str]]:
    """Start the local Hub of the tests, and yield the environment variables by which a kernel finds it."""
    sys.path.append(str(FOLDER.parents[1] / "tests"))
    from local_hub.handler import TOKEN
    from local_hub.serving import local_server

    with tempfile.TemporaryDirectory(dir=root) as scratch, local_server(port=0, user="tester") as (endpoint, _):
        yield {
            "HF_ENDPOINT": endpoint,
            "HF_TOKEN": TOKEN,
            "HF_USER": "tester",
            "HF_HOME": scratch,
            "HF_HUB_OFFLINE": "0",
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
        }


def _is_progress(output: NotebookNode) -> bool:
    """Whether an output has only progress bars; anything else that is written to stderr is kept."""
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
