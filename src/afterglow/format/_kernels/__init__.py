"""Compiled kernels: the inner loops over bytes that would be too slow in Python.

``build`` compiles them once, ``native`` stores the machine code on disk and loads it without numba, ``calls`` is the
Python interface. Bounds are not checked automatically, so every kernel checks every length before use: for arbitrary
bytes it returns a code, and never reads or writes outside its arguments. Kernels release the GIL; callers allocate.

Kernels and the functions inlined into them take plain addresses: arrays would be reference-counted at each call, which
costs several times as much as the functions themselves.
"""
