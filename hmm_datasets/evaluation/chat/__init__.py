"""Talking to a model: one that answers by its chat template, or a base model whose text is continued."""
