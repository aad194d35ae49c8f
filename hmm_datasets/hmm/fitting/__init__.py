"""Fitting an HMM by Baum-Welch: full batch or stochastic, resumable, on one process or many."""
