"""Hidden Markov models: what they are, drawing from them, inference, and learning."""
