"""The way of one call, and of several."""
