"""Private names of other libraries are used only in `hmm_datasets/compat/`."""

import ast
import functools
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import hmm_datasets

ROOT = Path(hmm_datasets.__file__).parent
COMPAT = ROOT / "compat"
FILES = sorted(path for path in [*ROOT.rglob("*.py"), *ROOT.parent.glob("recipes/**/*.py")])
OUTSIDE = [path for path in FILES if COMPAT not in path.parents]

STANDARD_LIBRARY = {
    "_asdict",
    "_make",
    "_replace",
    "_fields",
    "_exit",
    "_getframe",
    "_current_frames",
}  # documented in spite of the underscore
HOOKS = {
    "_info": "builders of datasets and metrics of evaluate",
    "_split_generators": "builders of datasets",
    "_generate_tables": "builders of datasets",
    "_compute": "metrics of evaluate",
    "_init_weights": "models of transformers",
    "_is_stateful": "models of transformers",
    "_no_split_modules": "models of transformers",
    "_tied_weights_keys": "models of transformers",
}
"""Methods and attributes that the documentation of another library tells a subclass to have."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


@functools.cache
def own_names() -> set[str]:
    """Every name that this package gives to something outside `compat`."""
    names = set()
    for node in (node for path in OUTSIDE for node in ast.walk(ast.parse(path.read_text()))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value):
            names.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def foreign_names(source: str, own: set[str]) -> Iterator[tuple[int, str]]:
    """Line and text of each use of a private name that is not ours."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in STANDARD_LIBRARY:
            if is_super(node.value) or node.attr not in own:
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [*node.module.split("."), *(alias.name for alias in node.names)]
            if any(map(is_private, names)):
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Import):
            if any(is_private(part) for alias in node.names for part in alias.name.split(".")):
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.keyword) and node.arg is not None and is_private(node.arg):
            yield node.value.lineno, f"{node.arg}="


@pytest.mark.thorough
def test_no_module_outside_compat_uses_a_private_name_of_another_library():
    used = [(str(path), *use) for path in OUTSIDE for use in foreign_names(path.read_text(), own_names())]
    assert used == []


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.nn.Module()._apply(print)",
        "from datasets.formatting import _register_formatter",
        "import torch._dynamo",
        "from torch._subclasses.fake_tensor import FakeTensorMode",
        "cached_file(_raise_exceptions_for_gated_repo=False)",
        "class A(Trainer):\n    def _save(self):\n        super()._save()",
    ],
)
def test_such_a_use_is_found(source):
    assert len(list(foreign_names(source, {"_save"}))) == 1


def classes() -> Iterator[type]:
    """All classes of the package, those of modules whose extra is not installed apart."""
    for module in pkgutil.walk_packages([str(ROOT)], "hmm_datasets."):
        try:
            found = importlib.import_module(module.name)
        except ImportError:
            continue
        for kind in vars(found).values():
            if inspect.isclass(kind) and kind.__module__ == module.name:
                yield kind


def is_ours(kind: type) -> bool:
    return kind.__module__.split(".")[0] == "hmm_datasets"


def test_a_class_outside_compat_overrides_no_private_method_of_another_library():
    overridden = set()
    for kind in classes():
        foreign = {name for base in kind.__mro__ if not is_ours(base) for name in vars(base) if is_private(name)}
        for own in filter(is_ours, kind.__mro__):
            if not own.__module__.startswith("hmm_datasets.compat"):
                overridden |= {f"{own.__qualname__}.{name}" for name in vars(own) if name in foreign - set(HOOKS)}
    # Private attributes that Python itself gives to classes, torch to those of `autograd.Function`, numba to types.
    given = ("_abc_impl", "_is_protocol", "_backward_cls", "_is_internal")
    assert {name for name in overridden if name.rpartition(".")[2] not in given} == set()
