"""CORE, the benchmark score of DCLM: its tasks, prompts, items and score."""
