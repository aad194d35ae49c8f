"""`python -m hmm_datasets.monitoring.preflight`: see [`hmm_datasets.commands.preflight`]."""

from ..commands.preflight import main

if __name__ == "__main__":
    main()
