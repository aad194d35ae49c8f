"""Text: corpora by name, filters, the word-level pipeline for HMMs, BPE tokenizers trained or brought along, encoding,
compression compared, and token shards on disk."""
