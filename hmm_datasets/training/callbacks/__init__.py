"""What a run does between steps: samples, evaluations, stopping, a profile, the progress bar."""
