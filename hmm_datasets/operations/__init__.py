"""Monitoring a run and its machine: preflight checks, progress, verification of files."""
