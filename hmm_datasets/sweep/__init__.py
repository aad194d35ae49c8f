"""Where sweeps were in version 0.1: jobs in the queue of Slurm name their class here. Gone in the next release."""
