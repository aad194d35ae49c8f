"""What happens beside the training steps: history, samples, evaluations, progress, interruptions."""
