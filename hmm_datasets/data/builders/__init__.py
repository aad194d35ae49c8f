"""The builders behind `datasets.load_dataset("hmm", ...)` and `("token_shards", ...)`."""
