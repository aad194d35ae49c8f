"""CORE, the benchmark score of DCLM: 22 tasks of questions."""
