"""Callbacks of a training run: evaluation schedule, interruptions, progress, samples, totals."""
