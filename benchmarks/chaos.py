"""A run of two processes on two hosts, disturbed by faults of twelve kinds, and one that is left alone.

    python benchmarks/chaos.py [--rounds 2] [--faults "killed rank" ...] [--max_steps 1600] [--keep DIR]

The hosts are network namespaces of this machine with names and processes of their own, joined by a virtual cable, and
share a small disk in memory. On each a supervisor starts the launcher of its rank. This program is a third party: it
injects one fault after another, and watches the run as `hmm-datasets watch` does. It prints a table of when each fault
was noticed, what was said first, whether the rank or host that it hit was named, and after how many seconds both ranks
trained again. At the end it compares rows, losses and weights with those of a run that nobody disturbed.

It needs Linux, root, `ip` and `unshare`, and for the jump of a clock a C compiler: a small library in front of libc
adds to the time of day, and only to that, what a file says.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from chaos_hosts import HANG_AFTER, ROOT, Cluster, Host, environment_of, settings
from machine import print_heading

from hmm_datasets.operations.diagnosis import Limits
from hmm_datasets.operations.run_state import RunObserver, RunState
from hmm_datasets.report.tables import text_table
from hmm_datasets.runtime.rank_heartbeats import Heartbeat

LOOK_EVERY = 0.25  # seconds
PATIENCE = 240.0  # seconds for the run to train again
SILENT = 12.0  # seconds
QUIET = ("start", "restart")  # events that say what the supervisor does, not what it noticed


# Faults. Each gets the cluster and the host to hit, and returns a function that mends what does not mend itself.


def killed_rank(cluster: Cluster, host: Host) -> None:
    os.kill(host.rank(), signal.SIGKILL)


def killed_ranks(cluster: Cluster, host: Host) -> None:
    for one in cluster.hosts:
        os.kill(one.rank(), signal.SIGKILL)


def killed_launcher(cluster: Cluster, host: Host) -> None:
    os.kill(host.launcher(), signal.SIGKILL)


def terminated(cluster: Cluster, host: Host) -> None:
    os.kill(host.launcher(), signal.SIGTERM)


def hung_up(cluster: Cluster, host: Host) -> None:
    os.kill(host.rank(), signal.SIGHUP)


def suspended(cluster: Cluster, host: Host) -> None:
    os.kill(host.rank(), signal.SIGSTOP)


def nan(cluster: Cluster, host: Host) -> None:
    cluster.nan.touch()


def torn_checkpoint(cluster: Cluster, host: Host) -> None:
    newest = max(cluster.output.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    path = newest / "model.safetensors"
    os.truncate(path, path.stat().st_size // 2)
    killed_ranks(cluster, host)


def full_disk(cluster: Cluster, host: Host) -> Callable[[], None]:
    filler = cluster.disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    return filler.unlink


def slow_rank(cluster: Cluster, host: Host) -> Callable[[], None]:
    """Busy programs on the one core that the rank may use, each with a share of it as large as the rank's."""
    process, core = host.rank(), max(os.sched_getaffinity(0))
    cores = os.sched_getaffinity(process)
    subprocess.run(["taskset", "-a", "-p", "-c", str(core), str(process)], check=True, capture_output=True)
    # Linux divides a core among sessions, and a rank has one of its own.
    command = ["taskset", "-c", str(core), sys.executable, "-c", "while 1: pass"]
    busy = [subprocess.Popen(command, start_new_session=True) for _ in range(12)]

    def mend() -> None:
        for one in busy:
            one.kill()
            one.wait()
        allowed = ",".join(map(str, sorted(cores)))
        subprocess.run(["taskset", "-a", "-p", "-c", allowed, str(process)], capture_output=True)

    return mend


def cut_off_host(cluster: Cluster, host: Host) -> Callable[[], None]:
    host.plug("down")
    return lambda: host.plug("up")


def clock_jump(cluster: Cluster, host: Host) -> Callable[[], None]:
    cluster.set_clock(random.choice([-7200, 7200]))
    return lambda: cluster.set_clock(0)


@dataclass(frozen=True)
class Fault:
    """A kind of fault.

    Args:
        name (`str`): what it is called.
        inject (callable): causes it.
        names (`str`): what must be named, with `{rank}` and `{host}` of the one that is hit; empty for nothing.
        host (`int`, *optional*): the host to hit, if it cannot be any.
        lasts (`float`): seconds from its detection until it is mended.
    """

    name: str
    inject: Callable[[Cluster, Host], Callable[[], None] | None]
    names: str
    host: int | None = None
    lasts: float = 0.0


FAULTS = (
    Fault("kill -9 of a rank", killed_rank, "rank {rank} on {host}"),
    Fault("kill -9 of both ranks", killed_ranks, "rank 0 on host0"),
    Fault("kill -9 of a launcher", killed_launcher, "on {host}"),
    Fault("SIGTERM to a launcher", terminated, "SIGTERM"),
    Fault("SIGHUP to a rank", hung_up, "SIGHUP"),
    Fault("SIGSTOP of a rank", suspended, "rank {rank} on {host}"),
    Fault("NaN in a batch", nan, "rank 1 (host1)", host=1),
    Fault("torn checkpoint", torn_checkpoint, "checkpoint-"),
    Fault("full disk", full_disk, "no room left on the disk", lasts=5.0),
    Fault("slow rank", slow_rank, "rank {rank} on {host}", lasts=2.0),
    Fault("host cut off", cut_off_host, "network", lasts=8.0),
    Fault("jump of a clock", clock_jump, "", host=1, lasts=2.0),
)


@dataclass
class Record:
    """What was seen of a fault."""

    fault: Fault
    host: Host
    step: int
    noticed: float | None = None
    said: str = ""
    named: float | None = None
    naming: str = ""
    trains: float | None = None


class Watcher:
    """Looks at the run from outside."""

    def __init__(self, cluster: Cluster):
        self.cluster = cluster
        self.observer = RunObserver(cluster.output, Limits(silent=SILENT, step=HANG_AFTER, pause=HANG_AFTER))

    def until(self, condition: Callable[[RunState], bool], seconds: float) -> RunState:
        """The first state that fulfils a condition."""
        deadline = time.monotonic() + seconds
        while not condition(state := self.observer.look()):
            if time.monotonic() > deadline:
                logs = "\n".join((self.cluster.folder / f"host{n}.log").read_text()[-4000:] for n in range(2))
                raise SystemExit(f"{logs}\nafter {seconds:.0f} s: {state.state}: {state.reason}")
            time.sleep(LOOK_EVERY)
        return state

    def inject(self, fault: Fault, host: Host) -> Record:
        """Inject a fault, and write down what is seen until both ranks train again beyond its step."""
        state = self.until(trains_beyond(-1), PATIENCE)
        beats = beats_of(state)
        record = Record(fault, host, max(beat.step for beat in beats))
        expected = fault.names.format(rank=host.number, host=host.name)
        before = len(state.events), {beat.process for beat in beats}
        began = time.monotonic()
        mend = fault.inject(self.cluster, host)
        mend_at = None
        while record.trains is None:
            time.sleep(LOOK_EVERY)
            state, now = self.observer.look(), time.monotonic() - began
            for words in news(state, before[0]) or [""][: not expected]:
                if record.noticed is None:
                    record.noticed, record.said = now, words
                if record.named is None and expected in words:
                    record.named, record.naming = now, words
            if record.named is not None and mend is not None:
                mend_at = now + fault.lasts if mend_at is None else mend_at
                if now >= mend_at:
                    mend()
                    mend = None
            if mend is None and record.named is not None and trains_beyond(record.step)(state):
                record.trains = now
            if now > PATIENCE:
                print(f"{fault.name}: not over after {PATIENCE:.0f} s: {state.state}: {state.reason}", flush=True)
                if mend is not None:
                    mend()
                self.until(trains_beyond(record.step), PATIENCE)
                break
        return record


def beats_of(state: RunState) -> list[Heartbeat]:
    return [] if state.diagnosis is None else [rank.beat for rank in state.diagnosis.ranks]


def trains_beyond(step: int) -> Callable[[RunState], bool]:
    """Both ranks are in a later step."""

    def condition(state: RunState) -> bool:
        found = state.diagnosis
        well = found is not None and state.state == "running" and not found.missing
        return well and all(rank.beat.step is not None and rank.beat.step > step for rank in found.ranks)

    return condition


def news(state: RunState, events: int) -> list[str]:
    """What `watch` shows its reader that it has not shown before."""
    found = []
    if state.state not in ("running", "starting"):
        found.append(f"{state.state}: {state.reason}")
    if state.diagnosis is not None:
        found += filter(None, [state.diagnosis.remark])
    return found + [event["message"] for event in state.events[events:] if event["kind"] not in QUIET]


def compare(disturbed: Path, undisturbed: Path) -> list[str]:
    """How a run differs from one that nobody disturbed, in lines."""
    lines = []
    for rank in range(2):
        one, two = (
            [(row["step"], row["indices"]) for row in rows(folder / f"indices-{rank}.jsonl")]
            for folder in (disturbed, undisturbed)
        )
        lines.append(f"rows of rank {rank}: {len(one):,} steps, {'the same' if one == two else 'DIFFERENT'}")
    one, two = (
        {row["step"]: row["loss"] for row in rows(folder / "history.jsonl") if "loss" in row}
        for folder in (disturbed, undisturbed)
    )
    largest = max(abs(one[step] - two[step]) for step in two) if one.keys() == two.keys() else float("nan")
    lines.append(f"losses of {len(one):,} steps: largest difference {largest:g}")
    weights = [(folder / "model.safetensors").read_bytes() for folder in (disturbed, undisturbed)]
    lines.append(f"weights at the end: {'the same bytes' if weights[0] == weights[1] else 'DIFFERENT'}")
    return lines


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f}"


def table(records: list[Record]) -> str:
    """The faults, one per line, and below what was said of each kind when it was named first."""
    header = ["fault", "hit", "at step", "noticed, s", "named, s", "trains again, s"]
    cells = [
        [one.fault.name, one.host.name, f"{one.step:,}", seconds(one.noticed), seconds(one.named), seconds(one.trains)]
        for one in records
    ]
    said = {one.fault.name: one for one in reversed(records)}
    lines = [f"{name}\n    first: {one.said}\n    named: {one.naming}" for name, one in reversed(said.items())]
    return f"{text_table(header, cells)}\n\n" + "\n".join(lines)


def main() -> None:
    """Disturb a run, leave another alone, compare."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=2, help="times that every fault is injected, default 2")
    parser.add_argument("--faults", nargs="+", choices=[fault.name for fault in FAULTS], help="by default all")
    parser.add_argument("--between", type=int, default=20, help="steps between two faults, default 20")
    parser.add_argument("--max_steps", type=int, default=1600, help="steps of the run, default 1600")
    parser.add_argument("--step_seconds", type=float, default=0.1, help="time that each step waits, default 0.1")
    parser.add_argument("--keep", type=Path, help="copy logs and the run there")
    given = parser.parse_args()
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None:
        sys.exit("chaos.py needs Linux, root, ip (Debian: iproute2) and unshare (util-linux)")
    faults = [fault for fault in FAULTS if given.faults is None or fault.name in given.faults]
    if shutil.which("cc") is None:
        print("no C compiler (cc) here, so no clock jumps")
        faults = [fault for fault in faults if fault.inject is not clock_jump]
    print_heading(("torch", "transformers", "accelerate"))
    chance, began = random.Random(0), time.monotonic()
    random.seed(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cluster = Cluster(folder, given.max_steps, given.step_seconds)
        records: list[Record] = []
        with cluster.running():
            watcher = Watcher(cluster)
            try:
                for _ in range(given.rounds):
                    for fault in chance.sample(faults, len(faults)):
                        step = records[-1].step if records else 0
                        watcher.until(trains_beyond(step + given.between), PATIENCE)
                        host = cluster.hosts[chance.randrange(2) if fault.host is None else fault.host]
                        records.append(watcher.inject(fault, host))
                        one, minute = records[-1], (time.monotonic() - began) / 60
                        print(
                            f"{minute:5.1f} min  step {one.step:5,}  {fault.name} ({host.name}): noticed "
                            f"{seconds(one.noticed)}, named {seconds(one.named)}, trains {seconds(one.trains)}",
                            flush=True,
                        )
                print("waiting for the end of the run", flush=True)
                watcher.until(lambda state: state.state == "finished", 3600)
                shutil.copytree(cluster.output, folder / "disturbed", ignore=shutil.ignore_patterns(".*"))
            finally:
                if given.keep is not None:
                    shutil.copytree(folder, given.keep, ignore=shutil.ignore_patterns("disk"), dirs_exist_ok=True)
            codes = [host.supervisor.wait(120) for host in cluster.hosts]
        total = time.monotonic() - began
        command = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch", "--config_file"]
        flags = settings(folder / "undisturbed", given.max_steps)
        subprocess.run(
            [*command, "accelerate_configs/cpu2.yaml", "benchmarks/chaos_run.py", *flags],
            cwd=ROOT,
            env=environment_of(folder),
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        found = compare(folder / "disturbed", folder / "undisturbed")
    kinds = len({one.fault.name for one in records})
    print(f"\n{len(records)} faults of {kinds} kinds in {total / 60:.1f} minutes; exit codes {codes}\n")
    print(table(records))
    print("\nAgainst the undisturbed run:")
    print("\n".join(f"- {line}" for line in found))


if __name__ == "__main__":
    main()
