"""Processes by name, without writing Python: `process:mess3(x=0.05, a=0.85)`.

After `process:` comes a call as in Python, of a function of [`~hmm_datasets.hmm.processes`], of one in
[`~hmm_datasets.hmm.process_table`], or of one that another distribution registers (see [`~hmm_datasets.plugins`]).
Its arguments, by position or by name, are numbers, quotients of numbers (`1/3`), strings, `True`, `False`, `None`,
lists and tuples of these, and other processes: `process:permuted_symbols(mess3(x=0.1), group=4)`. Parentheses may be
left out where there is nothing between them: `process:rrxor`. So may `process:`, unless a file or folder here has
this name. Strings have quotes of either kind, so that in a shell
one pair of the other kind around the whole is enough.

The text is parsed into a syntax tree, whose nodes are looked up one by one; nothing in it is executed. The process is
the one that the same call makes in Python, so it has the same fingerprint.
"""

import ast
import inspect
import os
from collections.abc import Callable
from difflib import get_close_matches
from importlib.metadata import EntryPoint
from typing import Any

from .. import plugins
from ..errors import InputError
from . import processes
from .process import Process
from .process_storage import PROCESSES
from .process_table import TABLE

PREFIX = "process:"

SAVED_NAME = "process"
"""Folder in that of a run, with the process that the settings of the run name."""

CONSTRUCTORS = {name: (where, example) for where, name, example, _ in TABLE if name is not None}
"""Constructors by name, but for functions of `processes` whose arguments all have defaults, and their examples."""

_EXPECTED = f"expected {PREFIX} and a call with numbers, such as {PREFIX}mess3(x=0.05, a=0.85) or {PREFIX}rrxor"


def process_of_run(folder: str | os.PathLike, named: str) -> str:
    """The process that the setting `hmm` of a run names, by the folder that the run saved it in if there is one."""
    saved = os.path.join(folder, SAVED_NAME)
    return saved if os.path.isdir(saved) else named


def is_process_name(name: str | os.PathLike) -> bool:
    """Whether a name is that of a process here, and not of a folder or a repository: `process:` and a call, or a call
    of a known process alone, where no file or folder has this name.

    ```python
    >>> [is_process_name(name) for name in ("process:mess3", "mess3", "mess3(x=0.05)", "me/mess3", "mess")]
    [True, True, True, False, False]

    ```
    """
    name = str(name)
    if name.startswith(PREFIX):
        return True
    return name.partition("(")[0].strip() in constructor_names() and not os.path.exists(name)


def _functions() -> dict[str, Callable[..., Process]]:
    """The functions of `processes` by name."""
    functions = {
        name: value for name, value in vars(processes).items() if inspect.isfunction(value) and name[0] != "_"
    }
    return {name: function for name, function in functions.items() if function.__module__ == processes.__name__}


def _registered() -> dict[str, EntryPoint]:
    """The constructors of this table and of other distributions, by name."""
    own = {name: where for name, (where, _) in CONSTRUCTORS.items()}
    return plugins.parts(PROCESSES, own, reserved=_functions().keys() - own.keys())


def constructor_names() -> list[str]:
    """The names of all constructors, in alphabetical order."""
    return sorted({*_functions(), *_registered()})


def constructor(name: str) -> Callable[..., Process]:
    """The constructor of a name; KeyError for another name."""
    functions = _functions()
    return functions[name] if name in functions else plugins.load(_registered()[name])


def named_process(name: str) -> Process:
    """The process of a name such as `"process:mess3(x=0.05, a=0.85)"`.

    Args:
        name (`str`): `process:` and a call, as this module describes.

    Raises:
        `InputError`: the name cannot be parsed, or has an unknown process or wrong arguments; the message has the
            nearest name, or the signature.

    ```python
    >>> named_process("process:mess3(x=0.05, a=0.85)").fingerprint() == processes.mess3(0.05, 0.85).fingerprint()
    True
    >>> named_process("process:permuted_symbols(rrxor, group=2)").group
    2

    ```
    """
    try:
        tree = ast.parse(name.removeprefix(PREFIX).strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise InputError(f"{name}: cannot be read ({reason}); {_EXPECTED}") from None
    process = _Reader(name).value(tree.body)
    if not isinstance(process, Process):
        raise InputError(f"{name}: is {process!r}, not a process; {_EXPECTED}")
    return process


class _Reader:
    """The values of syntax trees.

    Args:
        name (`str`): the whole name, for errors.
    """

    def __init__(self, name: str):
        self.name = name

    def value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=int() | float() | str() | None as value):
                return value
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
                return -self._number(operand) if isinstance(sign, ast.USub) else self._number(operand)
            case ast.BinOp(op=ast.Div(), left=left, right=right):
                numerator, denominator = self._number(left), self._number(right)
                if denominator == 0:
                    raise InputError(f"{self.name}: {ast.unparse(node)} divides by zero")
                return numerator / denominator
            case ast.List(elts=elements):
                return [self.value(element) for element in elements]
            case ast.Tuple(elts=elements):
                return tuple(self.value(element) for element in elements)
            case ast.Name(id=called):
                return self._call(called, [], {})
            case ast.Call(func=ast.Name(id=called), args=arguments, keywords=keywords):
                return self._call(called, arguments, {keyword.arg: keyword.value for keyword in keywords})
        raise InputError(f"{self.name}: {ast.unparse(node)} is not allowed; {_EXPECTED}")

    def _number(self, node: ast.expr) -> float:
        value = self.value(node)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(f"{self.name}: {ast.unparse(node)} is not a number")
        return value

    def _call(self, called: str, arguments: list[ast.expr], keywords: dict[str | None, ast.expr]) -> Process:
        known = constructor_names()
        if called not in known:
            near = get_close_matches(called, known, n=1)
            hint = f"did you mean {near[0]}?" if near else "a string has quotes."
            raise InputError(f"{self.name}: no process is called {called}; {hint} There are {', '.join(known)}")
        function = constructor(called)
        if None in keywords or any(isinstance(argument, ast.Starred) for argument in arguments):
            raise InputError(f"{self.name}: * and ** are not allowed; write out the arguments of {called}")
        values = [self.value(argument) for argument in arguments]
        named = {str(key): self.value(value) for key, value in keywords.items()}
        try:
            inspect.signature(function).bind(*values, **named)
            return function(*values, **named)
        except InputError as error:
            raise InputError(f"{self.name}: {error}") from None
        except (TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
            raise InputError(f"{self.name}: {called}: {error}; expected {signature_of(called, function)}") from None


def signature_of(name: str, function: Callable[..., Any]) -> str:
    """The call of a constructor with the names and defaults of its arguments, without their types.

    ```python
    >>> signature_of("mess3", processes.mess3)
    'mess3(x=0.05, a=0.85)'

    ```
    """
    arguments = inspect.signature(function).parameters.values()
    plain = [argument.replace(annotation=inspect.Parameter.empty) for argument in arguments]
    return f"{name}{inspect.Signature(plain)}"


def example_of(name: str) -> str | None:
    """A call of a constructor that makes a process; None if it has an argument without a default and no example."""
    _, arguments = CONSTRUCTORS.get(name, ("", ""))
    if arguments:
        return f"{name}({arguments})"
    parameters = inspect.signature(constructor(name)).parameters.values()
    return name if all(parameter.default is not parameter.empty for parameter in parameters) else None
