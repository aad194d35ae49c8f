"""Checkpoints: saved whole or not at all, inspected, and resumed on any number of processes."""
