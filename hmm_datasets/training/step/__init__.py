"""What a training step does in addition to the loss: small classes that `trainer.py` calls in a fixed order."""
