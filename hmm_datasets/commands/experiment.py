"""The gallery of experiments."""

from dataclasses import dataclass

from ..operations.experiments import gallery_text
from ..runtime.settings import argument


@dataclass(frozen=True, kw_only=True)
class ExperimentCommand:
    """List the experiments, or run one of them."""

    name: str | None = argument("NAME", "run this one; flags of its own follow", default=None)


def experiment_command(arguments: ExperimentCommand) -> int:
    """List the experiments; one that is named is started before arguments are parsed."""
    print(gallery_text())
    return 0
