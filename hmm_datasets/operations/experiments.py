"""Experiments: the folders of `recipes/experiments/` that have a program `run.py` and a `README.md`.

They are found there, in no list. A README begins with what the gallery of `hmm-datasets experiment` shows:

    # icll

    In-context learning of HMMs of words.

    - Paper: none
    - Time on two cores: minutes

The picture is the first that it shows. All experiments are started alike: in one process, with `--launch` where it is
a setting of theirs, and with their first setting as the first argument, which then needs no flag.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError, suggestion
from ..runtime.shipped import EXPERIMENTS, shipped

_HEAD = re.compile(r"# (\S+)\n\n(\S.*)\n\n- Paper: (.+)\n- Time on two cores: (.+)\n")
_LINK = re.compile(r"\[([^]]+)\]\(([^)]+)\)")
_PICTURE = re.compile(r"!\[[^]]*\]\(([^)]+)\)")


@dataclass(frozen=True)
class Experiment:
    """What the gallery shows of an experiment.

    Attributes:
        name (`str`): name on the command line, that of the folder with hyphens.
        summary (`str`): what it shows, in one line.
        paper (`str`): the paper or project that it repeats, as Markdown; `none` if there is none.
        time (`str`): time of its small size on two cores.
        picture (`Path`, *optional*): picture of its results, which an installed package does not have.
    """

    name: str
    summary: str
    paper: str
    time: str
    picture: Path | None


def experiment_names() -> list[str]:
    """The names of all experiments, in alphabetical order."""
    scripts = shipped(EXPERIMENTS).glob("*/run.py")
    return sorted(name_of(path) for path in scripts if path.with_name("README.md").is_file())


def name_of(script: Path) -> str:
    """The name of the experiment that a `run.py` belongs to."""
    return script.parent.name.replace("_", "-")


def experiment_script(name: str) -> Path:
    """The program of an experiment; its name may have hyphens or underscores.

    Raises:
        `InputError`: there is no such experiment.
    """
    names, hyphenated = experiment_names(), name.replace("_", "-")
    if hyphenated not in names:
        hint = suggestion(hyphenated, names) or ";"
        raise InputError(f"experiment {name}: no such experiment{hint} `hmm-datasets experiment` lists all")
    return shipped(EXPERIMENTS) / hyphenated.replace("-", "_") / "run.py"


def gallery() -> list[Experiment]:
    """All experiments, as their READMEs describe them.

    Raises:
        `InputError`: a README does not begin as described above.
    """
    return [read_experiment(experiment_script(name).with_name("README.md")) for name in experiment_names()]


def read_experiment(readme: Path) -> Experiment:
    """The parts of a README about its experiment.

    Raises:
        `InputError`: it does not begin as described above.
    """
    text, name = readme.read_text(encoding="utf-8"), name_of(readme)
    head, picture = _HEAD.match(text), _PICTURE.search(text)
    if head is None or head[1] != name:
        raise InputError(
            f"{readme}: does not begin with `# {name}`, one line of what it shows, `- Paper: ...` and "
            "`- Time on two cores: ...`, with an empty line after each of the first two"
        )
    path = None if picture is None else readme.parent / picture[1]
    shown = path if path is not None and path.is_file() else None
    return Experiment(name, head[2].rstrip("."), head[3], head[4], shown)


def gallery_text() -> str:
    """The gallery for a terminal: for each experiment what it shows, its paper, its time and its picture."""
    lines = []
    for entry in gallery():
        paper = _LINK.sub(r"\1 (\2)", entry.paper)
        lines += [f"{entry.name}: {entry.summary}", f"    paper: {paper}", f"    time on two cores: {entry.time}"]
        lines += [] if entry.picture is None else [f"    picture: {entry.picture}"]
    return "\n".join(lines)
