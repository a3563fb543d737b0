"""What a running engine tells about itself in numbers: declared once, collected on request."""
