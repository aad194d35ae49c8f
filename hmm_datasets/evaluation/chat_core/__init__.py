"""ChatCORE: questions to chat models through lm-evaluation-harness, and the mean of their centered accuracy."""
