"""The builders of `datasets.load_dataset` for the names "hmm", "token_shards" and "words"."""
