"""Hot logs: where entries are durable before, and while, they go to a tier."""
