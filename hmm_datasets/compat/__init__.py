"""Every private or undocumented name of another library that this package touches: one module per library.

Each entry says why it is needed, the upstream issue where there is one, and when it can go. `tests/compat/` compares
what is relied upon with what is installed, so that a new release fails there first, by name.
"""
