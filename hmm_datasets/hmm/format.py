"""The version of what an HMM's stream is; it changes whenever `(hmm, seed, index)` would give other tokens."""

FORMAT_VERSION = 1
