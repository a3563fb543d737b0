"""Metrics of a process: declared once, collected on request."""
