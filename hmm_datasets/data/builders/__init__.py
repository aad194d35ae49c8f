"""The builders for `datasets.load_dataset("hmm", ...)` and `datasets.load_dataset("token_shards", ...)`."""
