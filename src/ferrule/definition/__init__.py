"""From what a developer wrote to a `Tool`."""
