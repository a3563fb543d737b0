"""Versioned metadata: stores behind one protocol, names, and paths.

``store`` is the protocol, ``address`` opens one of ``memory``, ``sqlite`` and ``zookeeper``, ``faults`` wraps any of
them; ``names``, ``encoding`` and ``paths`` say what things are called and where they lie. What values mean is not known
here.
"""
