"""The hosts of `chaos.py`: network namespaces with names and processes of their own, and a disk that they share."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hmm_datasets.hmm.processes import mess3

ROOT = Path(__file__).resolve().parents[1]
PORT = 29531
DISK = "192m"
HANG_AFTER = 15.0  # seconds
SAVE_STEPS = 10

# Adds to the time of day what a file says; other clocks are those of the machine.
CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int (*real)(clockid_t, struct timespec *);

int clock_gettime(clockid_t clock, struct timespec *now)
{
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    const char *path = getenv("CLOCK_AHEAD");
    if (clock != CLOCK_REALTIME || !path) return result;
    char text[32] = {0};
    int file = open(path, O_RDONLY);
    if (file >= 0) {
        if (read(file, text, sizeof text - 1) > 0) now->tv_sec += atol(text);
        close(file);
    }
    return result;
}

time_t time(time_t *result)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result) *result = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *result, void *zone)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    result->tv_sec = now.tv_sec;
    result->tv_usec = now.tv_nsec / 1000;
    return 0;
}
"""


def ip(*words: str) -> None:
    """Run a command of `ip`."""
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=20)


@dataclass
class Host:
    """One of the two hosts, and the supervisor that runs there."""

    number: int
    namespace: str
    supervisor: subprocess.Popen | None = None

    @property
    def name(self) -> str:
        return f"host{self.number}"

    @property
    def address(self) -> str:
        return f"10.78.0.{self.number + 1}"

    def plug(self, state: str) -> None:
        """Connect its cable, `up`, or pull it, `down`."""
        ip("-n", self.namespace, "link", "set", "eth0", state)

    def processes(self) -> list[tuple[int, str]]:
        """The processes on this host, as this machine numbers them, with their command lines."""
        found, todo = [], [self.supervisor.pid]
        while todo:
            process = todo.pop()
            children = subprocess.run(["pgrep", "-P", str(process)], capture_output=True, text=True).stdout.split()
            todo += map(int, children)
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
                found.append((process, words))
        return found

    def rank(self) -> int:
        """The process that trains."""
        return next(p for p, words in self.processes() if "chaos_run.py" in words and "launch" not in words)

    def launcher(self) -> int:
        """The process of `accelerate launch`."""
        return next(
            p for p, words in self.processes() if "accelerate_cli launch" in words and "supervise" not in words
        )


class Cluster:
    """Two hosts, a disk that they share, and the run on it."""

    def __init__(self, folder: Path, max_steps: int, step_seconds: float):
        self.folder, self.max_steps, self.step_seconds = folder, max_steps, step_seconds
        self.disk = folder / "disk"
        self.output = self.disk / "run"
        self.hosts = [Host(number, f"chaos{os.getpid()}n{number}") for number in range(2)]
        self.clock = folder / "clock"
        self.library = folder / "clock.so"
        self.nan = folder / "nan"

    @contextlib.contextmanager
    def running(self) -> Iterator["Cluster"]:
        """The hosts and the disk exist and the supervisors run; all is gone afterwards."""
        with contextlib.ExitStack() as undo:
            self.disk.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(self.disk)], check=True)
            undo.callback(subprocess.run, ["umount", "--lazy", str(self.disk)])
            for host in self.hosts:
                ip("netns", "add", host.namespace)
                undo.callback(subprocess.run, ["ip", "netns", "del", host.namespace], capture_output=True)
            one, two = (host.namespace for host in self.hosts)
            ip("link", "add", "eth0", "netns", one, "type", "veth", "peer", "name", "eth0", "netns", two)
            for host in self.hosts:
                ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", "eth0")
                for device in ("lo", "eth0"):
                    ip("-n", host.namespace, "link", "set", device, "up")
            self.set_clock(0)
            if shutil.which("cc") is not None:
                command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(self.library), "-ldl"]
                subprocess.run(command, input=CLOCK, text=True, check=True)
            mess3(0.15, 0.6).save_pretrained(self.folder / "hmm")
            self.output.mkdir()
            for host in self.hosts:
                self.start(host)
                undo.callback(self.end, host)
            yield self

    def start(self, host: Host) -> None:
        """Start the supervisor of a host."""
        own = ["unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c"]
        flags = {"first_delay": 1, "max_delay": 8, "hang_after": HANG_AFTER}
        flags |= {"start_after": 120, "patience": 3, "max_failures": 20}
        supervise = [str(word) for name, value in flags.items() for word in (f"--{name}", value)]
        command = [
            *("ip", "netns", "exec", host.namespace, *own, f'hostname {host.name}; exec "$@"', "sh"),
            *(sys.executable, "-m", "hmm_datasets.cli", "supervise", *supervise),
            *("--", sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch"),
            *("--config_file", "accelerate_configs/multi_node.yaml", "--num_machines", "2", "--num_processes", "2"),
            *("--machine_rank", str(host.number), "--mixed_precision", "no"),
            *("--main_process_ip", self.hosts[0].address, "--main_process_port", str(PORT)),
            *("benchmarks/chaos_run.py", *settings(self.output, self.max_steps)),
        ]
        environment = environment_of(self.folder) | {"GLOO_SOCKET_IFNAME": "eth0", "MAKE_NAN": str(self.nan)}
        environment["STEP_SECONDS"] = str(self.step_seconds)
        if host.number == 1 and self.library.exists():
            environment |= {"LD_PRELOAD": str(self.library), "CLOCK_AHEAD": str(self.clock)}
        with (self.folder / f"{host.name}.log").open("a") as log:
            host.supervisor = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)

    def end(self, host: Host) -> None:
        """End all processes of a host."""
        for process, _ in host.processes():
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        host.supervisor.wait(30)

    def set_clock(self, seconds: int) -> None:
        """Set the clock of the second host this number of seconds ahead."""
        self.clock.write_text(f"{seconds}\n")


def settings(output: Path, max_steps: int) -> list[str]:
    """The flags of the run."""
    flags = {"output_dir": output, "max_steps": max_steps, "global_batch_size": 8, "per_device_train_batch_size": 4}
    flags |= {"save_steps": SAVE_STEPS, "save_total_limit": 2, "logging_steps": 1, "log_indices": "true"}
    flags |= {"learning_rate": 1e-3, "disable_tqdm": "true", "report_to": "none", "ddp_timeout": 600}
    return [str(word) for name, value in flags.items() for word in (f"--{name}", value)]


def environment_of(folder: Path) -> dict[str, str]:
    """The environment of all processes of a run."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HMM": str(folder / "hmm")}
