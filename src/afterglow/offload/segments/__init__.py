"""Streaming offload (PIP-76): segments of a topic that flow to the tier while entries arrive."""
