"""Evaluating a model: against the exact optimum and the baselines of a process, on text, and on questions."""
