"""Tools for the checkpoints of a run: list, convert and slim them."""
