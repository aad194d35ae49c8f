"""The subcommand that computes a step of a run again."""

from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..report.tables import text_table
from ..runtime import environment
from ..runtime.settings import argument, option

if TYPE_CHECKING:
    from ..operations.replay import Replay


@dataclass(frozen=True, kw_only=True)
class ReplayCommand:
    """Compute the loss of a step of a run again, row by row.

    It trains from the newest checkpoint before the step, in one process, and writes nothing into the run.
    """

    path: Path = argument("RUN", "folder of a run of pretrain or midtrain")
    step: int = option(MISSING, "N", "the step, counted from 1")
    before_rollback: bool = option(
        False,
        None,
        "the step as it was when the run went back at it, with the rows that are now skipped",
    )


def replay_command(arguments: ReplayCommand) -> int:
    """Print the rows of a step and their losses, largest first."""
    environment.silence_missing_gpu_warnings()
    from transformers.utils.logging import set_verbosity_error

    from ..operations.replay import replay

    set_verbosity_error()  # a tokenizer that differs from the configuration was named when the run was started
    print(replay_text(replay(arguments.path, arguments.step, before_rollback=arguments.before_rollback)))
    return 0


def replay_text(found: "Replay") -> str:
    """A replayed step as a table for the terminal."""
    has_optimum = any(row.optimum is not None for row in found.rows)
    has_origin = any(row.origin is not None for row in found.rows)
    header = ["row", "loss", *["optimum", "above"] * has_optimum, "tokens", *["from"] * has_origin]
    cells = []
    for row in sorted(found.rows, key=lambda row: row.loss, reverse=True):
        optimum = [] if row.optimum is None else [f"{row.optimum:.4f}", f"{row.loss - row.optimum:.4f}"]
        cells.append([str(row.index), f"{row.loss:.4f}", *optimum, str(row.tokens), *[row.origin or ""] * has_origin])
    start = f"checkpoint-{found.start}" if found.start else "the beginning of the run"
    lines = [
        f"step {found.step:,}, computed from {start}; losses in nats per token",
        "",
        text_table(header, cells),
        "",
        f"loss of the step {found.loss:.8g}; mean of its rows, weighted by tokens, {found.mean:.8g}",
    ]
    if found.logged is None:
        lines.append("the run logged no loss for this step alone (logging_steps)")
    else:
        difference = found.loss - found.logged
        comparison = "the same" if difference == 0 else f"a difference of {difference:.2g}"
        lines.append(f"the run logged {found.logged:.8g}: {comparison}")
    return "\n".join(lines)
