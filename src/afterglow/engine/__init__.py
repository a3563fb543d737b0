"""Where the rooms are put together."""
