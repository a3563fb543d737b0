"""Compiled kernels: the inner loops over bytes that Python would be too slow for.

``build`` compiles them once, ``native`` keeps the machine code on disk and loads it without numba, ``calls`` gives them
arrays. Nothing checks bounds for them, so every kernel checks every length before use: given arbitrary bytes it returns
a code, and never reads or writes outside what it was given. Kernels release the GIL; their callers allocate.

Kernels, and the functions that are inlined into them, take plain addresses: an array passed along would be
reference-counted at each call, which costs several times what the functions do.
"""
