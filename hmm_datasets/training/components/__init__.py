"""What a training step does besides the loss: small classes, called in one order by the trainer (see `trainer.py`)."""
