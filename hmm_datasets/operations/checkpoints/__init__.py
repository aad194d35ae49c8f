"""Tools for the checkpoints of a run: list, convert, slim and prune them."""
