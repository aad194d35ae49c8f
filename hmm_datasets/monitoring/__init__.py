"""A run and its machine, seen from outside: preflight checks, progress, verification of what was written."""
