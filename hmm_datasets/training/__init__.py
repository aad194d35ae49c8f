"""What recipes share: settings, order, accounting, model sizes, evaluation during training."""
