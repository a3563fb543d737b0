"""Versioned metadata: stores behind one protocol, names, and paths.

``store`` is the protocol, and ``address`` opens one of ``memory``, ``sqlite`` and ``zookeeper``; ``names`` and
``paths`` define what things are called and where they lie. The meaning of values is not known here.
"""
