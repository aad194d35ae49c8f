"""What the training recipes share: settings, data, models, optimizers, plans, trainers, checkpoints, records."""
