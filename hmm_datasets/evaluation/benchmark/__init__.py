"""A benchmark of language models whose optimum is known: held-out sequences of twelve fixed processes."""
