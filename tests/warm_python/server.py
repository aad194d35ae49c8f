"""A Python that has imported what recipes import, and is forked for each program: a moment instead of many seconds.

`python tests/warm_python/server.py FOLDER` writes an executable `FOLDER/python` and serves it until it is terminated
or no process has a lock on `FOLDER/users` any more. Each process has its own arguments, environment, folder and
standard files, and ends as any other: with its exit code or by its signal. Unlike others it is a child of this server,
all have one hash seed, and each prints the stacks of its threads on SIGQUIT, whatever they wait for.
"""

import atexit
import contextlib
import faulthandler
import fcntl
import gc
import importlib
import importlib.util
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import NoReturn
from unittest import mock

ROOT = Path(__file__).parents[2]
# Read when a library is imported, or by the interpreter itself: with other values a process starts from nothing. Those
# that `huggingface_hub` and `datasets` read (HF_HOME, HF_ENDPOINT, ...) are read anew instead.
READ_BY_IMPORTS = (
    "PYTHONHASHSEED",
    "PYTHONWARNINGS",
    "TRANSFORMERS_",
    "OMP_",
    "MKL_",
    "NUMBA_",
    "CUDA_",
    "DS_",
)
LIBRARIES = (
    *("torch", "torch._dynamo", "torch.distributed.run", "transformers", "transformers.trainer", "datasets", "trl"),
    *("transformers.models.llama.modeling_llama", "accelerate.commands.accelerate_cli", "accelerate.commands.launch"),
    *("numba", "matplotlib.pyplot", "plotext", "psutil", "pyarrow.parquet", "safetensors.torch"),
)
# Modules of the package that import what few programs do.
LEFT_OUT = ("deepspeed", "pomegranate", "datatrove", "metrics", "cuda", "shipped")


def import_all() -> None:
    """Import the libraries and the package, and put all objects out of reach of the garbage collector."""
    for name in LIBRARIES:
        importlib.import_module(name)
    for path in sorted((ROOT / "hmm_datasets").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if not any(word in name for word in LEFT_OUT):
            importlib.import_module(name)
    import_deepspeed()
    gc.collect()
    gc.freeze()


def import_deepspeed() -> None:
    """Import DeepSpeed, if there is one and no GPU, and let it sum by gloo, as it does on systems other than Linux.

    Its own sums through shared memory are compiled when they are first used, which takes most of a minute.
    """
    import torch

    if torch.accelerator.is_available() or importlib.util.find_spec("deepspeed") is None:
        return
    with mock.patch.dict(os.environ, DS_ACCELERATOR="cpu"):
        import deepspeed
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def write_client(folder: Path, environment: dict[str, str]) -> Path:
    """An executable that asks this server for a process, if it has the environment that libraries were imported in."""
    environment = {name: value for name, value in environment.items() if name.startswith(READ_BY_IMPORTS)}
    (folder / "server.json").write_text(json.dumps([sys.executable, READ_BY_IMPORTS, environment]))
    client = folder / "python"
    client.write_text(f"#!{sys.executable} -IS\n{Path(__file__).with_name('client.py').read_text()}")
    client.chmod(0o755)
    return client


def is_used(folder: Path) -> bool:
    """Whether a process that runs tests has its lock. If not, the next one finds no server, and starts another."""
    with open(folder / "users") as users:
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        for name in ("server.pid", "socket"):
            (folder / name).unlink()
    return False


def serve(listening: socket.socket, folder: Path) -> tuple[dict, list[int]] | None:
    """Fork for each client. Returns `None` at the end; in a forked process its request and its three files."""
    running = selectors.DefaultSelector()
    running.register(listening, selectors.EVENT_READ)
    while is_used(folder):
        for key, _ in running.select(timeout=1):
            if key.fileobj is listening:
                client, _ = listening.accept()
                request, files, *_ = socket.recv_fds(client, 1 << 20, 3)
                if not request:  # the client was killed
                    client.close()
                    continue
                process = os.fork()
                if process == 0:
                    for other in [entry.fileobj for entry in running.get_map().values()]:
                        other.close() if isinstance(other, socket.socket) else os.close(other)
                    running.close()
                    client.close()
                    return json.loads(request), files
                for file in files:
                    os.close(file)
                with contextlib.suppress(OSError):  # the client was killed meanwhile, which is seen in the next round
                    client.send(str(process).encode())
                ended = os.pidfd_open(process)
                running.register(client, selectors.EVENT_READ, process)
                running.register(ended, selectors.EVENT_READ, (process, client))
            elif isinstance(key.fileobj, socket.socket):  # closed: the client was killed, and so is its process
                if key.fileobj.fileno() >= 0:  # the process has not ended at the same moment
                    os.kill(key.data, signal.SIGKILL)
                    running.unregister(key.fileobj)
            else:
                process, client = key.data
                _, status = os.waitpid(process, 0)
                with contextlib.suppress(KeyError):  # unregistered when it was killed
                    running.unregister(client)
                with contextlib.suppress(OSError):
                    client.send(str(os.waitstatus_to_exitcode(status)).encode())
                client.close()
                running.unregister(key.fd)
                os.close(key.fd)
    return None


def become(request: dict, files: list[int], client: Path) -> None:
    """Turn this fork of the server into the process that was asked for."""
    os.setsid()
    with open(client.with_name(f"programs-{request['environment'].get('PYTEST_XDIST_WORKER', '')}"), "a") as programs:
        programs.write(f"{os.getpid()}\n")
    for target, file in enumerate(files):
        os.dup2(file, target)
        os.close(file)
    faulthandler.register(signal.SIGQUIT)
    ignored_here = {number for number in range(1, 32) if signal.getsignal(number) == signal.SIG_IGN}
    for number in ignored_here.symmetric_difference(request["ignored"]):
        signal.signal(number, signal.SIG_DFL if number in ignored_here else signal.SIG_IGN)
    os.chdir(request["folder"])
    sys.path[1:1] = [path for path in request["environment"].get("PYTHONPATH", "").split(":") if path not in sys.path]
    os.environ.clear()
    os.environ.update(request["environment"])
    read_environment_anew()
    sys.executable = str(client)  # what a launcher starts is forked too
    arguments = request["arguments"]
    unbuffered = arguments[0] == "-u"
    sys.argv = arguments[unbuffered:]
    sys.orig_argv = [sys.executable, *arguments]
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=stream.isatty() or stream is sys.stderr, write_through=unbuffered)


def read_environment_anew() -> None:
    """Give the constants of `huggingface_hub` and `datasets`, and what was copied from them, the values of today."""
    from huggingface_hub import constants, hf_api, hf_file_system
    from transformers.utils import hub

    new = {}
    for module in (constants, importlib.import_module("datasets.config")):
        before = dict(vars(module))
        importlib.reload(module)
        new |= {(name, str(value)): vars(module)[name] for name, value in before.items() if name.isupper()}
    modules = os.getenv("HF_MODULES_CACHE", os.path.join(constants.HF_HOME, "modules"))
    new["HF_MODULES_CACHE", hub.HF_MODULES_CACHE] = modules
    hf_api.api.endpoint = hf_file_system.hffs.endpoint = hf_file_system.hffs._api.endpoint = constants.ENDPOINT
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("huggingface_hub", "datasets", "transformers", "evaluate"):
            for constant, value in list(vars(module).items()):
                if constant.isupper() and (constant, str(value)) in new:
                    setattr(module, constant, new[constant, str(value)])


def run() -> None:
    """What the interpreter does with its command line."""
    if sys.argv[0] == "-c":
        code, sys.argv[1:2] = sys.argv[1], []
        sys.path[0] = ""
        exec(compile(code, "<string>", "exec"), vars(sys.modules["__main__"]))
    elif sys.argv[0] == "-m":
        module = sys.argv.pop(1)
        sys.modules.pop(module, None)  # runpy warns of one that is there
        sys.path[0] = os.getcwd()
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
        runpy.run_path(sys.argv[0], run_name="__main__")


def end(error: BaseException | None) -> NoReturn:
    """What the interpreter does at its end, but for freeing what the server has imported, which takes seconds."""
    status = 0 if error is None else 1
    if isinstance(error, SystemExit):
        status = error.code or 0
        if not isinstance(status, int):
            print(status, file=sys.stderr)
            status = 1
    elif error is not None:
        sys.excepthook(type(error), error, error.__traceback__)
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except OSError:  # nobody reads it any more
            status = 120
    if isinstance(error, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(status & 0xFF)


if __name__ == "__main__":
    from compile_once import compile_each_kernel_once  # found beside this file when it runs as a program

    folder = Path(sys.argv[1])
    before = dict(os.environ)  # some libraries set variables
    import_all()
    compile_each_kernel_once(folder.parent / "kernels")
    executable = write_client(folder, before)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(str(folder / "socket"))
    listening.listen(64)
    (folder / "server.pid").write_text(str(os.getpid()))
    print("ready", flush=True)
    asked = serve(listening, folder)
    if asked is not None:
        become(*asked, executable)
        try:
            run()
        except BaseException as error:
            end(error)
    end(None)
