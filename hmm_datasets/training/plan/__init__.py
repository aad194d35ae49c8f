"""What a run will consume and what it needs of a machine, computed before it starts."""
