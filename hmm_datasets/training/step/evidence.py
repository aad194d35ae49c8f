"""What explains a loss that is not finite, kept in `nan-step-N/` of the run.

- `evidence.json`: step, rank, host; rows and losses of all micro-batches; norms of the gradient by parameter; the
  parameters and the module with the first value that is not finite; the settings;
- `micro_batch.safetensors`: inputs and labels of the micro-batch, and the loss at each of its positions.

The module is found by one more forward pass of the same micro-batch, with a hook on every module. Modules end in the
order of the computation, so the first whose output is not finite while its inputs are is where it began. All ranks
take part, since under FSDP2 and ZeRO-3 they gather weights together.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from ...files import atomic_folder, write_json
from ...runtime.credentials import masked
from ..fused_loss import next_labels
from ..run_context import RunContext
from .gradients import gradient_norms
from .loss import StepLoss


def keep_evidence(
    run: RunContext,
    step_loss: StepLoss,
    forward_context: Callable[[], AbstractContextManager],
    model: torch.nn.Module,
    step: int,
    norm: float,
    ranks: list[dict[str, Any]],
    worst: dict[str, Any],
) -> Path:
    """Write the folder of a step whose loss is not finite; a collective, to be called by all ranks.

    Args:
        run ([`~hmm_datasets.training.run_context.RunContext`]): the run.
        step_loss ([`~hmm_datasets.training.step.loss.StepLoss`]): the losses and inputs of the step.
        forward_context (callable): gives the context of a forward pass, such as autocast.
        model (`nn.Module`): the model as it is trained.
        step (`int`): the step, counted from 1.
        norm (`float`): norm of the gradient before clipping.
        ranks (`list[dict]`): what all ranks trained on.
        worst (`dict`): the micro-batch whose loss is not finite.

    Returns:
        `Path`: the folder.
    """
    folder = Path(run.args.output_dir) / f"nan-step-{step}"
    norms, not_finite = gradient_norms(run, model, norm)
    finite = [bool(torch.isfinite(loss).all()) for loss in step_loss.losses]
    inputs = step_loss.batches[finite.index(False) if False in finite else 0]
    trained = run.accelerator.unwrap_model(model, keep_torch_compile=False)
    with _first_not_finite(trained) as module:
        logits, problem = _logits(run, forward_context, model, inputs)
    if run.args.process_index == worst["rank"]:
        evidence = {
            "step": step,
            "highest": worst,
            "first_not_finite": module or None,
            "problem_of_the_forward_pass": problem,
            "parameters_not_finite": [name for name, weight in trained.named_parameters() if not _is_finite(weight)],
            "gradient": {"norm": norm, "share_not_finite": not_finite, "norms": norms},
            "optimizer_has_stepped": run.is_deepspeed_enabled,
            "ranks": ranks,
            "settings": masked(run.args.to_dict()),
        }
        with atomic_folder(folder) as unfinished:
            write_json(unfinished / "evidence.json", evidence)
            save_file(_tensors(inputs, logits), unfinished / "micro_batch.safetensors")
    run.accelerator.wait_for_everyone()
    return folder


def _logits(
    run: RunContext,
    forward_context: Callable[[], AbstractContextManager],
    model: torch.nn.Module,
    inputs: dict[str, Any],
) -> tuple[torch.Tensor | None, str | None]:
    """The logits of a micro-batch of tokens and labels, computed anew, and why there are none."""
    if not {"input_ids", "labels"} <= inputs.keys():
        return None, "the inputs are not tokens and labels"
    tensors = {name: value.to(run.args.device) for name, value in inputs.items() if torch.is_tensor(value)}
    try:
        with torch.no_grad(), forward_context():
            return getattr(model(**tensors), "logits", None), None
    except Exception as error:  # such as too little memory, which must not hide the loss that is not finite
        return None, f"{type(error).__name__}: {error}"


def _tensors(inputs: dict[str, Any], logits: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """The tensors of a micro-batch, and the cross-entropy of the label after each position, 0 where there is none."""
    tensors = {name: value.detach().cpu().contiguous() for name, value in inputs.items() if torch.is_tensor(value)}
    if logits is not None:
        labels = next_labels(inputs["labels"]).to(logits.device)
        rows = [
            torch.nn.functional.cross_entropy(row.float(), label, reduction="none")
            for row, label in zip(logits, labels, strict=True)
        ]
        tensors["losses"] = torch.stack(rows).cpu()
    return tensors


@contextmanager
def _first_not_finite(model: torch.nn.Module) -> Iterator[dict[str, Any]]:
    """A context in which the first module whose output is not finite, though its inputs are, is noted."""
    evidence: dict[str, Any] = {}

    def note(name: str):
        def hook(module: torch.nn.Module, inputs: Any, kwargs: dict[str, Any], output: Any) -> None:
            if not evidence and not _is_finite(output) and _is_finite([inputs, list(kwargs.values())]):
                evidence.update(module=name, type=type(module).__name__, share=_share_not_finite(output))

        return hook

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if name:
                hooks.enter_context(module.register_forward_hook(note(name), with_kwargs=True))
        yield evidence


def _values(nested: Any) -> Iterator[torch.Tensor]:
    """The tensors of floating-point numbers in nested tuples, lists and dictionaries, each rank's own part."""
    if torch.is_tensor(nested):
        if nested.is_floating_point():
            yield nested.to_local() if hasattr(nested, "to_local") else nested
    elif isinstance(nested, dict):
        yield from _values(list(nested.values()))
    elif isinstance(nested, list | tuple):
        for item in nested:
            yield from _values(item)


def _is_finite(nested: Any) -> bool:
    # Attention masks have entries of minus infinity, which are not values.
    return all(bool((~(values.isnan() | (values == float("inf")))).all()) for values in _values(nested))


def _share_not_finite(nested: Any) -> float:
    values = list(_values(nested))
    return sum(float((~torch.isfinite(value)).sum()) for value in values) / max(
        1, sum(value.numel() for value in values)
    )
