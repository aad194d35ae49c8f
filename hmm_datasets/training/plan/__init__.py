"""What a run consumes and asks of a machine, known before it starts."""
