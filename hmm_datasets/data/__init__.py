"""Data sets for trainers: builders for `datasets`, map-style data sets, and mixtures."""
