"""AdamW for all parameters, or Muon for the matrices and AdamW for the rest; schedules.

Muon updates a hidden matrix along its momentum with all singular values made nearly equal, by five Newton-Schulz steps
(Jordan et al., 2024). Its updates are scaled to the size of AdamW's, so both can use the same learning rate and weight
decay (Liu et al., "Muon is scalable for LLM training", 2025, equation 4). It keeps one number per weight where AdamW
keeps two. Embeddings, output layer, norms and biases are left to AdamW. Weight decay applies to all parameters but
norms and biases, as in the Trainer; so it applies to embeddings too. On a CPU the Newton-Schulz steps are in float32,
on other devices in bfloat16.

Muon is torch's, or DeepSpeed's under ZeRO with the same updates. But DeepSpeed makes the singular values equal before
the norm of the gradient is taken: `grad_norm` is then that of Muon's updates, and clipping would shrink every one of
them, so clipping is refused.
"""

import math
from collections.abc import Collection
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from ..compat.deepspeed import whole_shape, zero_muon_with_adamw
from ..compat.torch import use_float32_in_muon
from ..errors import InputError
from ..runtime import environment

MATRIX_OPTIMIZERS = ("adamw", "muon")
_ADAMW = ("adamw_torch_fused", "adamw_torch")
_DEFAULT_MIN_LR = {"min_lr_rate": 0.1}
_OPTIONS = {"weight_decay": "weight_decay", "adam_beta1": "betas", "adam_beta2": "betas", "adam_epsilon": "eps"}
_RATES = ("lr", "initial_lr")


class MuonWithAdamW(torch.optim.Optimizer):
    """torch's Muon for groups whose `optimizer` is `muon` and torch's AdamW for those with `adamw`, as one optimizer.

    Args:
        groups (`list` of `dict`): parameter groups, as [`parameter_groups`] makes them.
        lr (`float`): learning rate of groups that do not set one.
        betas, eps, fused: settings of AdamW.
        momentum (`float`, *optional*, defaults to 0.95): momentum of Muon.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        fused: bool = True,
        momentum: float = 0.95,
    ):
        use_float32_in_muon()
        by_name = {name: [group for group in groups if group["optimizer"] == name] for name in MATRIX_OPTIMIZERS}
        # Each part writes its settings into its groups; the groups themselves are shared with this optimizer.
        # Either list may be empty, as in LoRA, whose weights are all matrices; torch's optimizers refuse that.
        makers = {
            "muon": lambda members: torch.optim.Muon(
                members, lr=lr, momentum=momentum, adjust_lr_fn="match_rms_adamw"
            ),
            "adamw": lambda members: torch.optim.AdamW(members, lr=lr, betas=betas, eps=eps, fused=fused),
        }
        self._parts = {name: makers[name](members) for name, members in by_name.items() if members}
        super().__init__(groups, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        """Update all parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for name, part in self._parts.items():
            # Set at every step, since loading a state and sharding replace the groups and the state.
            part.param_groups = [group for group in self.param_groups if group["optimizer"] == name]
            part.state = self.state
            part.step()
        return loss


def matrix_names(model: PreTrainedModel) -> set[str]:
    """Names of the parameters that Muon updates: all matrices but embeddings and the output layer."""
    output = model.get_output_embeddings()
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    embeddings |= set() if output is None else {id(output.weight)}
    named = model.named_parameters()
    return {name for name, parameter in named if len(whole_shape(parameter)) == 2 and id(parameter) not in embeddings}


def parameter_groups(
    model: PreTrainedModel,
    *,
    learning_rate: float,
    weight_decay: float,
    decayed: Collection[str],
    matrices: Collection[str] = (),
) -> list[dict[str, Any]]:
    """The parameters of a model by optimizer and weight decay.

    Args:
        model ([`~transformers.PreTrainedModel`]): the model; its frozen parameters are left out.
        learning_rate (`float`): learning rate.
        weight_decay (`float`): weight decay of the parameters in `decayed`; 0 for the others.
        decayed (collection of `str`): names of the parameters with weight decay.
        matrices (collection of `str`, *optional*): names of the parameters that Muon updates.

    Returns:
        `list` of `dict`: `params`, `lr`, `weight_decay` and `optimizer` of each group.
    """
    groups: dict[tuple, dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        kind = "muon" if name in matrices else "adamw"
        decay = weight_decay if name in decayed else 0.0
        group = groups.setdefault(
            (kind, name not in decayed),
            {"params": [], "lr": learning_rate, "weight_decay": decay, "optimizer": kind},
        )
        group["params"].append(parameter)
    return [groups[key] for key in sorted(groups)]


def muon_optimizer(
    model: PreTrainedModel, args, decayed: Collection[str], *, is_deepspeed: bool
) -> torch.optim.Optimizer:
    """Muon for the matrices of a model and AdamW for the rest, with the settings of a run.

    Args:
        model ([`~transformers.PreTrainedModel`]): the model.
        args ([`~hmm_datasets.training.settings.RunSettings`]): the settings.
        decayed (collection of `str`): names of the parameters with weight decay.
        is_deepspeed (`bool`): whether DeepSpeed shards the optimizer.

    Raises:
        `InputError`: clipping under DeepSpeed.
    """
    check_sharding(args.optimizer, args.max_grad_norm, is_deepspeed)
    groups = parameter_groups(
        model,
        learning_rate=args.learning_rate,
        weight_decay=args.weight_decay,
        decayed=decayed,
        matrices=matrix_names(model),
    )
    make = zero_muon_with_adamw if is_deepspeed else MuonWithAdamW
    return make(
        groups,
        lr=args.learning_rate,
        betas=(args.adam_beta1, args.adam_beta2),
        eps=args.adam_epsilon,
        fused=args.optim == "adamw_torch_fused",
    )


def schedule_settings(args, num_training_steps: int) -> dict[str, Any]:
    """The `lr_scheduler_kwargs` for a run of `num_training_steps` steps.

    These are the user's. The `num_decay_steps` of `warmup_stable_decay` are a share of the run if below 1, like
    `warmup_steps`; by default a fifth of it.
    """
    settings = dict(args.lr_scheduler_kwargs or {})
    if args.lr_scheduler_type == "warmup_stable_decay":
        steps = settings.get("num_decay_steps", 0.2)
        settings["num_decay_steps"] = int(steps) if steps >= 1 else math.ceil(num_training_steps * steps)
    return settings


def group_options(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The options of each parameter group: learning rates, weight decay, betas and others."""
    return [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]


def apply_changes(
    accepted: Collection[str], options: list[dict[str, Any]], optimizer: torch.optim.Optimizer, schedule: Any
) -> None:
    """Give an optimizer and a schedule whose states were loaded what the settings say where a change was accepted.

    A loaded optimizer has the options of the run that it is from, and its schedule the peak learning rates. The shape
    of a schedule is that of the settings, and changes without being named here; so does its length, if a run is
    extended. The next step is taken at the learning rate of that schedule.

    Args:
        accepted (collection of `str`): names such as `settings.learning_rate`.
        options (`list` of `dict`): options of the groups as the settings say, before the state was loaded, see
            [`group_options`]; `initial_lr` is the peak learning rate.
        optimizer, schedule: loaded, and changed in place.
    """
    names = {name.removeprefix("settings.") for name in accepted if name.startswith("settings.")}
    changed = {option for name, option in _OPTIONS.items() if name in names}
    if names & {"optim", "optim_args"}:
        changed |= set().union(*options) - {*_RATES}
    if "learning_rate" in names:
        changed |= {*_RATES}
    for group, chosen in zip(optimizer.param_groups, options, strict=True):
        group.update({option: chosen[option] for option in changed if option in chosen})
    if not hasattr(schedule, "lr_lambdas"):
        return
    peaks = [chosen["initial_lr"] for chosen in options] if "learning_rate" in names else schedule.base_lrs
    shares = [share(schedule.last_epoch) for share in schedule.lr_lambdas]
    rates = [peak * share for peak, share in zip(peaks, shares, strict=True)]
    schedule.load_state_dict(schedule.state_dict() | {"base_lrs": peaks, "_last_lr": rates})
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate


def check_sharding(optimizer: str, max_grad_norm: float | None, is_deepspeed: bool) -> None:
    """Raise [`InputError`] for Muon with clipped gradients under DeepSpeed."""
    if optimizer == "muon" and is_deepspeed and max_grad_norm:
        raise InputError(
            f"optimizer is muon and max_grad_norm {max_grad_norm:g}, but under ZeRO DeepSpeed clips Muon's "
            "updates instead of the gradients; add --optimizer adamw, or --max_grad_norm 0 for Muon without "
            "clipping"
        )


def check_optimizer(args) -> None:
    """Check the optimizer settings, and set the default minimum of the cosine schedule.

    Raises:
        `InputError`: a setting is wrong; the message names it.
    """
    if args.optimizer not in MATRIX_OPTIMIZERS:
        raise InputError(f"optimizer is {args.optimizer!r}; expected one of {', '.join(MATRIX_OPTIMIZERS)}")
    if args.lr_scheduler_type == "cosine_with_min_lr":
        kwargs = args.lr_scheduler_kwargs or {}
        args.lr_scheduler_kwargs = (
            kwargs if kwargs.keys() & {"min_lr", "min_lr_rate"} else {**_DEFAULT_MIN_LR, **kwargs}
        )
    if args.optimizer != "adamw" and args.optim not in _ADAMW:
        raise InputError(f"optim is {args.optim}; optimizer {args.optimizer} needs one of {', '.join(_ADAMW)}")
    check_sharding(args.optimizer, args.max_grad_norm, environment.uses_deepspeed())
