"""Exact inference in an HMM: filter, smoother, Viterbi paths, expected counts."""
