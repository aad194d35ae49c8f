"""Sampling from an HMM: alias tables, counter-based random numbers, and kernels for CPUs and GPUs."""
