"""See [`hmm_datasets.operations.sweeps.slurm`]."""

from ..operations.sweeps.slurm import CellJob

__all__ = ["CellJob"]
