"""Text: named corpora, filters, word-level data for HMMs, BPE tokenizers (trained or imported), encoding, comparison
of compression, and token shards on disk."""
