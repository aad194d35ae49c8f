"""Drawing from an HMM: alias tables, counter-based random numbers, kernels for CPUs and GPUs."""
