"""A model measured: against the exact optimum and the baselines of its process, on text, on questions."""
