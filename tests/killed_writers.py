"""A program that kills writers at random moments: `killed_writers.py FOLDER KIND KILLS SEED`.

Each writer is a fork that is killed after a random part of the time that it needs from its first change on, and
started again on the same folder, or on a new one once it was whole. After each kill a reader looks, which must find
what was there before or the new content, whole. At the end everything must be as an undisturbed writer leaves it, with
no file beside it. Prints the counts as JSON.
"""

import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np

from hmm_datasets.errors import InputError
from hmm_datasets.evaluation.paired_runs import ReportFolder
from hmm_datasets.files import atomic_folder, write_digests, write_json, write_jsonl, written_together
from hmm_datasets.operations.sweeps.cells import CellState, prepare
from hmm_datasets.operations.sweeps.file import read_sweep
from hmm_datasets.report.evaluation_tables import read_report
from hmm_datasets.text.stream import TokenStream, write_tokens
from hmm_datasets.text.tokenizers.words import WordCorpus, build_word_corpus

# The mean loss at the end of a run is that of the steps since it was started last.
VOLATILE = re.compile("second|time|digest|train_loss|_memory")

RECORDS = {
    *("digests.json", "run.json", "plan.json", "set_aside.json", "count", "number", "summary.json", "events.jsonl"),
    *("README.md", "trainer_state.json"),
}


class Kind:
    """A writer: `old` makes what is replaced, `write` may be killed and repeated, `read` finds what is there."""

    def old(self, folder: Path) -> None:
        """Nothing by default: the folder is new."""

    def write(self, folder: Path) -> None:
        raise NotImplementedError

    def read(self, folder: Path) -> object:
        raise NotImplementedError


class Folder(Kind):
    def old(self, folder, version="old"):
        with atomic_folder(folder / "model") as temporary:
            for number in range(8):
                (temporary / str(number)).write_text(version)

    def write(self, folder):
        self.old(folder, "new")

    def read(self, folder):
        (version,) = {path.read_text() for path in (folder / "model").iterdir()}
        return version


class Evaluation(Kind):
    def old(self, folder, version="old"):
        with written_together(folder / "evaluation") as temporary:
            (temporary / "items").mkdir()
            write_jsonl(temporary / "items" / "text.jsonl", [{"version": version}] * 100)
            write_json(temporary / "report.json", {"model": {"name": version}})
            write_digests(temporary, into=folder / "evaluation")

    def write(self, folder):
        self.old(folder, "new")

    def read(self, folder):
        report = read_report(folder / "evaluation")
        (version,) = {row["version"] for row in ReportFolder("a", folder / "evaluation", report).items("text")}
        assert version == report["model"]["name"]
        return version


class Words(Kind):
    def old(self, folder, text="The cat sat. The dog ran."):
        build_word_corpus([text] * 9, k=5, test_fraction=0).save(folder / "words", overwrite=True)

    def write(self, folder):
        self.old(folder, "The mat sat. The cat ran.")

    def read(self, folder):
        return WordCorpus.load(folder / "words").vocabulary


class Tokens(Kind):
    def old(self, folder, count=20):
        documents = ((number * number + np.arange(300 + number)) % 997 for number in range(count))
        settings = {"vocab_size": 1000, "eos_id": 999, "tokenizer_hash": "none", "corpus": "numbers"}
        write_tokens(documents, folder / "stream", shard_tokens=5000, overwrite=True, **settings)

    def write(self, folder):
        self.old(folder, 120)

    def read(self, folder):
        stream = TokenStream(folder / "stream", verify=False)
        assert not list(stream.problems())
        return stream.index.num_documents


class Fit(Kind):
    def old(self, folder):
        import hmm_datasets.hmm.fitting.fit  # noqa: F401, so that the forks need not

    def write(self, folder):
        from hmm_datasets.hmm.fitting.fit import fit_hmm
        from hmm_datasets.hmm.fitting.settings import FitSettings

        tokens = np.random.default_rng(0).integers(0, 4, (40, 20))
        settings = FitSettings(num_states=3, max_epochs=6, tolerance=0, save_every=1, batch_size=10, update_every=2)
        fit_hmm(tokens, settings, checkpoint_dir=folder / "fit", show_progress=False)

    def read(self, folder):
        from hmm_datasets.files import digest_problems
        from hmm_datasets.hmm.fitting.state import newest_checkpoint

        newest = newest_checkpoint(folder / "fit") if (folder / "fit").is_dir() else None
        assert newest is None or not digest_problems(newest)
        return None if newest is None else newest.name


class Saving(Kind):
    """A run that saves a checkpoint after each of its steps."""

    def old(self, folder):
        import tiny_runs  # noqa: F401, so that the forks need not

        import hmm_datasets.training.run  # noqa: F401

    def write(self, folder):
        from tiny_runs import trainer

        from hmm_datasets.training.run import train_and_save

        training = trainer(folder / "run", save_strategy="steps", save_steps=1, disable_tqdm=True)
        train_and_save(training, settings={}, data={"rows": 200})

    def read(self, folder):
        from hmm_datasets.files import digest_problems
        from hmm_datasets.training.checkpoints.inspection import list_checkpoints

        found = list_checkpoints(folder / "run") if (folder / "run").is_dir() else []
        for one in found:
            assert one.ok, one.problems
            assert not digest_problems(one.folder)
        return max((one.step for one in found), default=None)


class Sweep(Kind):
    """The folders and states of the cells, without their commands."""

    def _sweep(self, folder):
        path = folder.parent / "sweep.yaml"
        path.write_text(
            f"recipe: fit\noutput_dir: {folder}/sweep\nsettings: {{tokens: x}}\ngrid: {{seed: [0, 1, 2]}}\n"
        )
        return read_sweep(path)

    def write(self, folder):
        for cell, state in zip(self._sweep(folder).cells, prepare(self._sweep(folder)).values(), strict=True):
            for state.state in ("running", "finished"):
                state.write(cell.folder)

    def read(self, folder):
        cells = [cell.folder for cell in self._sweep(folder).cells if (cell.folder / "cell.json").exists()]
        return [CellState.read(one).state for one in cells]


class Supervised(Kind):
    """`hmm-datasets supervise` of a program of six steps, which is killed by itself in two of them."""

    def _seen(self, folder):
        return folder.parent / f"{folder.name}-events.json"

    def old(self, folder):
        self._seen(folder).write_text("[]")

    def write(self, folder):
        program = Path(__file__).with_name("supervised_steps.py")
        flags = ("--first_delay", "0.05", "--max_delay", "0.1", "--output_dir", folder / "run")
        command = (sys.executable, "-m", "hmm_datasets.cli", "supervise", *flags, "--", sys.executable, program)
        os.execv(sys.executable, [str(word) for word in (*command, folder / "run")])

    def read(self, folder):
        """The newest checkpoint; the log of events may only grow."""
        from hmm_datasets.runtime.events import read_events

        before, events = json.loads(self._seen(folder).read_text()), read_events(folder / "run")
        assert events[: len(before)] == before
        self._seen(folder).write_text(json.dumps(events))
        steps = [int(path.name.removeprefix("checkpoint-")) for path in (folder / "run").glob("checkpoint-*")]
        for step in steps:
            assert (folder / "run" / f"checkpoint-{step}" / "weights").read_text() == str(step) * 1000
        return max(steps, default=None)


class Command(Kind):
    """A command of the package, on a copy of what `make` makes once; WORK in its words stands for the folder."""

    def __init__(self, *words: str, needs_run: bool = False):
        self._words, self._needs_run = words, needs_run

    def make(self, folder: Path) -> None:
        """Nothing by default but a run of three checkpoints, if the command needs one."""
        if self._needs_run:
            self.train(folder / "run")

    def train(self, folder: Path, **given) -> None:
        from tiny_runs import trainer

        from hmm_datasets.training.run import train_and_save

        training = trainer(folder, save_strategy="steps", save_steps=2, disable_tqdm=True, max_steps=6, **given)
        train_and_save(training, settings={}, data={"rows": 200})

    def old(self, folder):
        import tiny_runs  # noqa: F401, so that the forks need not

        import hmm_datasets.operations.checkpoints.convert
        import hmm_datasets.operations.checkpoints.slim
        import hmm_datasets.training.run  # noqa: F401

        template = folder.parent / "template"
        if not template.exists():
            template.mkdir()
            assert ended(in_child(lambda: self.make(template))) == 0
        shutil.copytree(template, folder, dirs_exist_ok=True)

    def write(self, folder):
        from hmm_datasets.cli import main as command_line

        try:
            code = command_line([word.replace("WORK", str(folder)) for word in self._words])
        except SystemExit as request:
            code = request.code
        # One that was killed at its very end has done everything, and refuses to do it again.
        assert code in (0, None) or (code == 2 and _is_again(folder))

    def read(self, folder):
        """Every checkpoint is whole, here or set aside; returns what there is, without hidden files."""
        from hmm_datasets.files import digest_problems
        from hmm_datasets.training.checkpoints.inspection import list_checkpoints

        found = list_checkpoints(folder / "run") if (folder / "run").is_dir() else []
        for one in found:
            assert one.ok, one.problems
            assert not digest_problems(one.folder)
        return {name: digest for name, digest in contents(folder).items() if "/." not in f"/{name}"}


def _is_again(folder: Path) -> bool:
    return (folder.parent / "again").exists()


class Restore(Command):
    def make(self, folder):
        from hmm_datasets.cli import main as command_line

        super().make(folder)
        command_line(["checkpoint", "slim", str(folder / "run"), "--keep_newest", "0"])


class Tokenize(Command):
    def make(self, folder):
        stories = [f"Story {number} is about a cat that had {number % 7} hats." * 9 for number in range(3000)]
        write_jsonl(folder / "stories.jsonl", [{"text": text} for text in stories])

    def write(self, folder):
        sys.path.insert(0, str(Path(__file__).parents[1] / "recipes"))
        import tokenize_corpus

        sys.argv = ["tokenize", *(word.replace("WORK", str(folder)) for word in self._words)]
        tokenize_corpus.run(tokenize_corpus.main)


class EndOfRun(Command):
    """What follows the last step: model, evaluation, summary, plots, card, push to a Hub on this machine."""

    def make(self, folder):
        from hmm_datasets.training.run import Run

        Run.finish = lambda self: None
        self.train(folder / "run")
        (folder / "number").write_text("0")

    def old(self, folder):
        super().old(folder)
        count = folder.parent / "count"
        count.write_text(str(1 + int(count.read_text() if count.exists() else "0")))

    def write(self, folder):
        count = (folder.parent / "count").read_text()
        self.train(folder / "run", push_to_hub=True, hub_strategy="end", hub_model_id=f"tester/run-{count}")
        from huggingface_hub import HfApi

        names = set(HfApi().list_repo_files(f"tester/run-{count}"))
        assert {"README.md", "summary.json", "model.safetensors", "history.jsonl"} <= names, names


_SETTINGS = ("--corpus", "WORK/stories.jsonl", "--vocab_size", "280", "--shard_tokens", "60000")
KINDS = {
    "checkpoint slim": Command("checkpoint", "slim", "WORK/run", needs_run=True),
    "checkpoint slim --keep": Command("checkpoint", "slim", "WORK/run", "--keep", "1", "--every", "4", needs_run=True),
    "checkpoint restore": Restore("checkpoint", "restore", "WORK/run", needs_run=True),
    "checkpoint convert": Command(
        "checkpoint", "convert", "WORK/run/checkpoint-6", "WORK/model", "--to", "hf", needs_run=True
    ),
    "sample --output": Command(
        "sample", "process:mess3(x=0.05,a=0.85)", "--num_sequences", "200000", "--output", "WORK/tokens.npy"
    ),
    "tokenize": Tokenize(*_SETTINGS, "--output_dir", "WORK/tokens"),
    "end of a run": EndOfRun(),
    "folder": Folder(),
    "evaluation": Evaluation(),
    "words": Words(),
    "tokenization": Tokens(),
    "fit": Fit(),
    "saving": Saving(),
    "sweep": Sweep(),
    "supervise": Supervised(),
}


def in_child(work) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with open(os.devnull, "w") as nothing:
                os.dup2(nothing.fileno(), 1)
                work()
            code = 0
        finally:
            os._exit(code)
    return child


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def begun(folder: Path, child: int) -> bool:
    """Wait until a writer changes something in a folder; False if it has ended before."""
    before = _names(folder)
    while _names(folder) == before:
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return False
        time.sleep(0.001)
    return True


def _names(folder: Path) -> set[str]:
    """The names of all files but those of locks and heartbeats."""
    try:
        names = [path.relative_to(folder).as_posix() for path in folder.rglob("*")]
    except FileNotFoundError:  # a folder is moved at this moment
        return {""}
    return {name for name in names if not re.search(r"(^|/)\.([^/]*\.)?(lock|heartbeats)", name)}


def contents(folder: Path) -> dict[str, str]:
    """Digests of all files; of records without times, of pickles only that they are there."""
    found = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name, content = path.relative_to(folder).as_posix(), path.read_bytes()
        name = re.sub(r"set_aside/[^/]+/", "set_aside/DATE/", name)
        if path.name in RECORDS or path.suffix in (".pt", ".pth", ".bin", ".png"):
            content = b""
        elif path.suffix == ".yaml":
            content = content.replace(str(folder).encode(), b"")
        elif path.suffix in (".json", ".jsonl"):
            content = _without_times(content.decode().replace(str(folder), ""))
        found[name] = hashlib.sha256(content).hexdigest()
    return found


def _without_times(text: str) -> bytes:
    def strip(value):
        if isinstance(value, dict):
            return {name: strip(inner) for name, inner in value.items() if not VOLATILE.search(name)}
        return [strip(inner) for inner in value] if isinstance(value, list) else value

    try:
        return json.dumps(strip(json.loads(text))).encode()
    except ValueError:
        return json.dumps([strip(json.loads(line)) for line in text.splitlines()]).encode()


def main(root: Path, name: str, kills: int, seed: int) -> Counter:
    kind, moments, counts = KINDS[name], random.Random(seed), Counter()
    folder = root / "whole"
    folder.mkdir(parents=True)
    kind.old(folder)
    before = kind.read(folder)
    child = in_child(lambda: kind.write(folder))
    assert begun(folder, child)
    began = time.monotonic()
    assert ended(child) == 0
    seconds = time.monotonic() - began
    after, whole = kind.read(folder), contents(folder)
    number, folder = 0, None
    while counts["killed"] < kills:
        if folder is None:
            number, folder = number + 1, root / "kills"
            folder.mkdir()
            kind.old(folder)
        child = in_child(lambda folder=folder: kind.write(folder))
        if begun(folder, child):
            time.sleep(moments.uniform(0, seconds))
        os.kill(child, signal.SIGKILL)
        was_killed = ended(child) == -signal.SIGKILL
        counts["killed"] += was_killed
        try:
            found = kind.read(folder)
            counts["new content" if found == after else "old content" if found == before else "part of the way"] += 1
        except (InputError, AssertionError, ValueError) as error:
            counts[f"LOST: {type(error).__name__}: {error}"[:300]] += 1
        if not was_killed or found == after or counts["killed"] >= kills:
            (root / "again").touch()
            code = ended(in_child(lambda folder=folder: kind.write(folder)))
            (root / "again").unlink()
            counts["not finished afterwards"] += code != 0
            left = contents(folder)
            others = [name for name in whole if left.get(name) != whole[name]]
            counts["other result"] += bool(others)
            print(*(f"other: {name}" for name in others), sep="\n", end="", file=sys.stderr)
            for one in left.keys() - whole.keys():
                counts["left behind"] += 1
                print(one, file=sys.stderr)
            counts["finished"] += 1
            shutil.rmtree(folder)
            folder = None
    return counts


def main_with_hub(root: Path) -> int:
    """Start a Hub on this machine, and this program again, whose client reads its address when it is imported."""
    sys.path.insert(0, str(Path(__file__).with_name("hub")))
    from hub_processes import LocalHub

    root.mkdir(parents=True)
    hub = LocalHub(root / "hub")
    try:
        environment = hub.environment(root / "home")
        environment["PYTHONPATH"] += f":{os.environ.get('PYTHONPATH', '')}"
        command = [sys.executable, sys.argv[0], str(root / "kills"), *sys.argv[2:]]
        return subprocess.run(command, env=environment).returncode
    finally:
        hub.stop()


if __name__ == "__main__":
    if sys.argv[2] == "end of a run" and "HF_ENDPOINT" not in os.environ:
        sys.exit(main_with_hub(Path(sys.argv[1])))
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
