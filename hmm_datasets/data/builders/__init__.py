"""The builders of `datasets.load_dataset` for the names "hmm" and "token_shards"."""
