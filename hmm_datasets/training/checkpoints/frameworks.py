"""The frameworks that shard a model, by the names under which a checkpoint is converted for them."""

FRAMEWORKS = {"plain": "plain data parallelism", "zero": "DeepSpeed ZeRO", "fsdp": "FSDP"}
"""Names in `written_by` of a checkpoint's identity; ZeRO's is followed by its stage, or stands for every stage."""


def reads(framework: str, written_under: str) -> bool:
    """Whether a framework can continue from a checkpoint that was written under this one."""
    return framework == written_under or (written_under == FRAMEWORKS["zero"] and framework.startswith(written_under))


def short_name(framework: str) -> str:
    """The name under which a checkpoint is converted for a framework."""
    return next(name for name, prefix in FRAMEWORKS.items() if framework.startswith(prefix))
