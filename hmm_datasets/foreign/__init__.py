"""Readers of files from anyone: limits of depth, digits and size, and errors of one line."""
