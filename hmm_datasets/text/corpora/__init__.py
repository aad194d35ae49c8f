"""Documents and conversations: corpora by name, local files, filters, held-out splits."""
