"""Reading back what was offloaded. Nothing here writes."""
