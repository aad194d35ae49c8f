"""How the loops of this package are compiled."""

import functools

import numba

compiled = functools.partial(numba.njit, cache=True, nogil=True, no_cfunc_wrapper=True)
"""The decorator of loops: kept on disk, and without Python's global lock. They are not compiled anew when a function
that they call has changed in another module.

numba compiles a second entry for each function, for calls through pointers, which nothing here makes; leaving it out
saves a sixth of the time of the first `describe` (numba/numba#9566 has what that time goes into).
"""
