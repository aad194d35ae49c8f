"""Sweeps: one recipe with many settings, each in its own folder, side by side on one machine or as a Slurm array."""
