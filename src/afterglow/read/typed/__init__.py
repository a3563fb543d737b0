"""Messages with typed keys and values, by the schemas of their topic."""
