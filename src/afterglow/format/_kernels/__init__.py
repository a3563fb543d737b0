"""Compiled kernels: the inner loops over bytes that Python would be too slow for.

numba compiles them once and keeps the machine code on disk. It checks no bounds, so every kernel checks every length
before use: a kernel given arbitrary bytes returns a code, and never reads or writes outside its arrays. Kernels release
the GIL; their callers allocate.

Kernels, the functions with a signature, take arrays; they are compiled, and cached, when their module is imported. The
functions they are made of take plain addresses and are inlined: an array passed along would be reference-counted at
each call, which costs several times what the functions do.
"""
