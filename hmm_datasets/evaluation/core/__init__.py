"""CORE, the centered score of DCLM: its tasks, prompts and items."""
