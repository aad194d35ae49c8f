"""All uses of private or undocumented names of other libraries, one module per library.

Each entry states why it is needed, the upstream issue if there is one, and when it can be removed. `tests/compat/`
checks these names in the installed versions, so that a new release that changes one fails there first, by name.
"""
