"""Imports between the modules of the package go one way; imports inside functions count too."""

import re

from house import MODULES, PACKAGE, imports_of

PICTURE = (PACKAGE.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
FACADE = {f"hmm_datasets.hmm.{name}" for name in ("model", "process", "conversions", "convert", "analysis.entropy")}
"""`HMM` and `Process` offer as methods what these modules, which need it, compute."""


IMPORTS = {module: imports_of(path) - {module} for module, path in MODULES.items()}


def reached_from(module: str) -> set[str]:
    reached, todo = set(), [module]
    while todo:
        new = IMPORTS[todo.pop()] - reached
        reached |= new
        todo += new
    return reached


def test_the_facade_of_hmm_is_the_only_circle():
    assert {module for module in MODULES if module in reached_from(module)} == FACADE


def folder_of(module: str) -> str | None:
    name = module.split(".")[1] if "." in module else ""
    return name if (PACKAGE / name).is_dir() and name else None


FOLDER_IMPORTS = {
    (folder_of(module), folder_of(name))
    for module in MODULES
    for name in IMPORTS[module]
    if not {module, name} <= FACADE and (module, name) != ("hmm_datasets.hmm.process", "hmm_datasets.hub.push")
} - {(folder, folder) for folder in {*map(folder_of, MODULES)}}
"""Which folder imports from which; `push_to_hub` is a method of processes."""


def test_the_picture_of_folders_is_the_one_that_the_sources_draw():
    """The picture leaves out imports that follow from others; what is above imports what is below."""
    drawn = set(re.findall(r"^    (\w+) --> (\w+)$", PICTURE, flags=re.MULTILINE))
    found = {(one, other) for one, other in FOLDER_IMPORTS if one and other}
    assert drawn <= found
    below = {folder: {other for one, other in drawn if one == folder} for folder in {one for one, _ in found}}
    for _ in below:
        below = {
            folder: others | {lower for other in others for lower in below.get(other, ())}
            for folder, others in below.items()
        }
    assert found <= {(folder, other) for folder, others in below.items() for other in others}
    assert not [folder for folder, others in below.items() if folder in others], "no folder imports itself by others"


def test_nothing_imports_the_command_line():
    assert not [module for module, imported in IMPORTS.items() if "hmm_datasets.cli" in imported]
