"""Imports between the modules of the package go one way; imports inside functions count too."""

import functools
import re

from house import MODULES, PACKAGE, imports_of

PICTURE = (PACKAGE.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
FACADE = {f"hmm_datasets.hmm.{name}" for name in ("model", "process", "convert", "analysis.entropy")}
"""`HMM` and `Process` offer as methods what these modules, which need it, compute."""

OLD_NAMES = ("hmm_datasets.sweep.slurm", "hmm_datasets.monitoring.preflight")
"""Modules at their places of version 0.1, which jobs in a queue and batch scripts name."""


@functools.cache
def imports() -> dict[str, set[str]]:
    """What each module imports: read for the tests, since every process that collects them imports this file."""
    return {module: imports_of(path) - {module} for module, path in MODULES.items()}


def reached_from(module: str) -> set[str]:
    reached, todo = set(), [module]
    while todo:
        new = imports()[todo.pop()] - reached
        reached |= new
        todo += new
    return reached


def test_the_facade_of_hmm_is_the_only_circle():
    assert {module for module in MODULES if module in reached_from(module)} == FACADE


def room_of(module: str) -> str | None:
    """The folder of a module, of which `hub/kinds` is one by itself; `ground` for files at the root, but for `cli`."""
    _, *path = module.split(".")
    if path[:2] == ["hub", "kinds"]:
        return "kinds"
    if path and (PACKAGE / path[0]).is_dir():
        return path[0]
    return None if not path else "cli" if path == ["cli"] else "ground"


def room_imports() -> set[tuple[str | None, str | None]]:
    """Which folder imports from which."""
    found = {
        (room_of(module), room_of(name))
        for module in MODULES
        for name in imports()[module]
        # `push_to_hub` is a method of processes; public names are loaded when used, old ones kept for a release.
        if (module, name) != ("hmm_datasets.hmm.process", "hmm_datasets.hub.push")
        and not {module, name}
        & {"hmm_datasets", "hmm_datasets.hub", "hmm_datasets.sweep.slurm", "hmm_datasets.monitoring.preflight"}
    }
    return found - {(room, room) for room in {*map(room_of, MODULES)}}


def test_the_picture_of_folders_is_the_one_that_the_sources_draw():
    """The picture leaves out imports that follow from others; what is above imports what is below."""
    drawn = set(re.findall(r"^    (\w+) --> (\w+)$", PICTURE, flags=re.MULTILINE))
    found = room_imports()
    assert drawn <= found
    below = {room: {other for one, other in drawn if one == room} for room in {one for one, _ in found}}
    for _ in below:
        below = {
            room: others | {lower for other in others for lower in below.get(other, ())}
            for room, others in below.items()
        }
    assert {(room, other) for room, others in below.items() for other in others} >= found
    assert not [room for room, others in below.items() if room in others], "no folder imports itself by others"


def test_nothing_imports_the_command_line():
    assert not [module for module, imported in imports().items() if "hmm_datasets.cli" in imported]
