"""Compiled loops: lanes of a vector, Philox, draws, filter, Viterbi, expected counts."""
