"""Tools for the checkpoints of a run: list, average, convert, slim and prune them."""
