"""What a model says about rows of tokens, whoever wrote it: its logits, and the activations of its layers.

A model is one of transformers, any `torch.nn.Module`, a function of tokens, or an array of what some model gave for
the same rows. Each becomes a function of tokens `(B, T)` and of the indices of their rows `(B,)`, so that a
measurement is written once. A module is called with `input_ids` if its `forward` has an argument of that name, else
with the tokens alone.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn
from transformers import PreTrainedConfig

from ..array_input import FILL_IN, observed, refuse_masked
from ..data.sequences import EndlessSequences, HMMSequences
from ..errors import InputError, suggestion
from .model_limits import check_vocabulary

GivesLogits: TypeAlias = nn.Module | Callable[[Tensor], Any] | Tensor | np.ndarray
"""A module or a function that gives logits for tokens, or an array of log-probabilities."""

GivesActivations: TypeAlias = GivesLogits | Sequence[GivesLogits] | Mapping[str, GivesLogits]
"""A module with layers, a function that gives activations for tokens, or arrays of activations."""

Reader: TypeAlias = Callable[[Int[Tensor, "B T"], Int[Tensor, "B"]], Any]
"""A function of tokens and of the indices of their rows."""


class OneProcess:
    """What a measurement asks of an `Accelerator`, for a process that works alone on the device of its model.

    For functions and arrays that is the CPU, and also for a model on a device that has no float64 (`mps`).
    """

    num_processes, process_index, is_main_process = 1, 0, True

    def __init__(self, model: GivesActivations):
        device = _device(model)
        self.device = torch.device("cpu") if device is None or device.type == "mps" else device

    def gather(self, table: Tensor) -> Tensor:
        """The rows of all processes."""
        return table


def check_inputs(model: Any, rows: Any) -> None:
    """Raise [`InputError`] if rows are no finite data set of sequences, or have tokens that a model does not know."""
    if not isinstance(rows, HMMSequences):
        raise InputError(
            f"rows are of type {type(rows).__name__}; expected HMMSequences(process, length, num_sequences=N)"
        )
    if isinstance(rows, EndlessSequences):
        raise InputError("rows are endless, and there is no end to measuring them; pass num_sequences to HMMSequences")
    if isinstance(getattr(getattr(model, "config", None), "vocab_size", None), int):
        if rows.bos_token_id is not None and model.config.vocab_size == rows.vocab_size - 1:
            raise InputError(
                f"the model has {model.config.vocab_size} tokens, but the data have {rows.vocab_size} symbols, a "
                "beginning token among them; measure it on rows without (bos=False, or --bos false)"
            )
        check_vocabulary(model, rows.vocab_size, "symbols")


def logits_of(model: GivesLogits, rows: HMMSequences) -> Reader:
    """The function that gives the logits `(B, T, V)` after every token, on the device of the tokens.

    Args:
        model: a module or a function; or an array of shape `(N, T, V)`, the log-probabilities of all rows.
        rows ([`~hmm_datasets.HMMSequences`]): the rows that are measured.

    Raises:
        `InputError`: something else, or too few tokens; when it is called, logits of a wrong shape, with NaN, or
            probabilities in their place.
    """
    name, num_symbols = _name(model), rows.source.num_symbols
    if not (callable(model) or _is_array(model)):
        raise InputError(
            f"the model is of type {name}; expected a torch.nn.Module such as a model of transformers, a function of "
            "tokens, or an array (N, T, V) of log-probabilities"
        )

    def read(tokens: Tensor, index: Tensor) -> Tensor:
        outputs = _read(model, rows, tokens, index, "V", use_cache=False)
        outputs = _first(getattr(outputs, "logits", outputs))
        return _checked_logits(outputs, tokens, num_symbols, name)

    return read


def activations_of(model: GivesActivations, rows: HMMSequences, layers: Sequence[str] | str | None = None) -> Reader:
    """The function that gives activations `(B, T, D)` after every token by the names of layers.

    They are on the device of the tokens.

    Args:
        model: a module; or functions or arrays `(N, T, D)`, one or several. Several without names are `"0"`, `"1"`, ..
        rows ([`~hmm_datasets.HMMSequences`]): the rows that are measured.
        layers (sequence of `str`, *optional*): names of submodules of the module whose outputs are read; by default
            the `hidden_states` that it returns, as models of transformers do.

    Raises:
        `InputError`: something else, or an unknown layer; when it is called, activations of a wrong shape or with NaN.
    """
    name = _name(model)
    several = isinstance(model, (Mapping, list, tuple))
    parts = _by_name(model)
    if not parts:
        raise InputError("the model is an empty list of layers; expected functions or arrays that give activations")
    for part in parts.values():
        if not (callable(part) or _is_array(part)):
            raise InputError(
                f"the model is of type {_name(part)}; expected a torch.nn.Module, or functions of tokens or arrays "
                "(N, T, D) that give activations, one or several"
            )
    names = _known_layers(model, [layers] if isinstance(layers, str) else layers)

    def read(tokens: Tensor, index: Tensor) -> dict[str, Tensor]:
        if names is not None:
            outputs = _outputs_of(model, names, tokens)
        elif isinstance(model, nn.Module):
            output = _run(model, tokens, use_cache=False, output_hidden_states=True)
            outputs = getattr(output, "hidden_states", None)
            if outputs is None:
                raise InputError(
                    f"{name} returns no hidden states; there is nothing to probe, unless layers names submodules of "
                    f"it ({_some(model)}), or a function of tokens gives activations"
                )
        elif several:
            outputs = {key: _first(_read(part, rows, tokens, index, "D")) for key, part in parts.items()}
        else:
            outputs = _read(model, rows, tokens, index, "D")
        return {
            key: _checked_activations(table, tokens, f"layer {key} of {name}")
            for key, table in _by_name(outputs).items()
        }

    return read


def _known_layers(model: Any, names: Sequence[str] | None) -> list[str] | None:
    """The names, after a check that the module has such submodules."""
    if names is None:
        return None
    if not isinstance(model, nn.Module):
        raise InputError(
            f"layers are names of submodules of a torch.nn.Module, but the model is of type {type(model).__name__}; "
            "leave layers out, or pass the module"
        )
    known = [name for name, _ in model.named_modules()]
    for name in names:
        if name not in known:
            raise InputError(
                f"{_name(model)} has no submodule {name!r}; expected a name that named_modules() gives "
                f"({_some(model)}){suggestion(str(name), known)}"
            )
    if not names:
        raise InputError(f"layers is empty; expected names of submodules of {_name(model)} ({_some(model)})")
    return list(names)


def _outputs_of(model: nn.Module, names: Sequence[str], tokens: Tensor) -> dict[str, Any]:
    """The outputs of submodules in one forward pass, of those that give several the first."""
    outputs: dict[str, Any] = {}

    def keep(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            output = _first(output)
            # A copy, since what follows may add to it in place, as some residual streams do.
            outputs[name] = output.clone() if isinstance(output, Tensor) else output

        return hook

    with ExitStack() as hooks:
        for name in names:
            hooks.enter_context(model.get_submodule(name).register_forward_hook(keep(name)))
        _run(model, tokens, use_cache=False)
    for name in names:
        if name not in outputs:
            raise InputError(
                f"{_name(model)} does not call its submodule {name!r} for tokens; choose another one ({_some(model)})"
            )
    return {name: outputs[name] for name in names}


def _read(part: Any, rows: HMMSequences, tokens: Tensor, index: Tensor, width: str, **asked: Any) -> Any:
    """What a module or a function gives for tokens, or the rows of an array."""
    if not _is_array(part):
        return _run(part, tokens, **asked)
    array = observed("the array", part).refuse_missing("the array", FILL_IN)
    expected = (len(rows), rows.length + (rows.bos_token_id is not None))
    if array.ndim != 3 or tuple(array.shape[:2]) != expected:
        raise InputError(
            f"the array has shape {tuple(array.shape)}; expected ({expected[0]}, {expected[1]}, {width}): every row "
            "of the data, and what a model gives after each of its tokens"
            + (", the beginning token first" if rows.bos_token_id is not None else "")
        )
    return array[index.to(array.device)] if isinstance(array, Tensor) else array[index.cpu().numpy()]


def _run(model: Any, tokens: Tensor, **asked: Any) -> Any:
    """Call a module, in eval mode, or a function.

    `asked` are arguments for those that take `input_ids`, as models of transformers do.
    """
    device = _device(model)
    tokens = tokens if device is None else tokens.to(device)
    training = [part for module in _modules(model) for part in module.modules() if part.training]
    takes = _parameters(model)
    kinds = {parameter.kind for parameter in takes.values()}
    asked = {name: value for name, value in asked.items() if name in takes or inspect.Parameter.VAR_KEYWORD in kinds}
    # What wraps a model of transformers, to compile it or for an adapter, takes `*args` and has its configuration.
    wraps = inspect.Parameter.VAR_POSITIONAL in kinds
    wraps = wraps and isinstance(getattr(model, "config", None), PreTrainedConfig)
    for part in training:
        part.training = False
    try:
        with torch.no_grad():
            return model(input_ids=tokens, **asked) if wraps or "input_ids" in takes else model(tokens)
    except IndexError as error:
        raise InputError(
            f"{_name(model)} fails on rows of {tokens.shape[1]} tokens from {int(tokens.min())} to "
            f"{int(tokens.max())} ({error}); expected a model of so many positions and of all tokens, also the "
            "beginning token if there is one: make it larger, or make the rows shorter or with bos=False"
        ) from error
    finally:
        for part in training:
            part.training = True


def _parameters(model: Any) -> Mapping[str, inspect.Parameter]:
    """The parameters of a module's `forward`, or of a function; none if they are not known."""
    try:
        return inspect.signature(getattr(model, "forward", model)).parameters
    except (TypeError, ValueError):
        return {}


def _table(outputs: Any, tokens: Tensor, what: str, expected: str) -> Tensor:
    """Outputs for every token as a tensor `(B, T, ...)` on the device of the tokens."""
    if not _is_array(outputs):
        description = type(outputs).__name__
    else:
        table = _tensor(outputs).to(tokens.device)
        if table.ndim == 3 and table.shape[:2] == tokens.shape:
            return table
        description = f"shape {tuple(table.shape)}"
    raise InputError(f"{what} gives {description} for tokens of shape {tuple(tokens.shape)}; expected {expected}")


def _checked_logits(outputs: Any, tokens: Tensor, num_symbols: int, name: str) -> Tensor:
    expected = "logits (B, T, V) of the next token after each token, or an object that has them as logits"
    logits = _table(outputs, tokens, name, expected)
    if logits.shape[2] < num_symbols:
        raise InputError(
            f"{name} gives logits of {logits.shape[2]} tokens, but the data have {num_symbols} symbols; expected a "
            "model of all symbols, evaluate it on data like those it was trained on"
        )
    lowest, highest = logits.aminmax()  # NaN if there is one
    if bool(highest.isnan() | (highest == torch.inf)):
        row, position, token = (logits.isnan() | (logits == torch.inf)).nonzero()[0].tolist()
        raise InputError(
            f"{name} gives {logits[row, position, token].item()} as the logit of token {token} at position {position}"
            "; expected a number, or -inf for a token that cannot occur; look for a division by zero or weights that "
            "have diverged"
        )
    if logits.shape[2] > 1 and bool(lowest >= 0) and bool(((logits.sum(-1) - 1).abs() < 1e-3).all()):
        raise InputError(
            f"{name} gives probabilities, which sum to 1; expected logits or log-probabilities, take their logarithms"
        )
    return logits


def _checked_activations(activations: Any, tokens: Tensor, what: str) -> Tensor:
    expected = "activations (B, T, D); choose another layer, or pass a function of tokens that gives them"
    table = _table(activations, tokens, what, expected)
    if not bool(table.isfinite().all()):
        raise InputError(f"{what} gives NaN or inf; expected finite activations, look for weights that have diverged")
    return table


def _by_name(outputs: Any) -> dict[str, Any]:
    """Several outputs by their names, or else by their numbers."""
    if isinstance(outputs, Mapping):
        return dict(outputs)
    return {str(k): part for k, part in enumerate(outputs if isinstance(outputs, (list, tuple)) else [outputs])}


def _first(output: Any) -> Any:
    """Of several outputs, in a tuple or with names, the first."""
    if isinstance(output, Mapping):
        return next(iter(output.values()), None)
    return output[0] if isinstance(output, (list, tuple)) and len(output) > 0 else output


def _tensor(array: Any) -> Tensor:
    refuse_masked("the outputs", array)
    table = array if isinstance(array, Tensor) else torch.from_numpy(np.array(array))
    return table if table.is_floating_point() else table.double()


def _is_array(value: Any) -> bool:
    """Whether it is a tensor, or an array of NumPy or of a library that can be read as one."""
    return not isinstance(value, (nn.Module, np.generic)) and hasattr(value, "__array__")


def _modules(model: Any) -> list[nn.Module]:
    return [part for part in _by_name(model).values() if isinstance(part, nn.Module)]


def _device(model: Any) -> torch.device | None:
    """The device of a module's first parameter; None for functions, and for weights that are on no device yet."""
    first = next((parameter for module in _modules(model) for parameter in module.parameters()), None)
    return None if first is None or first.is_meta else first.device


def _name(model: Any) -> str:
    return getattr(model, "__name__", type(model).__name__)


def _some(model: nn.Module) -> str:
    """A few names of submodules, for errors: those at the top, and those of a list of layers."""
    names = [name for name, _ in model.named_modules() if name and name.count(".") < 2]
    return ", ".join(names[:8]) + (", .." if len(names) > 8 else "") if names else "it has none"
