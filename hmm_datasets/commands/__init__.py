"""The subcommands of `hmm-datasets`, one module for each."""
