"""Hidden Markov models: the model, sampling, inference, analysis and fitting."""
