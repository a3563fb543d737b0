"""A running server: chooses the implementations, and starts and stops them.

Entry point: :class:`~afterglow.server.process.Server`.
"""
