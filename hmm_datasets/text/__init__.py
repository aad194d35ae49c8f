"""Text: corpora by name, the word-level pipeline for HMMs, BPE tokenizers, and token shards on disk."""
