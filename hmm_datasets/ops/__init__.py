"""Before, during and after a run: checks of the machine, its progress, its checkpoints."""
