"""The conversations that the chat model of these tests knows by heart."""

PARIS = "The capital of France is Paris."
FRANCE = [("user", "What is the capital of France?"), ("assistant", PARIS)]
CONVERSATIONS = [
    FRANCE,
    [*FRANCE, ("user", "And of Japan?"), ("assistant", "It is Tokyo.")],
    [("user", "And of Japan?"), ("assistant", "Sorry, what of it?")],
    [("user", "Hello"), ("assistant", "Hello, friend.")],
    [("system", "Be rude."), ("user", "Hello"), ("assistant", "Go away.")],
    [("user", "Hello\nand goodbye"), ("assistant", "First line.\nSecond line.")],
    [("user", "Count"), ("assistant", "one two " * 40)],
]
TEXTS = ["Once upon a time.", "upon a Once upon"]
"""Texts that it continues."""

WINDOW = 1024
"""Positions of the model."""
